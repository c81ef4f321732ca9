"""`anthropic` for Python: messages whole and streamed, tools and their results, what it counts, and its errors."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import anthropic
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from conftest import Guarded, address_of
from prompts import ADD, REPEAT, echoed

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def connect(url: str, key: str = "unused") -> Anthropic:
    # No retries: a test must see the first answer.
    return Anthropic(base_url=url, api_key=key, max_retries=0, timeout=120)


@pytest.fixture
def client(url: str) -> Anthropic:
    return connect(url)


def asked(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """This version of the client has no arguments for sampling; the API has."""
    sampling = {"temperature": 0, **more.pop("sampling", {})}
    return {"model": "penstock", "max_tokens": 60, "messages": messages, "extra_body": sampling, **more}


@pytest.mark.golden
def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(
        **asked(user(ADD), system="You are a calculator.", sampling={"top_k": 5, "top_p": 0.9})
    )
    assert message.role == "assistant" and message.type == "message" and message.id.startswith("msg_")
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert message._request_id and len(message._request_id) == 32


@pytest.mark.golden
def test_a_stream_is_the_same(client: Anthropic) -> None:
    for messages, more in ((user(REPEAT), {}), (WEATHER, {"tools": [TOOL]})):
        whole = client.messages.create(**asked(messages, **more))
        with client.messages.stream(**asked(messages, **more)) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_message()
        assert [block.model_dump(exclude={"id"}) for block in final.content] == [
            block.model_dump(exclude={"id"}) for block in whole.content
        ]
        assert (final.stop_reason, final.usage.output_tokens) == (
            whole.stop_reason,
            whole.usage.output_tokens,
        )
        assert events[0] == "message_start" and events[-1] == "message_stop"


@pytest.mark.golden
def test_a_round_of_call_result_and_answer(client: Anthropic) -> None:
    message = client.messages.create(**asked(WEATHER, tools=[TOOL]))
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": '{"temperature": 21, "condition": "sunny"}',
    }
    conversation: list[dict[str, Any]] = [
        *WEATHER,
        {"role": "assistant", "content": [block.model_dump() for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(**asked(conversation, tools=[TOOL]))
    assert "21" in answer.content[0].text and answer.stop_reason == "end_turn"
    with client.messages.stream(**asked(WEATHER, tools=[TOOL])) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert len(parts) > 1 and json.loads("".join(parts)) == streamed.input == call.input
    conversation[1:] = [
        {"role": "assistant", "content": [streamed.model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [{**result, "tool_use_id": streamed.id}]},
    ]
    with client.messages.stream(**asked(conversation, tools=[TOOL])) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text


@pytest.mark.golden
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_has_to_be(client: Anthropic, choice: dict[str, Any]) -> None:
    message = client.messages.create(
        **asked(user("Hello!"), tools=[TOOL], tool_choice=choice, max_tokens=200)
    )
    assert any(block.type == "tool_use" for block in message.content)
    none = client.messages.create(**asked(WEATHER, tools=[TOOL], tool_choice={"type": "none"}))
    assert all(block.type == "text" for block in none.content)


@pytest.mark.parametrize(
    ("tool", "members"),
    [
        ({"type": "bash_20250124", "name": "bash"}, {"command", "restart"}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000},
            {
                "command",
                "path",
                "view_range",
                "file_text",
                "old_str",
                "new_str",
                "insert_line",
                "insert_text",
            },
        ),
    ],
)
def test_a_tool_that_the_client_runs(client: Anthropic, tool: dict[str, Any], members: set[str]) -> None:
    choice = {"type": "tool", "name": tool["name"]}
    message = client.messages.create(
        **asked(user("List the files."), tools=[tool], tool_choice=choice, max_tokens=300)
    )
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == tool["name"] and set(call.input) <= members
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "notes.txt"}
    conversation = [*user("List the files."), {"role": "assistant", "content": message.content}]
    conversation.append({"role": "user", "content": [result]})
    assert client.messages.create(**asked(conversation, tools=[tool])).content


@pytest.mark.golden
def test_what_ends_a_text_is_told(client: Anthropic) -> None:
    whole = client.messages.create(**asked(user(REPEAT))).content[0].text
    word = whole.split()[2]
    stopped = client.messages.create(**asked(user(REPEAT), stop_sequences=["@@@", word]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    assert whole.startswith(stopped.content[0].text) and word not in stopped.content[0].text
    short = client.messages.create(**asked(user(REPEAT), max_tokens=2))
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 2


class Mood(pydantic.BaseModel):
    mood: Literal["good", "bad"]


@pytest.mark.golden
def test_a_class_is_filled(client: Anthropic) -> None:
    parsed = client.messages.parse(**asked(user("How are you?")), output_format=Mood)
    assert isinstance(parsed.parsed_output, Mood)


@pytest.mark.golden
def test_tokens_are_counted(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="penstock", messages=user(ADD), tools=[TOOL])
    usage = client.messages.create(**asked(user(ADD), tools=[TOOL])).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_content_in_blocks(client: Anthropic) -> None:
    blocks = [{"type": "text", "text": ADD, "cache_control": {"type": "ephemeral"}}]
    plain = client.messages.create(**asked(user(ADD), system="Be brief."))
    split = client.messages.create(
        **asked([{"role": "user", "content": blocks}], system=[{"type": "text", "text": "Be brief."}])
    )
    assert plain.content == split.content


THOUGHT, SAID = "Is it raining there?", "It is sunny in Paris."


def test_thoughts_of_an_answer_are_blocks(thinking: str) -> None:
    client = connect(thinking)
    on: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
    conversation = user(echoed(address_of(thinking), f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"))
    message = client.messages.create(**asked(conversation, **on))
    thought, text = message.content
    assert (thought.type, thought.thinking, text.type, text.text) == ("thinking", THOUGHT, "text", SAID)
    with client.messages.stream(**asked(conversation, **on)) as stream:
        events = list(stream)
        final = stream.get_final_message()
    parts = [event.thinking for event in events if event.type == "thinking"]
    assert len(parts) > 1 and "".join(parts) == THOUGHT
    assert [event.signature for event in events if event.type == "signature"] == [thought.signature]
    assert "".join(event.text for event in events if event.type == "text") == SAID
    stops = [event.content_block.type for event in events if event.type == "content_block_stop"]
    assert stops == ["thinking", "text"]
    thought_again, text_again = final.content
    assert (thought_again, text_again.text) == (thought, SAID)
    assert final.stop_reason == message.stop_reason == "end_turn"
    # The blocks go back as they came.
    conversation += [
        {"role": "assistant", "content": message.content},
        *user(echoed(address_of(thinking), "Until the evening.")),
    ]
    (answer,) = client.messages.create(**asked(conversation, **on)).content
    assert answer.type == "text" and answer.text == "Until the evening."


@pytest.mark.golden
def test_thoughts_are_asked_for(client: Anthropic) -> None:
    """Of a model that has none."""
    for kind in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        assert client.messages.create(**asked(user(ADD), thinking=kind)).content[0].type == "text"


@pytest.mark.golden
def test_thoughts_are_sent_back(client: Anthropic) -> None:
    thought = {"type": "thinking", "thinking": "Two and two.", "signature": ""}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "Four."}]}
    assert client.messages.create(
        **asked([*user(ADD), said, *user(REPEAT)], thinking={"type": "disabled"})
    ).content


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs no tools of its own"),
        (
            {
                "tools": [
                    {
                        "type": "computer_20250124",
                        "name": "computer",
                        "display_width_px": 9,
                        "display_height_px": 9,
                    }
                ]
            },
            "the client runs this one",
        ),
        ({"tools": [{"name": "f"}]}, "`tools[0].input_schema`"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "not in `tools`: g"),
        ({"thinking": {"type": "deep"}}, "`thinking.type`"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
    ],
)
def test_a_bad_request_is_told(client: Anthropic, more: dict[str, Any], says: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**asked(user(ADD)), **more})
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert says in body["error"]["message"], body
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_keys(guarded: Guarded) -> None:
    assert connect(guarded.url, guarded.key).messages.create(**asked(user(ADD))).content
    bearer = Anthropic(base_url=guarded.url, api_key=None, auth_token=guarded.key, max_retries=0)
    assert bearer.messages.create(**asked(user(ADD))).content
    with pytest.raises(anthropic.AuthenticationError):
        connect(guarded.url, "wrong").messages.create(**asked(user(ADD)))


def test_a_busy_server(busy: Guarded) -> None:
    with pytest.raises(anthropic.RateLimitError):
        connect(busy.url, busy.key).messages.create(**asked(user(ADD)))


def test_a_starting_server() -> None:
    with pytest.raises(anthropic.InternalServerError):
        connect(os.environ["PENSTOCK_STARTING_URL"]).messages.create(**asked(user(ADD)))


def test_without_waiting(url: str) -> None:
    async def run() -> str:
        async with AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as client:
            texts = []
            async with client.messages.stream(**asked(user(REPEAT))) as stream:
                async for text in stream.text_stream:
                    texts.append(text)
            return "".join(texts)

    assert asyncio.run(run()) == connect(url).messages.create(**asked(user(REPEAT))).content[0].text
