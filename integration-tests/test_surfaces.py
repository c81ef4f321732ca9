"""The events of `/v1/responses` and `/v1/messages`, in their whole order: of text, reasoning and calls, of a request that
fails midway, and across a lost worker. And what tools return that is no text.

The model of `echoing` answers what it is asked to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

import wire
from conftest import Launch
from echoing import launch_echo
from launched import ON_TORCH, Launched
from prompts import WEATHER, WEATHER_CALLED, WEATHER_FUNCTION, echoed, user

RESPONSES, MESSAGES, CHAT = "/v1/responses", "/v1/messages", "/v1/chat/completions"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wire.Address]:
    with launch_echo(tmp_path_factory.mktemp("echo")) as launched:
        yield launched.wait_ready().address


def asked(path: str, prompt: str, **more: Any) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": prompt, "temperature": 0, "max_output_tokens": 600, **more}
    return {"messages": user(prompt), "temperature": 0, "max_tokens": 600, **more}


def tools(path: str) -> dict[str, Any]:
    if path == RESPONSES:
        return {"tools": [{"type": "function", **WEATHER_FUNCTION}]}
    schema = WEATHER_FUNCTION["parameters"]
    return {"tools": [{**WEATHER_FUNCTION, "input_schema": schema}]}


def streamed(address: wire.Address, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with wire.Events(address, path, {**body, "stream": True}) as events:
        assert events.status == 200, events.read()
        for data in events:
            yield json.loads(data)


def order(events: list[dict[str, Any]]) -> list[str]:
    """The kinds of events, each run of one kind once."""

    def kind(event: dict[str, Any]) -> str:
        name = str(event["type"])
        if "content_block" in event:
            return f"{name} {event['content_block']['type']}"
        return f"{name} {event['delta']['type']}" if name == "content_block_delta" else name

    return [kind for kind, _ in groupby(map(kind, events))]


def in_responses(item: str) -> list[str]:
    if item == "call":
        parts = ["function_call_arguments.delta", "function_call_arguments.done"]
    else:
        text = {"text": "output_text", "reasoning": "reasoning_text"}[item]
        parts = ["content_part.added", f"{text}.delta", f"{text}.done", "content_part.done"]
    return [f"response.{part}" for part in ("output_item.added", *parts, "output_item.done")]


def in_messages(item: str) -> list[str]:
    block, deltas = {
        "text": ("text", ["text_delta"]),
        "reasoning": ("thinking", ["thinking_delta", "signature_delta"]),
        "call": ("tool_use", ["input_json_delta"]),
    }[item]
    return [
        f"content_block_start {block}",
        *(f"content_block_delta {one}" for one in deltas),
        "content_block_stop",
    ]


def call(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


THOUGHT = "<think>\nIs it raining there?\n</think>\n\n"
ANSWERS: dict[str, tuple[str, list[str]]] = {
    "text": ("It is sunny in Paris.", ["text"]),
    "call": (call("Paris"), ["call"]),
    "calls": (f"{call('Paris')}\n{call('Oslo')}", ["call", "call"]),
    "reasoning": (f"{THOUGHT}It is sunny in Paris.", ["reasoning", "text"]),
    "all": (f"{THOUGHT}I will look.\n{call('Paris')}", ["reasoning", "text", "call"]),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_the_events_of_a_response_in_their_order(echo: wire.Address, what: str) -> None:
    answer, items = ANSWERS[what]
    body = asked(RESPONSES, echoed(echo, answer), **tools(RESPONSES))
    events = list(streamed(echo, RESPONSES, body))
    assert order(events) == [
        "response.created",
        "response.in_progress",
        *(kind for item in items for kind in in_responses(item)),
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]["output"]
    for index, item in enumerate(final):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id") or event["item"]["id"] for event in own} == {item["id"]}
        told = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert told == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
    whole = wire.post(echo, RESPONSES, body).json()
    assert without_ids(final) == without_ids(whole["output"])
    assert whole["status"] == events[-1]["response"]["status"] == "completed"


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


@pytest.mark.parametrize("what", ANSWERS)
def test_the_events_of_a_message_in_their_order(echo: wire.Address, what: str) -> None:
    answer, items = ANSWERS[what]
    body = asked(MESSAGES, echoed(echo, answer), **tools(MESSAGES))
    events = list(streamed(echo, MESSAGES, body))
    blocks = [kind for item in items for kind in in_messages(item)]
    assert order(events) == ["message_start", *blocks, "message_delta", "message_stop"]
    whole = wire.post(echo, MESSAGES, body).json()
    assert len(whole["content"]) == len(items)
    for index, block in enumerate(whole["content"]):
        deltas = [event["delta"] for event in events if event.get("index") == index and "delta" in event]
        told = "".join(next(value for key, value in delta.items() if key != "type") for delta in deltas)
        assert (json.loads(told) if block["type"] == "tool_use" else told) == (
            block.get("input") or block.get("thinking") or block["text"]
        )
    assert (
        events[-2]["delta"]["stop_reason"]
        == whole["stop_reason"]
        == ("tool_use" if "call" in items else "end_turn")
    )
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_an_event_has_its_type_as_its_name(echo: wire.Address) -> None:
    for path in (RESPONSES, MESSAGES):
        body = {**asked(path, echoed(echo, ANSWERS["all"][0])), **tools(path), "stream": True}
        text = wire.post(echo, path, body).text
        named = re.findall(r'^event: (\S+)\ndata: {"type":"([^"]+)"', text, re.MULTILINE)
        assert len(named) == text.count("data: ") and all(name == kind for name, kind in named), named


# Which of so many optional properties comes first, of which of two objects, is more than a parser may keep in mind.
OPTIONAL = [{"type": "object", "properties": {f"k{n}": {} for n in range(count)}} for count in (700, 900)]
MANY = {"anyOf": [OPTIONAL[0], {**OPTIONAL[1], "required": ["nothing else"]}]}
FAILS_MIDWAY = {
    "type": "json_schema",
    "name": "many",
    "schema": {
        "type": "object",
        "properties": {"first": {"const": "the first words"}, "many": MANY},
        "required": ["first", "many"],
    },
}


@pytest.mark.parametrize(
    ("path", "form", "begins", "ends"),
    [
        (RESPONSES, {"text": {"format": FAILS_MIDWAY}}, ["response.created", "response.in_progress", *in_responses("text")[:3]], ["error", "response.failed"]),
        (MESSAGES, {"output_config": {"format": FAILS_MIDWAY}}, ["message_start", *in_messages("text")[:2]], ["error"]),
    ],
)  # fmt: skip
def test_what_fails_midway_ends_with_an_error(
    address: wire.Address, path: str, form: dict[str, Any], begins: list[str], ends: list[str]
) -> None:
    events = list(streamed(address, path, asked(path, "Hello!", **form)))
    assert order(events) == [*begins, *ends]
    error = events[-len(ends)]["error"]
    if path == RESPONSES:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert error["code"] == "generation" and error["param"] is None
        response = events[-1]["response"]
        assert response["status"] == "failed"
        assert response["error"] == {"code": error["code"], "message": error["message"]}
    else:
        assert error["type"] == "api_error"
    assert error["message"].endswith("it needs more than 4200 parser items for a byte"), error
    whole = wire.post(address, path, asked(path, "Hello!", **form))
    assert (whole.status, whole.json()["error"]["message"]) == (424, error["message"])


@pytest.mark.tail
def test_a_lost_worker_leaves_no_gap(launch: Launch) -> None:
    server: Launched = launch(*ON_TORCH).wait_ready()
    schema = {"type": "string", "pattern": "^([a-z]{3,9} ){60}$"}
    form = {"type": "json_schema", "name": "words", "schema": schema}
    more = {RESPONSES: {"text": {"format": form}}, MESSAGES: {"output_config": {"format": form}}}
    for path in (RESPONSES, MESSAGES):
        body = asked(path, "Say words.", **more[path])
        undisturbed = list(streamed(server.address, path, body))
        for kill in server.interruptions():
            events = []
            for count, event in enumerate(streamed(server.address, path, body)):
                events.append(event)
                if count == 12:
                    kill()
            numbers = [event["sequence_number"] for event in events if path == RESPONSES]
            # What breaks the silence of a worker that takes long to come back.
            events = [
                event for at, event in enumerate(events) if at < 2 or event["type"] != "response.in_progress"
            ]
            assert order(events) == order(undisturbed)
            assert [texts(event) for event in events if texts(event)] == [
                texts(event) for event in undisturbed if texts(event)
            ]
            assert numbers == list(range(len(numbers)))


def texts(event: dict[str, Any]) -> str:
    delta = event.get("delta", "")
    return str(delta.get("text", "") if isinstance(delta, dict) else delta)


@pytest.mark.parametrize(
    ("path", "more", "says"),
    [
        (RESPONSES, {"tool_choice": {"type": "function", "name": "fly"}}, "not in `tools`: fly"),
        (RESPONSES, {"tool_choice": "required", "tools": []}, '`tool_choice` "required" needs `tools`'),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "fly"}}, "not in `tools`: fly"),
        (MESSAGES, {"tool_choice": {"type": "any"}, "tools": []}, "needs `tools`"),
    ],
)
def test_a_choice_of_nothing_is_refused(
    address: wire.Address, path: str, more: dict[str, Any], says: str
) -> None:
    reply = wire.post(address, path, {**asked(path, "x"), **tools(path), **more})
    assert reply.status == (422 if path == RESPONSES else 400), reply
    assert says in reply.json()["error"]["message"] and reply.json()["error"]["param"] == "tool_choice", reply


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_two_tools_of_one_name_are_refused(address: wire.Address, path: str) -> None:
    reply = wire.post(address, path, asked(path, "x", tools=tools(path)["tools"] * 2))
    assert reply.status == (422 if path == RESPONSES else 400), reply
    assert re.search(r"`tools\[1\].*same as another", reply.json()["error"]["message"]), reply


PNG = "iVBORw0KGgo="
TOLD = "[The tool returned an image here, which cannot be shown to you: you read only text.]"


def returned(path: str, text: str) -> dict[str, Any]:
    """A conversation that ends with a picture and a text, which a tool has returned."""
    name, arguments = WEATHER_CALLED
    parts: list[dict[str, Any]]
    result: dict[str, Any]
    said: list[dict[str, Any]]
    if path == RESPONSES:
        called = {"type": "function_call", "call_id": "1", "name": name, "arguments": json.dumps(arguments)}
        parts = [
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            {"type": "input_text", "text": text},
        ]
        result = {"type": "function_call_output", "call_id": "1", "output": parts}
        return {"input": [*user(WEATHER), called, result], "temperature": 0, "max_output_tokens": 200}
    if path == CHAT:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        parts = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "text", "text": text},
        ]
        said = [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": parts},
        ]
    else:
        used: dict[str, Any] = {"type": "tool_use", "id": "1", "name": name, "input": arguments}
        blocks: list[dict[str, Any]] = [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "text", "text": text},
        ]
        result = {"type": "tool_result", "tool_use_id": "1", "content": blocks}
        said = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    return {"messages": [*user(WEATHER), *said], "temperature": 0, "max_tokens": 200}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (RESPONSES, "input[2].output[0]"),
        (CHAT, "messages[2].content[0]"),
        (MESSAGES, "messages[2].content[0].content[0]"),
    ],
)
def test_a_picture_that_a_tool_returned_does_not_end_the_session(
    echo: wire.Address, path: str, place: str
) -> None:
    between = "\n" if path == MESSAGES else ""
    told = f"{TOLD}{between}Behind it."
    # What pads the prompt, so that the model repeats what it was told.
    body = returned(path, echoed(echo, told).removeprefix(f"{TOLD}{between}"))
    answer = wire.post(echo, path, body)
    assert answer.status == 200, answer
    whole = answer.json()
    if path == RESPONSES:
        text = whole["output"][0]["content"][0]["text"]
    elif path == CHAT:
        text = whole["choices"][0]["message"]["content"]
    else:
        text = whole["content"][0]["text"]
        counted = wire.post(echo, f"{MESSAGES}/count_tokens", body).json()
        assert counted["warnings"] == whole["warnings"]
        usage = whole["usage"]
        assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert text == told
    [warning] = whole["warnings"]
    assert warning.startswith(f"`{place}` has no effect here: only text is supported"), warning
    # What the user shows is refused, and so is what nobody knows.
    body = asked(path, "x")
    part = {"type": "image"} if path == MESSAGES else {"type": "image_url", "image_url": {"url": "x"}}
    body["input" if path == RESPONSES else "messages"] = [{"role": "user", "content": [part]}]
    assert wire.post(echo, path, body).status == (400 if path == MESSAGES else 422)
