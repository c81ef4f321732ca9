"""Real answers against the schemas of `/api-doc/openapi.json`, which know every member: what is not described
there, or not there though described, is an error. And requests: what a route takes its schema takes, and what is wrong in its
shape neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import wire
from launched import Launched
from prompts import ADD, REPEAT, as_text, user

CHAT = {"messages": user(ADD), "max_tokens": 8}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city", "parameters": SCHEMA}
CALLING = {
    "messages": user("What is the weather in Paris?"),
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "required",
    "max_tokens": 60,
}
INPUT_SCHEMA = {"name": "get_weather", "input_schema": SCHEMA}
CUSTOM = {"name": "code", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{4}"}}
CODING = {
    "messages": user(ADD),
    "tools": [{"type": "custom", "custom": CUSTOM}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 100,
}
RESPONSE = {"input": ADD, "max_output_tokens": 100}
LIKELY = {**RESPONSE, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
FORCED = {
    **RESPONSE,
    "tools": [{"type": "custom", **CUSTOM}, {"type": "function", **FUNCTION}],
    "tool_choice": {"type": "custom", "name": "code"},
}
FORCED_FUNCTION = {**FORCED, "tool_choice": {"type": "function", "name": "get_weather"}}
MESSAGES = {"messages": user(ADD), "max_tokens": 60}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
BEHIND_A_RESULT: list[dict[str, Any]] = [
    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    {"type": "document", "title": "A", "source": PDF},
    {"type": "search_result", "title": "A", "source": "a", "content": [{"type": "text", "text": "A"}]},
]
RETURNED = {
    "messages": [
        *user(ADD),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}, *BEHIND_A_RESULT]},
    ]
}
COMPLETION = {"prompt": [as_text(ADD), as_text(REPEAT)], "max_tokens": 8}
DETAILED = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "max_new_tokens": 8}
SAMPLED = {"details": True, "best_of": 2, "do_sample": True, "max_new_tokens": 8}
STREAMED = {"details": True, "top_n_tokens": 2, "max_new_tokens": 8}
INPUT = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["What is 2 + 3?"]}


@pytest.fixture(scope="module")
def complete_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """With every route that a flag switches on."""
    with Launched(tmp_path_factory.mktemp("complete"), "--kserve") as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def document(complete_server: Launched) -> Any:
    return wire.get(complete_server.address, "/api-doc/openapi.json").json()


def as_json_schema(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable` and `exclusiveMinimum`, which JSON Schema says otherwise."""
    if isinstance(schema, list):
        return [as_json_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: as_json_schema(part) for name, part in schema.items() if name != "nullable"}
    if plain.get("exclusiveMinimum") is True:
        plain["exclusiveMinimum"] = plain.pop("minimum")
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


def errors_of(document: Any, content: Any, value: Any) -> list[str]:
    schema = {**content["schema"], "components": document["components"]}
    return [error.message for error in Draft202012Validator(as_json_schema(schema)).iter_errors(value)]


def check(document: Any, path: str, method: str, status: int, kind: str, value: Any) -> None:
    response = document["paths"][path][method]["responses"][str(status)]
    errors = errors_of(document, response["content"][kind], value)
    assert not errors, (path, errors, value)


def errors_of_request(document: Any, path: str, body: Any) -> list[str]:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return errors_of(document, content["application/json"], body)


GETS = [
    "/v1/models",
    "/v1/models/{id}",
    "/info",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{name}",
    "/v2/models/{name}/ready",
    "/v2/models/{name}/versions/{version}",
    "/v2/models/{name}/versions/{version}/ready",
]
POSTS: list[tuple[str, Any]] = [
    ("/generate", {"inputs": as_text(ADD)}),
    ("/generate", {"inputs": as_text(ADD), "parameters": DETAILED}),
    ("/generate", {"inputs": as_text(ADD), "parameters": SAMPLED, "no_such_field": 1}),
    ("/", {"inputs": as_text(ADD), "parameters": DETAILED}),
    ("/tokenize", {"inputs": "a naïve text"}),
    ("/tokenize", {"inputs": "x", "parameters": {"truncate": 1}, "no_such_field": 1}),
    ("/chat_tokenize", CHAT),
    ("/chat_tokenize", {**CHAT, "no_such_field": 1}),
    ("/v1/chat/completions", CHAT),
    (
        "/v1/chat/completions",
        {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, "user": "me", "store": True},
    ),
    ("/v1/chat/completions", CALLING),
    ("/v1/chat/completions", CODING),
    ("/v1/responses", {"input": ADD, "max_output_tokens": 5, "store": True}),
    ("/v1/responses", LIKELY),
    ("/v1/responses", FORCED),
    ("/v1/responses", FORCED_FUNCTION),
    ("/v1/messages", MESSAGES),
    (
        "/v1/messages",
        {**MESSAGES, "tools": [INPUT_SCHEMA], "tool_choice": {"type": "any"}, "no_such_field": 1},
    ),
    ("/v1/messages/count_tokens", {"messages": user(ADD)}),
    ("/v1/messages/count_tokens", RETURNED),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "echo": True, "logprobs": 2, "no_such_field": 1}),
    ("/v1/completions", {**COMPLETION, "echo": True, "logprobs": 1, "max_tokens": 0}),
    ("/invocations", CHAT),
    ("/invocations", {"inputs": "x", "parameters": {"max_new_tokens": 3}}),
    ("/vertex", {"instances": [CHAT, {"inputs": "x", "parameters": {"details": True, "max_new_tokens": 3}}]}),
    ("/v2/models/{name}/infer", {"inputs": [INPUT], "parameters": {"max_new_tokens": 3}}),
    (
        "/v2/models/{name}/versions/{version}/infer",
        {"id": "7", "inputs": [{**INPUT, "data": [65, 66]}], "parameters": {"max_new_tokens": 3}},
    ),
]
STREAMS: list[tuple[str, Any]] = [
    ("/generate_stream", {"inputs": as_text(ADD), "parameters": STREAMED, "no_such_field": 1}),
    ("/", {"inputs": as_text(ADD), "stream": True}),
    ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}, "store": True}),
    ("/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {**COMPLETION, "logprobs": 2, "echo": False}),
    ("/v1/chat/completions", CALLING),
    ("/v1/chat/completions", CODING),
    ("/v1/responses", {"input": ADD, "max_output_tokens": 5}),
    ("/v1/responses", LIKELY),
    ("/v1/responses", FORCED),
    ("/v1/responses", FORCED_FUNCTION),
    ("/v1/messages", MESSAGES),
    ("/v1/messages", {**MESSAGES, "tools": [INPUT_SCHEMA], "tool_choice": {"type": "any"}}),
    ("/invocations", CHAT),
]
WRONG: list[tuple[str, Any, int]] = [
    ("/generate", {"inputs": 5}, 422),
    ("/generate_stream", {}, 422),
    ("/tokenize", "{", 400),
    ("/tokenize", {"inputs": "x", "parameters": {"top_k": -1}}, 422),
    ("/tokenize", {"inputs": "x", "parameters": 5}, 422),
    ("/v1/chat/completions", {"messages": []}, 422),
    ("/v1/completions", {"prompt": "x", "top_p": 7}, 422),
    ("/v1/completions", "{", 400),
    ("/v1/messages", {"messages": []}, 400),
    ("/v1/messages", {**MESSAGES, "messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400),
    ("/v1/messages", {**MESSAGES, "messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400),
    ("/v1/responses", {"input": 5}, 422),
    ("/vertex", {"instances": 5}, 422),
    ("/invocations", {}, 422),
    ("/v2/models/{name}/infer", {"inputs": []}, 422),
]


def filled(path: str, model: str) -> str:
    return path.replace("{id}", model).replace("{name}", "any").replace("{version}", "1")


def test_the_document_is_valid_and_names_no_route_that_is_not_there(
    complete_server: Launched, document: Any
) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(as_json_schema(schema))
    model = wire.get(complete_server.address, "/info").json()["model_id"]
    for path, methods in document["paths"].items():
        for method in methods:
            reply = wire.call(
                complete_server.address,
                method.upper(),
                filled(path, model),
                body={} if method == "post" else None,
            )
            wrong = 400 if path.startswith("/v1/messages") else 422
            assert reply.status == (wrong if method == "post" else 200), (path, reply)
    tried = {("get", path) for path in GETS} | {("post", path) for path, *_ in (*POSTS, *STREAMS)}
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    plain = {"/health", "/ping", "/readyz", "/livez", "/", "/metrics", "/docs", "/api-doc/openapi.json"}
    assert described - tried == {("get", path) for path in plain}, "each answer is tried below"


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["", "anthropic"])
@pytest.mark.parametrize("path", GETS)
def test_what_is_read(complete_server: Launched, document: Any, path: str, headers: dict[str, str]) -> None:
    model = wire.get(complete_server.address, "/info").json()["model_id"]
    reply = wire.get(complete_server.address, filled(path, model), headers=headers)
    assert reply.status == 200, reply
    check(document, path, "get", 200, "application/json", reply.json())


@pytest.mark.parametrize(("path", "body"), POSTS)
def test_what_is_answered(complete_server: Launched, document: Any, path: str, body: Any) -> None:
    reply = wire.post(complete_server.address, filled(path, ""), body)
    assert reply.status == 200, reply
    check(document, path, "post", 200, "application/json", reply.json())
    assert not errors_of_request(document, path, body)


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_what_is_streamed(complete_server: Launched, document: Any, path: str, body: Any) -> None:
    body = body if path == "/generate_stream" else {**body, "stream": True}
    with wire.Events(complete_server.address, path, body) as events:
        assert events.status == 200
        data = [json.loads(event) for event in events if event != "[DONE]"]
    assert len(data) > 2
    for event in data:
        check(document, path, "post", 200, "text/event-stream", event)


@pytest.mark.parametrize(("path", "body", "status"), WRONG)
def test_what_is_refused(complete_server: Launched, document: Any, path: str, body: Any, status: int) -> None:
    reply = wire.post(complete_server.address, filled(path, ""), body)
    assert reply.status == status, reply
    check(document, path, "post", status, "application/json", reply.json())
    assert isinstance(body, str) or errors_of_request(document, path, body)


def test_a_schema_that_lies_would_be_noticed(complete_server: Launched, document: Any) -> None:
    reply = wire.post(
        complete_server.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}
    )
    answer = reply.json()
    for wrong in ({**answer, "more": 1}, {}, {"generated_text": 5}):
        with pytest.raises(AssertionError):
            check(document, "/generate", "post", 200, "application/json", wrong)
