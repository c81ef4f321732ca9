"""What clients were seen to send, sent again without them (`pytest -m '' test_golden.py`): the server still answers each with the
status, the type and everything in it that the client was given before. `make golden` records anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import golden
import wire


def recorded() -> Iterator[object]:
    for path in sorted(golden.FOLDER.glob("*.json")):
        for test, requests in golden.read(path.stem)["requests"].items():
            yield pytest.param(requests, id=f"{path.stem}-{test}")


# The suites of clients compare the answers that they get: this is for whoever has no clients.
@pytest.mark.tail
@pytest.mark.parametrize("requests", list(recorded()))
def test_a_recorded_request_gets_the_answer_it_got(
    address: wire.Address, requests: list[dict[str, golden.Json]]
) -> None:
    for request in requests:
        reply = wire.call(
            address, request["method"], request["path"], request["body"], headers=request["headers"]
        )
        now = golden.answer(reply.status, reply.headers, reply.body)
        assert golden.missed(request["answer"], now) == [], reply.text


def test_every_suite_of_clients_has_its_recorded_requests() -> None:
    from test_clients import SUITES

    assert {path.stem for path in golden.FOLDER.glob("*.json")} == set(SUITES)


# The comparison itself.


@pytest.mark.parametrize(
    ("then", "now", "missing"),
    [
        ({"a": 1, "b": [{"c": None}, {"c": "x"}]}, {"a": 2.5, "b": [{"c": "y"}], "more": 1}, 0),
        ({"a": 1}, {"b": 1}, 1),
        ({"a": {"b": "x"}}, {"a": {"b": None}}, 1),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {}]}, 1),
        ({"a": [{"b": 1}, {}]}, {"a": [{}]}, 0),
        ({"a": [{"b": 1}]}, {"a": []}, 1),
        ({"a": []}, {"a": [{"b": 1}]}, 0),
        ({"a": [1, "x"]}, {"a": [True]}, 1),
        ({"a": "x"}, {"a": {"b": 1}}, 1),
    ],
)
def test_what_a_client_would_miss_is_found(then: golden.Json, now: golden.Json, missing: int) -> None:
    assert len(golden.misses(golden.shape(then), golden.shape(now))) == missing


TOKEN = {"choices": [{"delta": {"content": "x"}, "finish_reason": None}], "usage": None}
CALL = {"choices": [{"delta": {"tool_calls": [{"id": "y"}]}, "finish_reason": None}], "usage": None}
LAST = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 2}}


@pytest.mark.parametrize(
    ("now", "missing"),
    [
        ([TOKEN, CALL, LAST], []),
        ([CALL, TOKEN, TOKEN, {**LAST, "more": 1}], []),
        ([CALL, LAST], [".choices[].delta.content is string in no event"]),
        ([TOKEN, LAST], [".choices[].delta.tool_calls[].id is string in no event"]),
        (
            [TOKEN, CALL],
            [".choices[].finish_reason is string in no event", ".usage.total_tokens is number in no event"],
        ),
        ([], None),
    ],
)
def test_what_a_stream_has_lost_is_found(now: list[golden.Json], missing: list[str] | None) -> None:
    def answer(events: list[golden.Json]) -> golden.Json:
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return golden.answer(200, {"content-type": "text/event-stream"}, body.encode())

    found = golden.missed(answer([TOKEN, CALL, LAST]), answer(now))
    assert found == missing if missing is not None else found


def test_what_a_suite_was_answered_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)

    def recorded(body: bytes) -> golden.Json:
        sent = golden.request("POST", "/", {}, b"{}")
        answer = golden.answer(200, {"content-type": "application/json"}, body)
        return {"versions": {}, "requests": {"test_a": [{**sent, "answer": answer}]}}

    assert golden.missed({"status": 200, "type": ""}, {"status": 200, "type": ""}) == []
    (tmp_path / "it.json").write_text(golden.written(recorded(b'{"a": [1]}')))
    assert golden.difference("it", recorded(b'{"a": [2], "b": 1}')) == ""
    assert golden.difference("it", recorded(b'{"a": []}')) == "test_a, /: .a is empty"


def test_a_user_agent_is_known_by_its_family() -> None:
    assert golden.family("OpenAI/Python 3.54.0") == "OpenAI"
    assert (
        golden.family("unknown/None; hf_hub/2.4.0; python/3.11.7; torch/2.15")
        == "unknown hf_hub python torch"
    )
