"""LiteLLM by both of its ways: `huggingface/` and `openai/`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import pytest

from conftest import ENDLESS_TOKENS, Guarded, Noticed
from prompts import (
    ADD,
    REPEAT,
    WEATHER,
    WEATHER_ANSWERED,
    WEATHER_CALLED,
    WEATHER_RESULT,
    WEATHER_TOOL,
    as_text,
    user,
)

WAYS = pytest.mark.parametrize("way", ["huggingface", "openai"])

OPTIONS: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "logprobs": True,
    "max_tokens": 6,
    "n": 1,
    "presence_penalty": 0.5,
    "seed": 11,
    "stop": ["never", "seen"],
    "temperature": 0.7,
    "top_logprobs": 2,
    "top_p": 0.9,
}


def options(way: str, url: str, key: str = "unused") -> dict[str, Any]:
    """`huggingface/` asks the hub nothing when it is given an `api_base`; `openai/` wants the `/v1`."""
    base = url if way == "huggingface" else f"{url}/v1"
    return {
        "model": f"{way}/penstock-tiny",
        "api_base": base,
        "api_key": key,
        "num_retries": 0,
        "max_retries": 0,
    }


@WAYS
@pytest.mark.golden
def test_tools(url: str, way: str) -> None:
    asked: dict[str, Any] = {
        **options(way, url), "tools": [WEATHER_TOOL], "temperature": 0.0, "max_tokens": 60,
    }  # fmt: skip
    messages = user(WEATHER)
    message = litellm.completion(messages=messages, **asked).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == WEATHER_CALLED
    chunks = list(litellm.completion(messages=messages, stream=True, **asked))
    streamed = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert (streamed.function.name, json.loads(streamed.function.arguments)) == WEATHER_CALLED
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
    messages = [*messages, message.model_dump(), result]
    whole = litellm.completion(messages=messages, **asked).choices[0].message.content
    assert WEATHER_ANSWERED in whole
    chunks = list(litellm.completion(messages=messages, stream=True, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


@WAYS
@pytest.mark.golden
def test_a_chat(url: str, way: str) -> None:
    answer: Any = litellm.completion(messages=user(ADD), max_tokens=8, temperature=0, **options(way, url))
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 0 and 0 < answer.usage.completion_tokens <= 8


@WAYS
@pytest.mark.golden
def test_a_chat_stream(url: str, way: str) -> None:
    asked: dict[str, Any] = {"messages": user(REPEAT), "max_tokens": 8, "temperature": 0, **options(way, url)}
    whole: Any = litellm.completion(**asked)
    chunks: Any = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


@WAYS
@pytest.mark.golden
def test_a_chat_with_every_option(url: str, way: str) -> None:
    answers: list[Any] = [
        litellm.completion(
            messages=user(ADD), extra_body={"top_k": 40}, drop_params=True, **OPTIONS, **options(way, url)
        )
        for _ in range(2)
    ]
    first, second = (answer.choices[0].message.content for answer in answers)
    assert first == second, "the seed"


@pytest.mark.golden
def test_a_completion(url: str) -> None:
    """Of `/v1/completions`; `huggingface/` has only chats."""
    base = {"model": "text-completion-openai/tgi", "api_base": f"{url}/v1", "api_key": "unused"}
    answer: Any = litellm.text_completion(prompt=as_text(ADD), max_tokens=6, temperature=0, **base)
    assert answer.choices[0].text


@WAYS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_wrong_option_is_named(url: str, way: str, stream: bool) -> None:
    with pytest.raises(Exception, match="top_p") as caught:
        litellm.completion(messages=user("x"), top_p=2.0, stream=stream, **options(way, url))
    assert caught.value.status_code == 422


@WAYS
def test_errors_have_the_class_of_their_status(
    guarded: Guarded, busy: Guarded, starting: str, way: str
) -> None:
    with pytest.raises(litellm.exceptions.AuthenticationError, match="not valid"):
        litellm.completion(messages=user("x"), **options(way, guarded.url, "wrong"))
    with pytest.raises(litellm.exceptions.RateLimitError, match="overloaded"):
        litellm.completion(messages=user("x"), **options(way, busy.url, busy.key))
    with pytest.raises(litellm.exceptions.ServiceUnavailableError, match="starting"):
        litellm.completion(messages=user("x"), **options(way, starting))


@WAYS
def test_an_async_stream_that_is_left_is_noticed(url: str, way: str, noticed: Noticed) -> None:
    """Of the streams that are not async it closes none."""

    async def leave() -> None:
        stream: Any = await litellm.acompletion(
            messages=user("x"),
            max_tokens=ENDLESS_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
            **options(way, url),
        )
        await anext(aiter(stream))
        await stream.aclose()

    for _ in noticed():
        asyncio.run(leave())


@WAYS
def test_async(url: str, way: str) -> None:
    async def ask() -> None:
        asked: dict[str, Any] = {
            "messages": user(REPEAT),
            "max_tokens": 8,
            "temperature": 0,
            **options(way, url),
        }
        whole: Any = await litellm.acompletion(**asked)
        stream: Any = await litellm.acompletion(stream=True, **asked)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == whole.choices[0].message.content

    asyncio.run(ask())
