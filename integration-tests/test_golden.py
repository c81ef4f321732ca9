"""What clients were seen to send, sent again without them: the server still answers each with the status, the
type and everything in it that the client was given before. `make golden` records anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import golden
import wire


def recorded() -> Iterator[object]:
    for path in sorted(golden.FOLDER.glob("*.json")):
        for test, requests in golden.read(path.stem)["requests"].items():
            yield pytest.param(requests, id=f"{path.stem}-{test}")


@pytest.mark.parametrize("requests", list(recorded()))
def test_a_recorded_request_gets_the_answer_it_got(
    address: wire.Address, requests: list[dict[str, golden.Json]]
) -> None:
    for request in requests:
        reply = wire.call(
            address, request["method"], request["path"], request["body"], headers=request["headers"]
        )
        now = golden.answer(reply.status, reply.headers, reply.body)
        then = request["answer"]
        assert (now["status"], now["type"]) == (then["status"], then["type"]), reply.text
        assert now.get("done") == then.get("done"), "the end of the stream"
        for part in ("shape", "events"):
            if part in then:
                assert golden.misses(then[part], now[part]) == []


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
        ({"a": [1, "x"]}, {"a": [True]}, 1),
        ({"a": "x"}, {"a": {"b": 1}}, 1),
    ],
)
def test_what_a_client_would_miss_is_found(then: golden.Json, now: golden.Json, missing: int) -> None:
    assert len(golden.misses(golden.shape(then), golden.shape(now))) == missing


def test_a_user_agent_is_known_by_its_family() -> None:
    assert golden.family("OpenAI/Python 3.54.0") == "OpenAI"
    assert (
        golden.family("unknown/None; hf_hub/2.4.0; python/3.11.7; torch/2.15")
        == "unknown hf_hub python torch"
    )
