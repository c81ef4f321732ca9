"""Frameworks of agents: the OpenAI Agents SDK (over responses and over chats), `pydantic-ai` and `instructor`; and
`openai`'s own calls of `/v1/responses`. Each calls a tool, reads its result, and answers; or fills a class."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal

import agents
import instructor
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import address_of
from prompts import ADD, REPEAT, echoed

WEATHER = "What is the weather in Paris?"
RESULT = '{"temperature": 21, "condition": "sunny"}'


class Mood(BaseModel, extra="forbid"):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


@pytest.fixture
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def asked(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "tgi", "input": given, "temperature": 0, "max_output_tokens": 100, **more}


# openai.responses


@pytest.mark.golden
def test_a_response(client: OpenAI) -> None:
    response = client.responses.create(**asked(ADD, instructions="You are a calculator."))
    assert response.output_text and response.status == "completed" and response.id.startswith("resp_")
    assert response.instructions == "You are a calculator." and response.temperature == 0
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    short = client.responses.create(**asked(REPEAT, max_output_tokens=2))
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"


@pytest.mark.golden
def test_a_stream_is_the_same(client: OpenAI) -> None:
    for given, more in ((REPEAT, {}), (WEATHER, {"tools": [TOOL]})):
        whole = client.responses.create(**asked(given, **more))
        events = list(client.responses.create(**asked(given, stream=True, **more)))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-2:] == ["response.output_item.done", "response.completed"]
        final = events[-1].response
        assert final.output_text == whole.output_text
        volatile = {"id", "call_id"}
        assert [item.model_dump(exclude=volatile) for item in final.output] == [
            item.model_dump(exclude=volatile) for item in whole.output
        ]
        deltas = [event.delta for event in events if event.type.endswith(".delta")]
        told = whole.output_text or "".join(getattr(item, "arguments", "") for item in whole.output)
        assert "".join(deltas) == told
        with client.responses.stream(**asked(given, **more)) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text == whole.output_text


@pytest.mark.golden
def test_a_round_of_call_result_and_answer(client: OpenAI) -> None:
    conversation: list[Any] = [{"role": "user", "content": WEATHER}]
    response = client.responses.create(**asked(conversation, tools=[TOOL]))
    (call,) = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "Paris"}')
    conversation += response.output
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    answer = client.responses.create(**asked(conversation, tools=[TOOL]))
    assert "21" in answer.output_text


def test_the_answer_to_a_result_is_streamed(client: OpenAI) -> None:
    """What was called in a stream is answered in one."""
    conversation: list[Any] = [{"role": "user", "content": WEATHER}]
    with client.responses.stream(**asked(conversation, tools=[TOOL])) as stream:
        written = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert "".join(written) == call.arguments == '{"city": "Paris"}' and len(written) > 1
    item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    conversation += [item, output]
    whole = client.responses.create(**asked(conversation, tools=[TOOL])).output_text
    assert "21" in whole
    with client.responses.stream(**asked(conversation, tools=[TOOL])) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == whole


@pytest.mark.golden
def test_a_class_is_filled(client: OpenAI) -> None:
    parsed = client.responses.parse(**asked("How are you?"), text_format=Mood)
    assert isinstance(parsed.output_parsed, Mood)
    with client.responses.stream(**asked("How are you?"), text_format=Mood) as stream:
        events = list(stream)
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    parts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(parts) > 1 and "".join(parts) == parsed.output_text
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert done.parsed == parsed.output_parsed


def test_thoughts_are_reasoning_items(thinking: str) -> None:
    client = OpenAI(base_url=f"{thinking}/v1", api_key="unused", max_retries=0, timeout=120)
    thought, said = "Is it raining there?", "It is sunny in Paris."
    given = echoed(address_of(thinking), f"<think>\n{thought}\n</think>\n\n{said}")
    conversation: list[Any] = [{"role": "user", "content": given}]
    more: Any = {"reasoning": {"effort": "low"}, "max_output_tokens": 2048}
    whole = client.responses.create(**asked(conversation, **more))
    reasoning, message = whole.output
    assert (reasoning.type, message.type, whole.output_text) == ("reasoning", "message", said)
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", thought)]
    with client.responses.stream(**asked(conversation, **more)) as stream:
        events = list(stream)
        final = stream.get_final_response()
    for created in (events, list(client.responses.create(**asked(conversation, stream=True, **more)))):
        parts = [event.delta for event in created if event.type == "response.reasoning_text.delta"]
        assert len(parts) > 1 and "".join(parts) == thought
        (done,) = [event for event in created if event.type == "response.reasoning_text.done"]
        assert done.text == thought
        items = [event.item.type for event in created if event.type == "response.output_item.done"]
        assert items == ["reasoning", "message"]
    assert [item.type for item in final.output] == items and final.output_text == said
    assert final.output[0].content[0].text == thought
    # As a summary, where one is asked for.
    more = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 2048,
    }
    whole = client.responses.create(**asked(conversation, **more))
    summed = whole.output[0]
    assert [(part.type, part.text) for part in summed.summary] == [("summary_text", thought)]
    assert (summed.content, summed.encrypted_content) == (None, f"penstock:{thought}")
    with client.responses.stream(**asked(conversation, **more)) as stream:
        parts = [event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"]
        assert len(parts) > 1 and "".join(parts) == thought
        assert stream.get_final_response().output[0].summary == summed.summary
    # The items go back as they came.
    conversation += whole.output
    conversation.append({"role": "user", "content": echoed(address_of(thinking), "Until the evening.")})
    assert client.responses.create(**asked(conversation, **more)).output_text == "Until the evening."


@pytest.mark.golden
def test_a_call_that_has_to_be_and_a_tool_that_takes_text(client: OpenAI) -> None:
    forced = client.responses.create(**asked("Hello!", tools=[TOOL], tool_choice="required"))
    assert forced.output[0].type == "function_call"
    named = {"type": "function", "name": "get_weather"}
    assert (
        client.responses.create(**asked("Hello!", tools=[TOOL], tool_choice=named)).output[0].name
        == "get_weather"
    )
    letters = {"type": "grammar", "syntax": "regex", "definition": "[a-c]{4}"}
    custom = {"type": "custom", "name": "code", "description": "Runs a program", "format": letters}
    choice = {"type": "custom", "name": "code"}
    for stream in (False, True):
        answer: Any = client.responses.create(
            **asked("Hello!", tools=[custom], tool_choice=choice, stream=stream, max_output_tokens=300)
        )
        item = (list(answer)[-1].response if stream else answer).output[0]
        assert item.type == "custom_tool_call" and len(item.input) == 4 and set(item.input) <= set("abc")


@pytest.mark.golden
def test_a_function_of_a_namespace(client: OpenAI) -> None:
    group = {"type": "namespace", "name": "mcp__sky", "description": "The weather", "tools": [TOOL]}
    choice = {"type": "function", "name": "get_weather"}
    conversation: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    for stream in (False, True):
        answer: Any = client.responses.create(
            **asked(conversation, tools=[group], tool_choice=choice, stream=stream)
        )
        (call,) = (list(answer)[-1].response if stream else answer).output
        assert (call.type, call.namespace, call.name) == ("function_call", "mcp__sky", "get_weather")
    conversation += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "21"}]
    assert client.responses.create(**asked(conversation, tools=[group])).output


@pytest.mark.golden
def test_a_tool_that_takes_text_of_a_grammar(client: OpenAI) -> None:
    definition = 'start: NUMBER " + " NUMBER\nNUMBER: /[1-9][0-9]?/\n'
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    custom = {"type": "custom", "name": "sum", "description": "Adds two numbers", "format": form}
    conversation: list[Any] = [{"role": "user", "content": "Hello!"}]
    choice = {"type": "custom", "name": "sum"}
    whole = client.responses.create(**asked(conversation, tools=[custom], tool_choice=choice))
    (call,) = whole.output
    assert call.type == "custom_tool_call" and re.fullmatch(r"[1-9]\d? \+ [1-9]\d?", call.input)
    kinds = [
        event.type
        for event in client.responses.create(
            **asked(conversation, tools=[custom], tool_choice=choice, stream=True)
        )
    ]
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    conversation += [
        *whole.output,
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "5"},
    ]
    assert client.responses.create(**asked(conversation, tools=[custom])).output


@pytest.mark.golden
def test_log_probabilities(client: OpenAI) -> None:
    more: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = client.responses.create(**asked(ADD, **more))
    entries = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries).startswith(response.output_text)
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    with client.responses.stream(**asked(ADD, **more)) as stream:
        events = list(stream)
        streamed = stream.get_final_response().output[0].content[0].logprobs
    assert streamed == entries
    parts = [event for event in events if event.type == "response.output_text.delta"]
    told = [entry for event in parts for entry in event.logprobs]
    assert [(entry.token, entry.logprob) for entry in told] == [
        (entry.token, entry.logprob) for entry in entries
    ]
    assert all(len(entry.top_logprobs) == 2 for entry in told)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"conversation": "conv_1"}, "`conversation` is not supported"),
        ({"background": True}, "`background` is not supported"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "`tools[0].type`"),
        ({"tools": [{"type": "local_shell"}]}, "`tools[0].type`"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "`store: false`"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"include": ["everything"]}, "`include[0]` must be one of"),
        (
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": [{"type": "input_image"}]},
                ]
            },
            "`input[1].content[0]`",
        ),
        (
            {"instructions": "Be short.", "input": [{"type": "function_call", "name": "f"}]},
            "`input[0].call_id`",
        ),
    ],
)
def test_what_there_is_not_is_refused(client: OpenAI, more: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.responses.create(**{**asked(ADD), **more})
    assert says in str(caught.value.body), caught.value.body


def test_an_answer_that_is_not_kept_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asked(ADD, previous_response_id="resp_1"))
    assert caught.value.code == "previous_response_not_found", caught.value.body
    assert caught.value.param == "previous_response_id"
    kept = client.responses.create(**asked(ADD, store=True)).model_dump()
    assert "`store`" in kept["warnings"][0] and kept["store"] is False


# Frameworks


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return RESULT if city == "Paris" else "unknown"


@pytest.mark.parametrize("kind", ["responses", "chats"])
@pytest.mark.golden
def test_the_agents_sdk(url: str, kind: str) -> None:
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    models: dict[str, type[Any]] = {
        "responses": agents.OpenAIResponsesModel,
        "chats": agents.OpenAIChatCompletionsModel,
    }
    model = models[kind](model="tgi", openai_client=client)
    settings = agents.ModelSettings(temperature=0, max_tokens=100)
    agent = agents.Agent(name="Weather", model=model, tools=[get_weather], model_settings=settings)

    async def run() -> tuple[str, str]:
        whole = await agents.Runner.run(agent, WEATHER, max_turns=4)
        streamed = agents.Runner.run_streamed(agent, WEATHER, max_turns=4)
        async for _ in streamed.stream_events():
            pass
        return whole.final_output, streamed.final_output

    whole, streamed = asyncio.run(run())
    assert "21" in whole and streamed == whole


@pytest.mark.parametrize("kind", ["responses", "chats"])
@pytest.mark.golden
def test_pydantic_ai(url: str, kind: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="unused")
    model = {"responses": OpenAIResponsesModel, "chats": OpenAIChatModel}[kind]("tgi", provider=provider)
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 100})

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        return RESULT if city == "Paris" else "unknown"

    whole = agent.run_sync(WEATHER).output
    assert "21" in whole
    filled = Agent(model, output_type=Mood, model_settings={"temperature": 0, "max_tokens": 200})
    mood = filled.run_sync("How are you?").output
    assert isinstance(mood, Mood)

    async def stream() -> None:
        async with agent.run_stream(WEATHER) as run:
            pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        assert "".join(pieces) == whole and len(pieces) > 1
        async with filled.run_stream("How are you?") as run:
            assert [part async for part in run.stream_output(debounce_by=None)][-1] == mood

    asyncio.run(stream())


@pytest.mark.golden
def test_instructor(client: OpenAI) -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        mood = patched.chat.completions.create(
            model="tgi", messages=[{"role": "user", "content": "How are you?"}], response_model=Mood, max_tokens=200,
            temperature=0,
        )  # fmt: skip
        assert isinstance(mood, Mood)


class Place(BaseModel, extra="forbid"):
    city: str = Field(max_length=12)
    days: int = Field(ge=1, le=9)


@pytest.mark.golden
def test_instructor_fills_a_class_as_it_is_streamed(client: OpenAI) -> None:
    asked: Any = {
        "model": "tgi",
        "messages": [{"role": "user", "content": "Which place, and how many days?"}],
        "max_tokens": 200,
        "temperature": 0,
    }
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        whole = patched.chat.completions.create(response_model=Place, **asked)
        parts = list(patched.chat.completions.create_partial(response_model=Place, **asked))
        assert parts[-1].model_dump() == whole.model_dump(), mode
        assert parts[0].model_dump() != whole.model_dump(), "it grows"
