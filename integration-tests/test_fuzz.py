"""Whatever is sent, the server answers in time, without an error of its own, and serves afterwards: mutated
requests of `benchmarks/fuzz.py`, 2,000 in the long tail, and schemathesis over the server's own OpenAPI document. PENSTOCK_FUZZ_SEED makes
other requests than those of every day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wire
from conftest import assert_no_stack_trace
from launched import Launched

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import fuzz  # noqa: E402

SEED = int(os.environ.get("PENSTOCK_FUZZ_SEED", "1"))
REQUESTS = (100, pytest.param(2000, marks=pytest.mark.tail))
# Of each route.
EXAMPLES = (4, pytest.param(8, marks=pytest.mark.tail))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    # On one core: on a busy machine, a second computing thread that does not run holds up the first.
    core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    with Launched(tmp_path_factory.mktemp("fuzzed"), *fuzz.FLAGS, prefix=core) as launched:
        yield launched.wait_ready()
        assert_no_stack_trace(launched.log())


def restarts(launched: Launched) -> int:
    return int(wire.get(launched.address, "/info").json()["worker_restarts"])


@pytest.mark.parametrize("requests", REQUESTS)
def test_mutated_requests(fuzzed: Launched, capsys: pytest.CaptureFixture[str], requests: int) -> None:
    address = (fuzzed.address.host, fuzzed.address.port)
    failed = fuzz.fuzz(address, fuzzed.process.pid, SEED, requests, clients=8)
    assert not failed, capsys.readouterr().out
    assert restarts(fuzzed) == 0


@pytest.mark.parametrize("examples", EXAMPLES)
def test_what_the_openapi_document_allows_and_what_it_does_not(
    fuzzed: Launched, tmp_path: Path, examples: int
) -> None:
    document = wire.get(fuzzed.address, "/api-doc/openapi.json").json()
    for route in document["paths"].values():
        for operation in route.values():
            for answer in operation["responses"].values():
                # The document says what an event's data is; schemathesis takes that for the event.
                answer.get("content", {}).get("text/event-stream", {}).pop("schema", None)
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    # A deadline that passes is the client's own.
    (tmp_path / "config.toml").write_text(
        '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "504"]\n'
    )
    checks = [
        *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
        *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
    ]
    command = [str(Path(sys.executable).with_name("st")), "--config-file", "config.toml"]
    command += ["run", "openapi.json", "--url", fuzzed.url, "--phases", "examples,fuzzing"]
    command += ["--max-examples", str(examples), "--seed", str(SEED)]
    command += ["--checks", ",".join(checks), "--suppress-health-check", "all"]
    command += ["--request-timeout", str(fuzz.TIME_LIMIT), "--no-color", "--warnings", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, f"PENSTOCK_FUZZ_SEED={SEED}\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
    assert restarts(fuzzed) == 0
    fuzz.good_answer((fuzzed.address.host, fuzzed.address.port))
