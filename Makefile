# Every way to build, test and run Penstock. `make help` lists the targets.
#
# Needs Rust, a C++ compiler, Python 3.11 or newer with pip (or uv), and make; the rest is installed into .venv and .cache. Stamp files in
# .venv say what is installed, so that nothing is done twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What is run here keeps its bytecode: without it, importing torch takes twice as long, at every start.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PORT ?= 3000
VENV := .venv
BIN := $(VENV)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
UV_VERSION := 0.13.8
UV := $(or $(shell command -v uv),.cache/uv/bin/uv)

# The cases of MaskBench, where they are: tests and `make bench` use them.
export PENSTOCK_SCHEMAS ?= $(abspath $(wildcard ../shared/schemas/cases.jsonl))

RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml \
	$(shell find launcher router proto -name '*.rs' -o -name '*.proto' -o -name 'Cargo.toml' -o -path '*/page/*')

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

# --- Installing ---------------------------------------------------------------------------------------

.cache/uv/bin/uv:
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: $(PYTHON) has no pip, which brings uv: install it (on Debian and Ubuntu apt-get install python3-pip), or uv itself" >&2; exit 1; }
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
		--target .cache/uv uv==$(UV_VERSION)

# What serves on a CPU, without torch.
$(VENV)/.requirements: requirements.txt | $(filter .cache/uv/bin/uv,$(UV))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
	$(UV) venv --quiet --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python -r requirements.txt
	@touch $@

# And what tests, benchmarks and all other models need: torch among it.
DEVELOPED := $(VENV)/.requirements-dev
$(DEVELOPED): requirements-dev.txt | $(VENV)/.requirements
	$(UV) pip install --quiet --python $(BIN)/python -r requirements-dev.txt
	@touch $@

# The CPU engine, which Python finds beside the kernels' modules. Without a C++ compiler there is none, and torch computes.
ENGINE := kernels/penstock_kernels/libpenstock_cpu.so
$(ENGINE): kernels/build_library.py $(wildcard kernels/csrc/cpu/*)
	@$(PYTHON) kernels/build_library.py

# Editable: Python is used where it lies, and only a change in Rust or in the page, which is part of the binary,
# makes this run again.
$(VENV)/.installed: $(VENV)/.requirements $(RUST_SOURCES)
	MATURIN_PEP517_ARGS="--features as-in-tests" \
		$(UV) pip install --quiet --python $(BIN)/python --no-deps --build-constraints requirements-dev.txt --editable .
	@touch $@

.PHONY: install
install: $(ENGINE) $(VENV)/.installed ## build, and install into .venv

.PHONY: torch
torch: $(VENV)/.installed | $(filter .cache/uv/bin/uv,$(UV)) ## install torch as well into .venv: for GPUs, fp32 and what else the CPU engine does not run
	$(UV) pip install --quiet --python $(BIN)/python -r requirements-torch.txt

# --- Running ------------------------------------------------------------------------------------------

define TRY
Once it says "ready", open that in a browser, or try this in another terminal:

  curl -N localhost:$(PORT)/generate_stream -H 'content-type: application/json' -d '{"inputs": "How do I serve another model?", "parameters": {"max_new_tokens": 60}}'

endef
export TRY

.PHONY: serve
serve: install ## build, install and serve the model that ships, on port 3000 (ARGS= for more flags)
	@echo "Penstock will be at http://localhost:$(PORT). $$TRY"
	@exec $(BIN)/penstock --port $(PORT) $(ARGS)

# --- Testing ------------------------------------------------------------------------------------------

# Rust is compiled beside whatever is installed. Then what waits, which is servers and their clients, runs beside what computes: Rust's tests,
# linters, kernels, worker and models, which give way to it.
.PHONY: test
test: ## lint, and run the tests that CI runs
	$(MAKE) --jobs 2 build-rust-tests environments
	$(MAKE) install
	$(MAKE) --jobs 2 test-serving test-computing
	$(MAKE) test-alone

# The binary that the tests start is the one that `make install` makes, and is compiled once.
AS_IN_TESTS := --features penstock/as-in-tests

.PHONY: build-rust-tests
build-rust-tests: # with as many jobs as cargo thinks right
	MAKEFLAGS= cargo test --quiet --locked --workspace --all-targets $(AS_IN_TESTS) --no-run

.PHONY: environments
environments: $(DEVELOPED) $(ENGINE) client-environments

.PHONY: lint
lint: $(DEVELOPED) ## formatters, linters and type checkers
	cargo fmt --all --check
	$(if $(filter clippy-driver,$(RUSTC_WORKSPACE_WRAPPER)),,MAKEFLAGS= cargo clippy --quiet --locked --workspace --all-targets -- -D warnings)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy integration-tests

.PHONY: audit
audit: | $(filter .cache/uv/bin/uv,$(UV)) ## known vulnerabilities, licences and sources of all dependencies; fails where it cannot look
	UV=$(UV) .ci/audit

.PHONY: test-rust
test-rust: ## tests of router and launcher
	MAKEFLAGS= cargo test --locked --workspace $(AS_IN_TESTS)

# What measures time runs after the rest. Only its files are collected.
PYTEST := $(BIN)/python -m pytest
BESIDE := -m 'not tail and not alone' --dist worksteal --numprocesses
ALONE := -m 'alone and not tail'
MEASURED = $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark[.]alone' $(1))
NO_CLIENTS := --ignore integration-tests/test_clients.py
# Each model beside what transformers makes of it: mostly in one process, without a server.
PARITY := integration-tests/parity
NICE := nice -n 5

.PHONY: test-serving
test-serving: install $(DEVELOPED) client-environments
	$(PYTEST) $(BESIDE) 3 integration-tests --ignore $(PARITY)

# One after the other: a line each, and no target that make could begin before its turn.
.PHONY: test-computing
test-computing: install $(DEVELOPED)
	$(NICE) $(MAKE) test-rust
	$(NICE) $(MAKE) lint
	OMP_NUM_THREADS=1 $(NICE) $(PYTEST) $(BESIDE) 2 kernels/tests
	OMP_NUM_THREADS=1 $(NICE) $(PYTEST) $(BESIDE) 3 server/tests
	OMP_NUM_THREADS=1 $(NICE) $(PYTEST) $(BESIDE) 2 $(PARITY)

.PHONY: test-alone
test-alone: install $(DEVELOPED)
	$(PYTEST) $(ALONE) $(call MEASURED,server/tests)
	$(PYTEST) $(ALONE) $(call MEASURED,integration-tests)

.PHONY: test-python
test-python: install $(DEVELOPED) ## tests of worker and kernels
	$(PYTEST) kernels/tests
	$(PYTEST) server/tests

.PHONY: test-integration
test-integration: install $(DEVELOPED) ## tests with the real server
	$(PYTEST) integration-tests $(NO_CLIENTS)

# Each client library in an environment of its own, as its requirements pin it. Without npm those for Node are
# left out, and their tests say so.
CLIENTS := integration-tests/clients
CLIENT_ENVIRONMENTS := $(patsubst $(CLIENTS)/%/requirements.txt,.cache/clients/%/.installed,\
	$(wildcard $(CLIENTS)/*/requirements.txt)) \
	$(if $(shell command -v npm),.cache/clients/node/.installed)

.cache/clients/%/.installed: $(CLIENTS)/%/requirements.txt | $(VENV)/.requirements
	$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	$(UV) pip install --quiet --python $(@D)/bin/python -r $<
	@touch $@

.cache/clients/node/.installed: $(CLIENTS)/node/package.json $(CLIENTS)/node/package-lock.json
	@mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

.PHONY: client-environments
client-environments: $(CLIENT_ENVIRONMENTS)

.PHONY: test-clients
test-clients: install $(DEVELOPED) client-environments ## tests of client libraries, and the examples
	$(PYTEST) --numprocesses 2 --dist load integration-tests/test_clients.py

# Behind `make test`, each by itself as well. Here a test that cannot run has failed.
TAIL := tail-schedules tail-tests tail-on-torch tail-parity tail-arm
test-all $(TAIL): export PENSTOCK_TEST_EVERYTHING := 1
.PHONY: test-all $(TAIL)
test-all: test ## the long tail as well, whose parts are targets: tail-schedules tail-tests tail-on-torch tail-parity tail-arm
	$(foreach part,$(TAIL),$(MAKE) $(part) &&) :

tail-schedules: # thousands of them in virtual time, and of operations of the core
	PENSTOCK_SIMULATIONS=5000 cargo test --locked --workspace $(AS_IN_TESTS) --lib in_every_schedule
	PROPTEST_CASES=2000 cargo test --locked --package penstock-core --lib tests::random

TAIL_BESIDE := --numprocesses 2 --dist loadfile
ON_ARM := kernels/tests/test_other_processors.py
OF_A_PAGE := server/tests/test_encoder_decoder.py
tail-tests: install $(DEVELOPED) client-environments
	OMP_NUM_THREADS=1 $(PYTEST) $(TAIL_BESIDE) server/tests --ignore $(OF_A_PAGE) -m 'tail and not alone'
	$(PYTEST) $(OF_A_PAGE) -m '' # what its table says is of all its cases, in one process
	OMP_NUM_THREADS=1 $(PYTEST) $(TAIL_BESIDE) kernels/tests --ignore $(ON_ARM) -m 'tail and not alone'
	$(PYTEST) $(TAIL_BESIDE) integration-tests --ignore $(PARITY) -m 'tail and not alone'
	$(PYTEST) $(call MEASURED,integration-tests) -m 'tail and alone'

tail-arm: install $(DEVELOPED) # the engine's tests under QEMU
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 2 --dist load $(ON_ARM) -m tail

tail-on-torch: install $(DEVELOPED) # what the CPU engine has computed
	PENSTOCK_TEST_ON_TORCH=1 $(PYTEST) $(TAIL_BESIDE) $(shell grep -lE 'EXACT|exact: wire' integration-tests/test_*.py)

# The page is of what all processes saw.
PARITY_SEEN := $(abspath .cache/parity-seen.jsonl)
tail-parity: export PENSTOCK_SEEN := $(PARITY_SEEN)
tail-parity: install $(DEVELOPED) # every family served over HTTP, every architecture of transformers
	: > $(PARITY_SEEN)
	OMP_NUM_THREADS=1 $(PYTEST) $(TAIL_BESIDE) $(PARITY) -m '' --ignore $(PARITY)/test_the_page.py
	$(PYTEST) $(PARITY)/test_the_page.py -m ''

# libFuzzer's counters are of LLVM and need no nightly Rust; with a target they are in no build script.
FUZZ_SECONDS ?= 60
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 --cfg fuzzing

.PHONY: fuzz
fuzz: ## search for chat templates that break the interpreter, for FUZZ_SECONDS (60)
	@mkdir -p target/fuzz/found
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo run --release --locked --manifest-path router/template/fuzz/Cargo.toml --target-dir target/fuzz \
		--target "$$(rustc -vV | sed -n 's/^host: //p')" -- -max_total_time=$(FUZZ_SECONDS) -timeout=30 -max_len=16384 \
		-artifact_prefix=target/fuzz/ target/fuzz/found integration-tests/chat_templates

.PHONY: golden
golden: install $(DEVELOPED) client-environments ## record anew what clients send: integration-tests/golden
	PENSTOCK_WRITE_GOLDEN=1 $(BIN)/python -m pytest integration-tests/test_clients.py -k works_unmodified
	git diff --stat integration-tests/golden

.PHONY: test-gpu
test-gpu: install $(DEVELOPED) ## kernels, worker and families on this machine's GPU
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "make test-gpu: torch sees no GPU")'
	PENSTOCK_TEST_DEVICE=cuda $(BIN)/python -m pytest kernels/tests -k gpu
	PENSTOCK_TEST_DEVICE=cuda $(BIN)/python -m pytest server/tests
	PENSTOCK_TEST_DEVICE=cuda $(BIN)/python -m pytest integration-tests/parity/test_families.py

# Beside the installed binary, and with its Python.
$(BIN)/penstock-release: $(VENV)/.installed
	cargo build --release --locked --package penstock
	@install $(TARGET)/release/penstock $@

.PHONY: release
release: install $(DEVELOPED) $(BIN)/penstock-release ## the binary as the wheel has it, for measurements: .venv/bin/penstock-release

.PHONY: bench
bench: release ## the measurements of benchmarks/RESULTS.md
	cargo bench --locked -p penstock-core --bench scheduler
	PYTHONPATH=$(abspath integration-tests/null_worker) cargo bench --locked -p penstock-core --bench step_overhead -- \
		$(BIN)/python -m penstock.worker --model-dir server/penstock/tiny/model
	cargo bench --locked -p penstock-router --bench streaming
	for script in start prefix throughput structured recovery prompts long_prompts; do $(BIN)/python benchmarks/$$script.py; done
	if [ -f "$$PENSTOCK_SCHEMAS" ]; then cargo run --release --locked --example maskbench -- "$$PENSTOCK_SCHEMAS"; fi

.PHONY: soak
soak: release ## half an hour of good and hostile traffic with kills; memory, descriptors and latencies stay
	$(BIN)/python benchmarks/soak.py

# --- Making what is committed -------------------------------------------------------------------------

COMPILE := $(UV) pip compile --quiet --python-version 3.11 --no-annotate --no-header --no-emit-index-url
HEADER := \# Compiled by `make requirements` from the .in file of this name. Not edited by hand.

.PHONY: requirements
requirements: | $(filter .cache/uv/bin/uv,$(UV)) ## compile requirements*.txt anew
	$(COMPILE) requirements.in --output-file requirements.txt
	$(COMPILE) requirements-torch.in --constraints requirements.txt --output-file requirements-torch.txt
	$(COMPILE) requirements-dev.in --constraints requirements-torch.txt --output-file requirements-dev.txt
	for folder in $(CLIENTS)/*/requirements.in; do \
		$(COMPILE) $$folder --output-file $${folder%.in}.txt && sed -i '1i $(HEADER)' $${folder%.in}.txt; done
	sed -i '1i $(HEADER)' requirements.txt requirements-torch.txt requirements-dev.txt

# npm adds addresses to a lock file, of packages and of who is to be thanked for them; neither is committed.
.PHONY: client-lock
client-lock: ## lock what integration-tests/clients/node/package.json names
	cd $(CLIENTS)/node && npm install --silent --package-lock-only --omit-lockfile-registry-resolved
	$(PYTHON) -c 'import json, sys; path = sys.argv[1]; lock = json.load(open(path)); \
		[package.pop("funding", None) for package in lock["packages"].values()]; \
		open(path, "w").write(json.dumps(lock, indent=2) + "\n")' $(CLIENTS)/node/package-lock.json

.PHONY: model
model: install $(DEVELOPED) ## train the model that ships anew (an hour or so)
	$(BIN)/python -m penstock.tiny.train

# --- Packaging ----------------------------------------------------------------------------------------

WHEEL := $(UV) tool run --quiet --python $(PYTHON) wheel@0.45.1

# Where in the source an address of the binary is, a debugger and `addr2line` read in dist/penstock.debug.
.PHONY: wheel
wheel: | $(filter .cache/uv/bin/uv,$(UV)) ## build the wheel into dist/, and the binary's symbols beside it
	rm -rf dist
	$(UV) build --quiet --wheel --python $(PYTHON) --build-constraints requirements-dev.txt --out-dir dist .
	$(WHEEL) unpack --dest dist/unpacked dist/*.whl >/dev/null
	binary=$$(echo dist/unpacked/*/*.data/scripts/penstock); \
		objcopy --only-keep-debug "$$binary" dist/penstock.debug; \
		objcopy --strip-unneeded --add-gnu-debuglink=dist/penstock.debug "$$binary"
	$(WHEEL) pack --dest-dir dist dist/unpacked/* >/dev/null
	rm -r dist/unpacked

PREFIX ?= dist/penstock

.PHONY: deploy
deploy: wheel ## install the wheel and its pinned requirements into PREFIX, as the images do
	$(UV) venv --quiet --clear --python $(PYTHON) $(PREFIX)
	$(UV) pip install --quiet --compile-bytecode --link-mode copy --python $(PREFIX)/bin/python \
		-r requirements.txt dist/*.whl

.PHONY: deploy-torch
deploy-torch: | $(filter .cache/uv/bin/uv,$(UV)) ## install torch as well into PREFIX: for GPUs, and what the CPU engine does not run
	$(UV) pip install --quiet --compile-bytecode --link-mode copy --python $(PREFIX)/bin/python -r requirements-torch.txt

.PHONY: trim-cpu
trim-cpu: ## take out of PREFIX what only a GPU uses
	$(PREFIX)/bin/python deploy/trim_cpu.py

.PHONY: test-image
test-image: ## build the CPU image with buildah and stream from it (as root, on Debian)
	deploy/test-image

.PHONY: clean
clean: ## remove what was built, but not .venv
	cargo clean --quiet
	rm -rf dist .cache
