"""Log injection: what a client writes never ends a line of the log, moves a cursor, or fills the disk."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import wire
from launched import Launched
from processes import wait_for
from prompts import user

FORGED = "2026-01-01T00:00:00.000000Z  INFO forged"
# What ends a line, moves a cursor or reorders a text.
HOSTILE = f"a\r\n{FORGED}\u001b[2K\u001b]0;title\u0007\u0085\u2028{FORGED}\u2029\u202e\u0000\u009b2J"
CONTROLS = re.compile("[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z +(TRACE|DEBUG|INFO|WARN|ERROR) ")
LONG = "long\n" * 380_000  # nearly --payload-limit
RAISES = "{{ raise_exception(messages[0].content) }}"

CHAT = {"messages": user("x"), "max_tokens": 1}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"inputs": "x", "parameters": {"adapter_id": HOSTILE}}),
    ("/generate", {"inputs": "x", "parameters": {"adapter_id": LONG}}),
    ("/generate", {"inputs": "x", "parameters": {"grammar": {"type": HOSTILE}}}),
    ("/generate", {"inputs": "x", "parameters": {"top_p": HOSTILE}}),
    ("/generate", {"inputs": "x", "parameters": {"stop": [HOSTILE] * 9}}),
    ("/generate", {"inputs": "x", "parameters": {HOSTILE: 1, "top_p": 2}}),
    ("/v1/chat/completions", {**CHAT, "tool_choice": HOSTILE}),
    ("/v1/chat/completions", {**CHAT, "tool_choice": {"type": HOSTILE, "x": LONG}}),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": HOSTILE}]}),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": LONG}]}),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": HOSTILE}}),
    ("/v1/chat/completions", {**CHAT, "model": LONG}),
    ("/v1/chat/completions", {**CHAT, "user": LONG}),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {HOSTILE: 1}}),
    ("/v1/chat/completions", {**CHAT, "stop_token_ids": [HOSTILE]}),
    ("/v1/chat/completions", {**CHAT, HOSTILE: 1, "top_p": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": HOSTILE}]}]}),
    # The template raises what the client wrote.
    ("/v1/chat/completions", {"messages": user(HOSTILE)}),
    ("/v1/chat/completions", {"messages": user(LONG)}),
    ("/chat_tokenize", {"messages": user(HOSTILE)}),
    ("/chat_tokenize", {"messages": user(LONG)}),
    ("/v1/completions", {"prompt": "x", "suffix": HOSTILE}),
    ("/v1/completions", {"prompt": "x", "max_tokens": HOSTILE, "model": HOSTILE}),
    ("/vertex", {"instances": [{"inputs": "x", "parameters": {"adapter_id": HOSTILE}}]}),
    ("/v2/models/m/infer", {"inputs": [{"name": HOSTILE, "shape": [1], "datatype": HOSTILE, "data": ["x"]}]}),
]
# A member that is given twice is named in the error.
TWICE = ["{" + f"{json.dumps(name)}: 1, {json.dumps(name)}: 2" + "}" for name in (HOSTILE, LONG[:900_000])]
HEADS = [
    b"GET /no%0d%0asuch%1b[2K%e2%80%a8 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"%0a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\x1b[2K\xe2\x80\xa8\xc2\x85 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models/a%0d%0ab HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /no HTTP/1.1\r\nHost: x\r\nUser-Agent: a\x1b[2K\xe2\x80\xa8b\r\nX-Request-Id: a\x1b[2Kb\r\n\r\n",
    b"G\x1b[2KT /no HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW" * 2_000 + b" /generate HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nX-Request-Deadline-Ms: \xe2\x80\xa8\x1b[2K\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
]


def ask_everything(launched: Launched) -> None:
    address = launched.address
    for path, body in REQUESTS:
        reply = wire.post(address, path, body)
        assert 400 <= reply.status < 500, (path, reply)
        assert len(reply.body) < 30_000, (path, len(reply.body))
    for twice in TWICE:
        for path in ("/generate", "/v1/chat/completions", "/tokenize", "/invocations"):
            assert 400 <= wire.post(address, path, twice).status < 500
    for head in HEADS:
        with wire.exchange(address, head) as connection:
            connection.settimeout(10)
            with contextlib.suppress(OSError):  # the server may have closed it already
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass
    # The last line of all, so that the others were written.
    wire.get(address, "/no/such", headers={"x-request-id": "the-last"})
    wait_for(lambda: "the-last" in launched.stdout(), "the last line")


@pytest.fixture(scope="module", params=["info", "penstock_router=trace,penstock=trace,hyper=debug"])
def text_log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("text")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": RAISES, "eos_token": "<|end|>"}))
    arguments = ("--kserve", "--tokenizer-config-path", str(config), "--log-level", request.param)
    with Launched(folder / "run", *arguments, null_worker=True) as launched:
        launched.wait_ready()
        ask_everything(launched)
        yield (launched.folder / "stdout").read_bytes().decode()


def test_no_line_of_a_text_log_is_a_clients(text_log: str) -> None:
    """Newlines, carriage returns, ANSI sequences and separators of Unicode in names, paths, heads, duplicate members
    and in what a template raises: every line is one event of the server's own."""
    lines = text_log.split("\n")
    assert lines.pop() == "" and len(lines) > len(REQUESTS)
    for line in lines:
        assert LINE.match(line), line[:500]
        assert not CONTROLS.search(line), line[:500]
        # The text may be told, within a line that is the server's.
        assert not line.startswith(FORGED)


def test_no_line_of_a_text_log_is_long(text_log: str) -> None:
    """Texts of 1.9 MB wherever a client may write one, and a template that raises its message."""
    assert max(len(line) for line in text_log.split("\n")) < 6_000
    assert len(text_log) < 500_000


def test_a_json_log_has_one_short_object_a_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same requests with `--json-output`."""
    folder = tmp_path_factory.mktemp("json")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": RAISES, "eos_token": "<|end|>"}))
    with Launched(
        folder / "run", "--kserve", "--json-output", "--tokenizer-config-path", str(config), null_worker=True
    ) as launched:
        launched.wait_ready()
        ask_everything(launched)
        log = (launched.folder / "stdout").read_bytes().decode()
    lines = log.split("\n")
    assert lines.pop() == "" and len(lines) > len(REQUESTS)
    for line in lines:
        assert {"timestamp", "level"} <= set(json.loads(line)), line[:500]
        assert not CONTROLS.search(line), line[:500]
        assert len(line) < 6_000, line[:500]
