"""The routes that other routes are asked through, and those that only prepare: SageMaker's `/invocations`,
Vertex AI's `/vertex`, `/chat_tokenize`, one model by its name, and `best_of`."""

from __future__ import annotations

from typing import Any

import pytest

import wire
from prompts import ADD, PORT, REPEAT, as_text, user

GENERATE = {"inputs": as_text(ADD), "parameters": {"max_new_tokens": 20}}
CHAT = {"messages": user(ADD), "max_tokens": 20, "temperature": 0}
COMPLETION = {"prompt": as_text(ADD), "max_tokens": 20, "temperature": 0}


def without_chance(answer: Any) -> Any:
    """Without what differs between two answers to the same request."""
    if isinstance(answer, dict):
        chance = ("id", "created", "usage")
        return {key: without_chance(value) for key, value in answer.items() if key not in chance}
    return [without_chance(value) for value in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("path", "body"), [("/", GENERATE), ("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_invocations_answers_as_the_dialect_of_the_body(
    address: wire.Address, path: str, body: dict[str, Any]
) -> None:
    direct, through = (wire.post(address, route, body) for route in (path, "/invocations"))
    assert (through.status, direct.status) == (200, 200)
    assert without_chance(through.json()) == without_chance(direct.json())
    assert through.headers["x-generated-tokens"] == direct.headers["x-generated-tokens"]
    with wire.Events(address, "/invocations", {**body, "stream": True}) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        assert len(list(events)) > 1


@pytest.mark.parametrize("body", [{}, {"input": "x"}, {"inputs": None}])
def test_invocations_names_what_it_needs(address: wire.Address, body: object) -> None:
    reply = wire.post(address, "/invocations", body)
    assert reply.status == 422 and "`inputs`" in reply.json()["error"]


@pytest.mark.parametrize(("body", "status"), [("{", 400), ("[]", 422), ('{"inputs": 1}', 422)])
def test_invocations_refuses_as_the_other_routes_do(address: wire.Address, body: str, status: int) -> None:
    assert wire.post(address, "/invocations", body).status == status


def test_a_refusal_has_the_shape_of_the_dialect(address: wire.Address) -> None:
    reply = wire.post(address, "/invocations", {**CHAT, "top_p": 7})
    assert reply.status == 422 and reply.json()["error"]["param"] == "top_p"


def test_vertex_answers_all_instances_in_their_order(address: wire.Address) -> None:
    texts = [wire.post(address, "/generate", {"inputs": as_text(q)}).json() for q in (REPEAT, PORT)]
    chat = wire.post(address, "/v1/chat/completions", CHAT).json()["choices"][0]["message"]["content"]
    instances = [{"inputs": as_text(REPEAT)}, CHAT, {"inputs": as_text(PORT)}]
    reply = wire.post(address, "/vertex", {"instances": instances})
    assert reply.status == 200
    assert reply.json() == {"predictions": [texts[0]["generated_text"], chat, texts[1]["generated_text"]]}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "`instances` is required"),
        ({"instances": []}, "at least one"),
        ({"instances": "x"}, "`instances` must be a list"),
        ({"instances": ["x"]}, "`instances[0]` must be an object"),
        (
            {"instances": [{"inputs": "x"}, {"inputs": "x", "parameters": {"top_p": 7}}]},
            "instances[1]: `top_p`",
        ),
        ({"instances": [{"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}]}, "`best_of`"),
        ({"instances": [{"messages": []}]}, "instances[0]: `messages`"),
        ({"instances": [{"inputs": "x"}] * 129}, "(--max-concurrent-requests)"),
    ],
)
def test_vertex_names_what_is_wrong(address: wire.Address, body: object, says: str) -> None:
    reply = wire.post(address, "/vertex", body)
    assert reply.status == 422 and says in reply.json()["error"], reply


def test_chat_tokenize_shows_the_prompt_and_its_tokens(address: wire.Address) -> None:
    reply = wire.post(address, "/chat_tokenize", {"messages": user("Grüße")})
    assert reply.status == 200
    text, tokens = reply.json()["templated_text"], reply.json()["tokenize_response"]
    assert text == as_text("Grüße")
    raw = text.encode()
    assert all(
        token["text"] == raw[token["start"] : token["stop"]].decode(errors="replace") for token in tokens
    )
    usage = wire.post(address, "/v1/chat/completions", {"messages": user("Grüße"), "max_tokens": 1}).json()[
        "usage"
    ]
    assert len(tokens) == usage["prompt_tokens"]
    wrong = wire.post(address, "/chat_tokenize", {"messages": [{"role": "user"}]})
    assert wrong.status == 422 and "`messages[0].content`" in wrong.json()["error"]


def test_one_model_by_its_name(address: wire.Address) -> None:
    (listed,) = wire.get(address, "/v1/models").json()["data"]
    for name in (listed["id"], listed["id"].replace("/", "%2F")):
        assert wire.get(address, f"/v1/models/{name}").json() == listed
    unknown = wire.get(address, "/v1/models/owner/other")
    assert unknown.status == 404 and unknown.json()["error"]["code"] == "not_found"


def test_best_of_returns_the_most_likely_of_several(address: wire.Address) -> None:
    parameters = {"best_of": 2, "do_sample": True, "temperature": 3.0, "max_new_tokens": 12, "details": True}
    reply = wire.post(address, "/generate", {"inputs": "Once", "parameters": parameters})
    assert reply.status == 200, reply
    best = reply.json()["details"]
    (other,) = best["best_of_sequences"]

    def likelihood(details: Any) -> float:
        return float(sum(token["logprob"] for token in details["tokens"]) / len(details["tokens"]))

    assert likelihood(best) >= likelihood(other)
    assert best["seed"] != other["seed"] and other["generated_text"] != reply.json()["generated_text"]
    assert set(other) == (set(best) - {"best_of_sequences"}) | {"generated_text"}


@pytest.mark.parametrize(
    ("path", "parameters", "says"),
    [
        ("/generate", {"best_of": 2}, "needs sampling"),
        ("/generate", {"best_of": 2, "do_sample": True, "seed": 1}, "`seed`"),
        ("/generate", {"best_of": 3, "do_sample": True}, "(--max-best-of)"),
        ("/generate_stream", {"best_of": 2, "do_sample": True}, "streamed"),
    ],
)
def test_best_of_has_its_limits(address: wire.Address, path: str, parameters: object, says: str) -> None:
    reply = wire.post(address, path, {"inputs": "x", "parameters": parameters})
    assert reply.status == 422 and says in reply.json()["error"]


def test_the_reference_is_served_as_openapi_and_as_a_page(address: wire.Address) -> None:
    document = wire.get(address, "/api-doc/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method in operations:
            # No body, so that nothing is generated: what matters is that the route is there.
            status = wire.call(address, method.upper(), path.replace("{id}", "x")).status
            assert status != 405 and (status != 404 or "{id}" in path), f"{method} {path}: {status}"
    limits = wire.get(address, "/info").json()
    parameters = document["components"]["schemas"]["Parameters"]["properties"]
    assert parameters["truncate"]["maximum"] == limits["max_input_tokens"]
    assert parameters["best_of"]["maximum"] == limits["max_best_of"]
    page = wire.get(address, "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<code>top_n_tokens</code>" in page.text and "http://" not in page.text, "no asset from elsewhere"
