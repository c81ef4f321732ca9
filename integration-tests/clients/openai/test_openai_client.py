"""`openai` for Python: every option of both kinds of completions, its exception classes, sync and async. What the
server makes of the options is tested in `../../test_openai.py`."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from conftest import Guarded, Noticed
from prompts import ADD, REPEAT, WEATHER, WEATHER_ANSWERED, as_text, user

CHAT: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "logit_bias": {"17": -100},
    "logprobs": True,
    "max_completion_tokens": 6,
    "n": 2,
    "parallel_tool_calls": True,
    "presence_penalty": 0.5,
    "response_format": {"type": "text"},
    "seed": 11,
    "stop": ["never", "seen"],
    "temperature": 0.7,
    "top_logprobs": 3,
    "top_p": 0.9,
    "user": "someone",
    "extra_body": {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
}
COMPLETION: dict[str, Any] = {
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"17": -100},
    "logprobs": 2,
    "max_tokens": 6,
    "n": 1,
    "presence_penalty": 0.5,
    "seed": 11,
    "stop": "never",
    "temperature": 0.7,
    "top_p": 0.9,
    "user": "someone",
}
FUNCTION = {
    "name": "get_weather",
    "description": "The weather in a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
ENDLESS: dict[str, Any] = {"max_tokens": 1_900, "extra_body": {"ignore_eos": True}}


def connect(url: str, key: str = "unused") -> OpenAI:
    # No retries: a test must see the first answer.
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120)


@pytest.fixture
def client(url: str) -> OpenAI:
    return connect(url)


@pytest.mark.golden
def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tgi", messages=user(ADD), max_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens <= 8


@pytest.mark.golden
def test_a_chat_stream(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tgi", "messages": user(REPEAT), "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


@pytest.mark.golden
def test_the_stream_that_collects_itself(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="tgi", messages=user(REPEAT), max_tokens=8, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert {"content.delta", "content.done"} <= kinds
    assert message.content


@pytest.mark.golden
def test_a_chat_with_every_option(client: OpenAI) -> None:
    answers = [client.chat.completions.create(model="tgi", messages=user(ADD), **CHAT) for _ in range(2)]
    first, second = ([choice.message.content for choice in answer.choices] for answer in answers)
    assert first == second and len(first) == 2, "the seed, and n"
    logprobs = answers[0].choices[0].logprobs
    assert logprobs is not None and len(logprobs.content[0].top_logprobs) == 3


@pytest.mark.golden
def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="tgi", prompt=[as_text(ADD), as_text(REPEAT)], max_tokens=6)
    assert [choice.index for choice in answer.choices] == [0, 1]


@pytest.mark.golden
def test_a_completion_with_every_option(client: OpenAI) -> None:
    answer = client.completions.create(model="tgi", prompt=as_text(ADD), **COMPLETION)
    assert answer.choices[0].text.startswith("<|im_start|>") or answer.choices[0].text
    assert answer.choices[0].logprobs is not None
    chunks = list(
        client.completions.create(
            model="tgi", prompt=as_text(ADD), max_tokens=4, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[-1].usage is not None


@pytest.mark.golden
def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/knows")


@pytest.mark.golden
def test_messages_of_every_kind(client: OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'},
    }
    messages: Any = [
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Oslo?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": ADD, "name": "someone"},
    ]
    answer = client.chat.completions.create(model="tgi", messages=messages, max_tokens=6, temperature=0)
    assert answer.choices[0].message.role == "assistant"


@pytest.mark.golden
def test_tools(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    messages = user(WEATHER)
    options: dict[str, Any] = {"model": "tgi", "tools": tools, "temperature": 0}
    choice = client.chat.completions.create(messages=messages, tool_choice="required", **options).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"place": "Paris"}
    with client.chat.completions.stream(messages=messages, tool_choice="required", **options) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments and streamed.id.startswith("call_")
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}]
    whole = client.chat.completions.create(messages=messages, **options).choices[0].message.content
    assert WEATHER_ANSWERED in whole
    chunks = client.chat.completions.create(messages=messages, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


PLACE = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Bergen"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.mark.golden
def test_a_response_format(client: OpenAI) -> None:
    schema = {"name": "place", "schema": PLACE, "strict": True}
    options: dict[str, Any] = {"model": "tgi", "messages": user("A place?"), "max_tokens": 60}
    answer = client.chat.completions.create(
        response_format={"type": "json_schema", "json_schema": schema}, **options
    )
    place = json.loads(answer.choices[0].message.content or "")
    assert place["city"] in ("Oslo", "Bergen") and 1 <= place["days"] <= 9
    anything = client.chat.completions.create(response_format={"type": "json_object"}, **options)
    assert (anything.choices[0].message.content or "").startswith("{")


def test_an_answer_is_parsed_into_its_class(client: OpenAI) -> None:
    class Place(pydantic.BaseModel):
        city: Literal["Oslo", "Bergen"]
        days: int

    answer = client.chat.completions.parse(model="tgi", messages=user("A place?"), response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("temperature", -1), ("top_p", 2), ("max_tokens", 1_000_000), ("n", 1_000), ("presence_penalty", 9)],
)
def test_a_wrong_option_is_named(client: OpenAI, option: str, value: Any, stream: bool) -> None:
    options: dict[str, Any] = {"model": "tgi", "stream": stream, option: value}
    with pytest.raises(openai.UnprocessableEntityError, match=option) as caught:
        client.chat.completions.create(messages=user("x"), **options)
    code = "context_length_exceeded" if option == "max_tokens" else "validation"
    assert caught.value.param and caught.value.code == code
    with pytest.raises(openai.UnprocessableEntityError, match=option):
        client.completions.create(prompt="x", **options)


def test_errors_have_the_class_of_their_status(guarded: Guarded, busy: Guarded, starting: str) -> None:
    def ask(client: OpenAI) -> Any:
        return client.chat.completions.create(model="tgi", messages=user("x"), max_tokens=1)

    with pytest.raises(openai.AuthenticationError, match="not valid") as refused:
        ask(connect(guarded.url, "wrong"))
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.RateLimitError, match="overloaded") as overloaded:
        ask(connect(busy.url, busy.key))
    assert int(overloaded.value.response.headers["retry-after"]) >= 1
    with pytest.raises(openai.InternalServerError, match="starting") as unavailable:
        ask(connect(starting))
    assert unavailable.value.status_code == 503
    with pytest.raises(openai.NotFoundError, match="no route"):
        connect(guarded.url, guarded.key).embeddings.create(model="tgi", input="x")


def test_a_key_opens(guarded: Guarded) -> None:
    assert connect(guarded.url, guarded.key).models.list().data


def test_a_stream_that_is_left_is_noticed(client: OpenAI, noticed: Noticed) -> None:
    for _ in noticed():
        with client.completions.create(model="tgi", prompt="x", stream=True, **ENDLESS) as stream:
            next(iter(stream))


def test_async(url: str, noticed: Noticed) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            options: dict[str, Any] = {"model": "tgi", "max_tokens": 8, "temperature": 0}
            whole = await client.chat.completions.create(messages=user(REPEAT), **options)
            stream = await client.chat.completions.create(messages=user(REPEAT), stream=True, **options)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == whole.choices[0].message.content
            with pytest.raises(openai.UnprocessableEntityError, match="top_p"):
                await client.chat.completions.create(model="tgi", messages=user("x"), top_p=2)
            for _ in noticed():
                left = await client.completions.create(model="tgi", prompt="x", stream=True, **ENDLESS)
                await anext(aiter(left))
                await left.close()

    asyncio.run(ask())


def test_no_sampling_option_of_the_client_is_left_out() -> None:
    chat = set(inspect.signature(OpenAI(api_key="x").chat.completions.create).parameters)
    elsewhere = {"messages", "model", "max_tokens", "stream", "stream_options", "tools", "tool_choice"}
    transport = {"extra_headers", "extra_query", "timeout"}
    # Of OpenAI's own service, and of what this server does not do: sound, storage, web search.
    foreign = {"audio", "function_call", "functions", "metadata", "modalities", "moderation", "prediction",
               "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
               "safety_identifier", "service_tier", "store", "verbosity", "web_search_options"}  # fmt: skip
    assert chat - elsewhere - transport - foreign == set(CHAT)
