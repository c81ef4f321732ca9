"""What answers say of themselves in their headers, route by route as in TGI, and what the log says of prompts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import Launched
from processes import wait_for
from prompts import user

SHORT = {"max_new_tokens": 4}
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("/", {"inputs": "a b c", "parameters": SHORT}),
    ("/generate", {"inputs": "a b c", "parameters": SHORT}),
    ("/invocations", {"inputs": "a b c", "parameters": SHORT}),
    ("/v1/completions", {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": user("a b c"), "max_tokens": 4, "ignore_eos": True}),
]
STREAMED: list[tuple[str, dict[str, Any]]] = [
    ("/generate_stream", {"inputs": "a b c", "parameters": SHORT}),
    *((path, {**body, "stream": True}) for path, body in WHOLE if path != "/generate"),
]
MILLISECONDS = ("x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token")
COUNTS = ("x-prompt-tokens", "x-generated-tokens")


@pytest.fixture(scope="module")
def outspoken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With COMPUTE_TYPE as a platform sets it, and prompts in the log."""
    folder = tmp_path_factory.mktemp("outspoken")
    with Launched(
        folder, "--json-output", "--log-prompts", env={"COMPUTE_TYPE": "2-our-own"}, null_worker=True
    ) as launched:
        yield launched.wait_ready()


def phases(headers: Any) -> dict[str, float]:
    """What `Server-Timing` says, in milliseconds."""
    found = re.findall(r"(\w+);dur=([0-9.]+)", headers["server-timing"])
    return {name: float(time) for name, time in found}


@pytest.mark.parametrize(("path", "body"), WHOLE, ids=[path for path, _ in WHOLE])
def test_a_whole_answer_tells_where_its_time_went(
    outspoken: Launched, path: str, body: dict[str, Any]
) -> None:
    reply = wire.post(outspoken.address, path, body)
    assert reply.status == 200
    assert reply.headers["x-compute-type"] == "2-our-own"
    assert int(reply.headers["x-compute-characters"]) >= 5
    assert ("x-compute-time" in reply.headers) == (path != "/v1/completions")
    times = {name: int(reply.headers[name]) for name in MILLISECONDS}
    assert times["x-total-time"] >= times["x-inference-time"] >= times["x-time-per-token"]
    assert {name: int(reply.headers[name]) > 0 for name in COUNTS} == dict.fromkeys(COUNTS, True)
    timing = phases(reply.headers)
    assert list(timing) == ["validation", "queue", "prefill", "decode", "total"]
    assert sum(timing.values()) - timing["total"] <= timing["total"]
    assert abs(timing["total"] - times["x-total-time"]) < 1000
    assert "x-accel-buffering" not in reply.headers


@pytest.mark.parametrize(("path", "body"), STREAMED, ids=[path for path, _ in STREAMED])
def test_a_stream_tells_what_is_known_at_its_first_token(
    outspoken: Launched, path: str, body: dict[str, Any]
) -> None:
    with wire.Events(outspoken.address, path, body) as events:
        assert events.status == 200
        assert events.headers["x-compute-type"] == "2-our-own"
        assert int(events.headers["x-compute-characters"]) >= 5
        assert events.headers["x-accel-buffering"] == "no"
        assert not any(name in events.headers for name in (*MILLISECONDS, *COUNTS, "x-compute-time"))
        assert {"validation", "queue", "prefill", "total"} <= set(phases(events.headers))
        list(events)


@pytest.mark.parametrize("path", ["/tokenize", "/chat_tokenize", "/vertex", "/info", "/health"])
def test_other_routes_have_none_of_them(outspoken: Launched, path: str) -> None:
    bodies: dict[str, object] = {
        "/tokenize": {"inputs": "x"},
        "/chat_tokenize": {"messages": user("x")},
        "/vertex": {"instances": [{"inputs": "x", "parameters": SHORT}]},
    }
    method = "POST" if path in bodies else "GET"
    reply = wire.call(outspoken.address, method, path, bodies.get(path))
    assert reply.status == 200
    names = (*MILLISECONDS, *COUNTS, "x-compute-type", "x-compute-characters", "server-timing")
    assert not [name for name in names if name in reply.headers]


def test_without_compute_type_the_device_is_named(address: wire.Address) -> None:
    reply = wire.post(address, "/generate", {"inputs": "x", "parameters": SHORT})
    device = wire.get(address, "/info").json()["device_name"]
    words = re.findall(r"[a-z0-9]+", device.lower())
    assert reply.headers["x-compute-type"] == "-".join(["1", *words])


def line_about(launched: Launched, request_id: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        lines = (json.loads(line) for line in launched.stdout().splitlines())
        return next((line for line in lines if line.get("request_id") == request_id), None)

    return wait_for(find, f"a line about {request_id}")


def test_prompts_are_logged_when_asked_for(outspoken: Launched) -> None:
    body = {"prompt": ["the first é", "the second"], "max_tokens": 1, "n": 2, "temperature": 1}
    headers = {"x-request-id": "said-1"}
    assert wire.post(outspoken.address, "/v1/completions", body, headers=headers).status == 200
    assert json.loads(line_about(outspoken, "said-1")["prompts"]) == ["the first é", "the second"]


def test_no_text_of_a_client_is_logged_otherwise(launch_null: Launch) -> None:
    launched = launch_null("--json-output").wait_ready()
    secret = "sesameword"
    bodies: list[tuple[str, object]] = [
        ("/generate", {"inputs": secret, "parameters": SHORT}),
        ("/generate", {"inputs": {secret: secret}}),
        ("/v1/completions", {"prompt": {secret: secret}}),
        ("/v1/completions", {"prompt": secret, "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": {secret: 1}}]}),
        ("/tokenize", {"inputs": [secret]}),
    ]
    for number, (path, body) in enumerate(bodies):
        reply = wire.post(launched.address, path, body, headers={"x-request-id": f"quiet-{number}"})
        assert reply.headers["x-request-id"] == f"quiet-{number}"
        if reply.status != 200 or path != "/tokenize":
            assert line_about(launched, f"quiet-{number}")["status"] == reply.status
    assert secret not in launched.log()


def test_what_is_refused_on_any_route_is_one_line(outspoken: Launched) -> None:
    for number, (path, status) in enumerate([("/no/such", 404), ("/v1/models/other", 404)]):
        headers = {"x-request-id": f"lost-{number}"}
        assert wire.get(outspoken.address, path, headers=headers).status == status
        line = line_about(outspoken, f"lost-{number}")
        assert (line["route"], line["status"]) == (path, status)
