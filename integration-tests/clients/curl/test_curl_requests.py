"""curl as the documentation uses it. What it is answered, header by header, is tested in `../../test_curl.py`."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from conftest import Guarded, Noticed
from prompts import ADD, as_text, user

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

GENERATE = {"inputs": as_text(ADD), "parameters": {"max_new_tokens": 6, "details": True}}


def curl(url: str, body: object = None, *options: str) -> str:
    data = [] if body is None else ["-H", "content-type: application/json", "-d", json.dumps(body)]
    run = subprocess.run(
        ["curl", "-sSN", "--max-time", "120", *data, *options, url],
        capture_output=True,
        check=True,
        text=True,
    )
    return run.stdout


@pytest.mark.golden
@pytest.mark.parametrize("path", ["/generate", "/", "/generate_stream", "/invocations", "/tokenize"])
def test_routes_of_tgi(url: str, path: str) -> None:
    assert curl(url + path, GENERATE)


@pytest.mark.golden
def test_routes_of_openai(url: str) -> None:
    answer: Any = json.loads(curl(f"{url}/v1/chat/completions", {"messages": user(ADD), "max_tokens": 6}))
    assert answer["choices"][0]["message"]["content"]
    stream = {"prompt": as_text(ADD), "max_tokens": 6, "stream": True}
    assert curl(f"{url}/v1/completions", stream).endswith("data: [DONE]\n\n")
    assert json.loads(curl(f"{url}/chat_tokenize", {"messages": user(ADD)}))["templated_text"] == as_text(ADD)


@pytest.mark.golden
@pytest.mark.parametrize("path", ["/info", "/health", "/v1/models", "/metrics"])
def test_what_can_be_read(url: str, path: str) -> None:
    curl(url + path, None, "--fail")


@pytest.mark.golden
def test_a_wrong_body(url: str) -> None:
    assert (
        "top_p" in json.loads(curl(f"{url}/generate", {"inputs": "x", "parameters": {"top_p": 2}}))["error"]
    )


def test_statuses(guarded: Guarded, busy: Guarded, starting: str) -> None:
    write = ("-o", "/dev/null", "-w", "%{http_code}")
    assert curl(f"{starting}/generate", GENERATE, *write) == "503"
    assert curl(f"{guarded.url}/generate", GENERATE, *write) == "401"
    key = ("-H", f"authorization: Bearer {busy.key}")
    assert curl(f"{busy.url}/generate", GENERATE, *write, *key) == "429"


def test_a_stream_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1_900, "ignore_eos": True, "stream": True})
    command = ["curl", "-sSN", "-H", "content-type: application/json", "-d", body, f"{url}/v1/completions"]
    for _ in noticed():
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline().startswith(b"data:")
            process.terminate()
