"""Client libraries as people install them, against the real server: each suite of `clients/` runs in the pinned
environment that `make test-clients` has made for it in `.cache/clients`, with one server for all of them.

Each suite is one test here; what it prints names its own tests. What its golden tests send is compared with
`golden/`; with PENSTOCK_WRITE_GOLDEN set (`make golden`) it is written there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import golden
from echoing import launch_echo
from launched import Launched
from processes import wait_for
from programs import installed
from recorder import Recorder

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
ENVIRONMENTS = HERE.parent / ".cache" / "clients"
FOLDER = HERE.parent / "examples"
PAGE = HERE.parent / "docs" / "clients.md"

KEY = "a-key-of-the-tests"


@dataclass(frozen=True)
class Suite:
    folder: str
    environment: str
    # Whose versions the golden file names: the client, and what it sends its requests with.
    packages: tuple[str, ...]


SUITES = {
    "agents": Suite("agents", "agents", ("instructor", "openai", "openai-agents", "pydantic-ai-slim")),
    "anthropic": Suite("anthropic", "anthropic", ("anthropic",)),
    "curl": Suite("curl", "", ()),
    "haystack": Suite("haystack", "haystack", ("haystack-ai", "huggingface-api-haystack", "openai")),
    "haystack_2": Suite("haystack_2", "haystack_2", ("haystack-ai", "huggingface-hub", "openai")),
    "huggingface_hub": Suite("huggingface_hub", "huggingface_hub", ("huggingface-hub",)),
    "huggingface_hub_0": Suite("huggingface_hub", "text_generation", ("huggingface-hub",)),
    "langchain": Suite(
        "langchain", "langchain", ("langchain-huggingface", "langchain-openai", "huggingface-hub", "openai")
    ),
    "litellm": Suite("litellm", "litellm", ("litellm", "openai")),
    "llama_index": Suite(
        "llama_index",
        "llama_index",
        ("llama-index-llms-huggingface-api", "llama-index-llms-openai-like", "huggingface-hub", "openai"),
    ),
    "llama_index_tgi": Suite(
        "llama_index_tgi", "llama_index_tgi", ("llama-index-llms-text-generation-inference", "tgi")
    ),
    "node": Suite(
        "node",
        "node",
        ("@ai-sdk/openai", "@ai-sdk/openai-compatible", "@huggingface/inference", "ai", "openai"),
    ),
    "openai": Suite("openai", "openai", ("openai",)),
    "text_generation": Suite("text_generation", "text_generation", ("text-generation",)),
}

# Nothing but loopback is to be reached: whoever asks for another host is sent to a port where nobody listens.
# The rest turns off what some clients would ask other hosts for; docs/clients.md names them.
ALONE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    arguments = ("--api-key", KEY, "--max-concurrent-requests", "1")
    with Launched(tmp_path_factory.mktemp("guarded"), *arguments) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Its worker is halted before it has loaded the model, so that it stays at the start. On a busy machine one may be ready before."""
    while True:
        with Launched(tmp_path_factory.mktemp("starting"), "--load-timeout", "7200") as launched:
            launched.worker().signal(signal.SIGSTOP)
            if wait_for(launched.health, "it to listen").status == 503:
                yield launched
                return


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Its model thinks what it is asked to."""
    with launch_echo(tmp_path_factory.mktemp("thinking")) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def recorder(server: Launched) -> Iterator[Recorder]:
    with Recorder(server.address) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def servers(
    server: Launched,
    guarded: Launched,
    starting: Launched,
    thinking: Launched,
    recorder: Recorder,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """The environment of a client: where the servers are, and nothing of who runs the tests, such as a token."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        **ALONE,
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PENSTOCK_URL": server.url,
        "PENSTOCK_RECORDER": recorder.address.url,
        "PENSTOCK_GUARDED_URL": guarded.url,
        "PENSTOCK_KEY": KEY,
        "PENSTOCK_STARTING_URL": starting.url,
        "PENSTOCK_THINKING_URL": thinking.url,
    }


@pytest.mark.parametrize("name", SUITES)
def test_a_client_works_unmodified(name: str, servers: Mapping[str, str], recorder: Recorder) -> None:
    suite = SUITES[name]
    command, folder = how_to_test(suite)
    run = subprocess.run(
        command,
        cwd=folder,
        env=servers,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(run.stdout, run.stderr)
    recorded = {"versions": versions(suite), "requests": recorder.take()}
    assert run.returncode == 0, f"{name}: {' '.join(command)} in {folder}"
    assert recorded["requests"], "no test of this suite is marked as golden"
    if os.environ.get("PENSTOCK_WRITE_GOLDEN"):
        (golden.FOLDER / f"{name}.json").write_text(golden.written(recorded))
    else:
        difference = golden.difference(name, recorded)
        assert not difference, f"it sends something else than before; `make golden` records it:\n{difference}"


def how_to_test(suite: Suite) -> tuple[list[str], Path]:
    if suite.environment == "node":
        installed = node()
        for test in (CLIENTS / "node").glob("*.mjs"):
            shutil.copy(test, installed)  # node looks for packages beside the file that imports them
        tests = sorted(path.name for path in installed.glob("*.test.mjs"))
        return ["node", "--test", "--test-concurrency=1", *tests], installed
    return [str(python(suite.environment)), "-m", "pytest", "-q", suite.folder], CLIENTS


def python(environment: str) -> Path:
    if not environment:
        return Path(sys.executable)
    path = ENVIRONMENTS / environment / "bin" / "python"
    assert path.exists(), f"{path} is missing: `make client-environments` makes it"
    return path


def node() -> Path:
    """The folder with `node_modules`."""
    installed("npm", package="npm")
    installed("node", package="nodejs")
    folder = ENVIRONMENTS / "node"
    assert (folder / "node_modules").exists(), f"{folder} is missing: `make client-environments` makes it"
    return folder


def versions(suite: Suite) -> dict[str, str]:
    """As they are pinned."""
    if not suite.packages:
        return {}
    if suite.environment == "node":
        pinned = dict(
            re.findall(r'"([@\w/-]+)": "([\d.]+)"', (CLIENTS / "node" / "package.json").read_text())
        )
    else:
        text = (CLIENTS / suite.environment / "requirements.txt").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    return {package: pinned[package] for package in suite.packages}


# The examples, and the page that shows them.

# The environment that each file of examples/ runs in.
EXAMPLES = {
    "agents_client.py": "agents",
    "anthropic_client.py": "anthropic",
    "curl_client.sh": "",
    "haystack_2_client.py": "haystack_2",
    "haystack_client.py": "haystack",
    "huggingface_hub_client.py": "huggingface_hub",
    "huggingface_inference_client.mjs": "node",
    "langchain_client.py": "langchain",
    "litellm_client.py": "litellm",
    "llama_index_client.py": "llama_index",
    "llama_index_tgi_client.py": "llama_index_tgi",
    "openai_client.mjs": "node",
    "openai_client.py": "openai",
    "openai_tools_client.py": "openai",
    "text_generation_client.py": "text_generation",
    "vercel_ai_client.mjs": "node",
    "watermark.py": "",
}
# A file of examples/ in the page: its name, its language, its text.
SHOWN = re.compile(r"^<!-- examples/(\S+) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_works(name: str, servers: Mapping[str, str], tmp_path: Path) -> None:
    """With the address of this server in place of its own, it prints something and ends well."""
    text = (FOLDER / name).read_text()
    assert "localhost:3000" in text
    example = tmp_path / name
    example.write_text(text.replace("localhost:3000", servers["PENSTOCK_URL"].removeprefix("http://")))
    if example.suffix == ".mjs":
        # node looks for packages beside the file that imports them
        (tmp_path / "node_modules").symlink_to(node() / "node_modules")
        command = ["node"]
    elif example.suffix == ".sh":
        command = ["sh", "-e"]
    else:
        command = [str(python(EXAMPLES[name]))]
    run = subprocess.run(
        [*command, str(example)],
        cwd=tmp_path,
        env=servers,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    assert run.stdout.strip(), "it says nothing"
    if name == "watermark.py":
        bearing, plain = run.stdout.splitlines()
        assert bearing.endswith(", marked") and not plain.endswith(", marked")


def test_every_example_is_run() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(EXAMPLES)


def test_the_page_shows_every_example_as_it_is() -> None:
    page = SHOWN.sub(
        lambda shown: f"<!-- examples/{shown[1]} -->\n```{shown[2]}\n{(FOLDER / shown[1]).read_text()}```",
        PAGE.read_text(),
    )
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "PENSTOCK_WRITE_DOCS=1 writes docs/clients.md anew"
    assert sorted(name for name, _, _ in SHOWN.findall(page)) == sorted(EXAMPLES)
    assert page.count("\n```") == 2 * len(EXAMPLES), "all code of the page is in a file that is run"


def test_there_is_an_example_for_every_environment() -> None:
    assert {suite.environment for suite in SUITES.values()} <= set(EXAMPLES.values())


def test_the_page_says_every_version() -> None:
    page = PAGE.read_text()
    for suite in SUITES.values():
        for package, version in versions(suite).items():
            assert re.search(rf"`{re.escape(package)}` {re.escape(version)}\b", page), f"{package} {version}"


def test_what_is_pinned_names_no_address() -> None:
    for path in (*CLIENTS.glob("*/requirements.*"), *CLIENTS.glob("node/package*.json")):
        assert "://" not in path.read_text(), f"{path} names an address"
