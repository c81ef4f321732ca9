"""Haystack 3: `HuggingFaceAPIChatGenerator` of `huggingface-api-haystack`, and `OpenAIChatGenerator`. The generators
of plain text ended with Haystack 2: `../haystack_2`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.generators.huggingface_api import HuggingFaceAPIChatGenerator
from huggingface_hub.errors import HfHubHTTPError

from conftest import ENDLESS_TOKENS, Guarded, Noticed
from prompts import ADD, REPEAT, WEATHER, WEATHER_ANSWERED, WEATHER_CALLED, WEATHER_FUNCTION, WEATHER_RESULT

OPTIONS: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "logprobs": True,
    "max_tokens": 8,
    "presence_penalty": 0.5,
    "seed": 11,
    "temperature": 0.7,
    "top_logprobs": 2,
    "top_p": 0.9,
}


def hugging_face(url: str, key: str | None = None, **options: Any) -> HuggingFaceAPIChatGenerator:
    return HuggingFaceAPIChatGenerator(
        api_type="text_generation_inference",
        api_params={"url": url},
        token=Secret.from_token(key) if key else None,
        generation_kwargs={"max_tokens": 8, "temperature": 0.0, **options},
    )


def chat_openai(url: str, key: str = "unused", **options: Any) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        api_base_url=f"{url}/v1",
        api_key=Secret.from_token(key),
        model="tgi",
        max_retries=0,
        timeout=120.0,
        generation_kwargs={"max_tokens": 8, "temperature": 0.0, **options},
    )


BOTH = pytest.mark.parametrize("connect", [hugging_face, chat_openai])


def asked(question: str) -> list[ChatMessage]:
    return [ChatMessage.from_system("Answer briefly."), ChatMessage.from_user(question)]


def weather() -> Tool:
    return Tool(**WEATHER_FUNCTION, function=lambda city: city)


@BOTH
@pytest.mark.golden
def test_a_chat(url: str, connect: Any) -> None:
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user("{{ question }}")]))
    pipeline.add_component("model", connect(url))
    pipeline.connect("prompt.prompt", "model.messages")
    (reply,) = pipeline.run({"prompt": {"question": ADD}})["model"]["replies"]
    assert reply.text
    assert reply.meta["usage"]["completion_tokens"] > 0


@BOTH
@pytest.mark.golden
def test_a_chat_stream(url: str, connect: Any) -> None:
    pieces: list[StreamingChunk] = []
    (streamed,) = connect(url).run(asked(REPEAT), streaming_callback=pieces.append)["replies"]
    (whole,) = connect(url).run(asked(REPEAT))["replies"]
    assert "".join(piece.content for piece in pieces) == streamed.text == whole.text


@BOTH
@pytest.mark.golden
def test_a_chat_with_every_option(url: str, connect: Any) -> None:
    first, second = (
        connect(url, stop=["never", "seen"], **OPTIONS).run(asked(ADD))["replies"] for _ in range(2)
    )
    assert first[0].text == second[0].text, "the seed"


def test_a_stop_string(url: str) -> None:
    for connect in (hugging_face, chat_openai):
        (whole,) = connect(url).run(asked(REPEAT))["replies"]
        (cut,) = connect(url, stop=[whole.text[2:4]]).run(asked(REPEAT))["replies"]
        assert cut.text == whole.text[: whole.text.index(whole.text[2:4])]


@BOTH
@pytest.mark.golden
def test_a_round_of_call_result_and_answer(url: str, connect: Any) -> None:
    generator = connect(url, max_tokens=60)
    answers = []
    for told in (None, lambda piece: None):
        options: dict[str, Any] = {"tools": [weather()], "streaming_callback": told}
        question = asked(WEATHER)
        (reply,) = generator.run(question, **options)["replies"]
        (call,) = reply.tool_calls
        assert (call.tool_name, call.arguments) == WEATHER_CALLED
        result = ChatMessage.from_tool(WEATHER_RESULT, origin=call)
        (answer,) = generator.run([*question, reply, result], **options)["replies"]
        answers.append(answer.text)
    whole, streamed = answers
    assert WEATHER_ANSWERED in whole and streamed == whole


def test_errors_of_hugging_face(url: str, guarded: Guarded, busy: Guarded, starting: str) -> None:
    for generator, status, said in (
        (hugging_face(url, top_p=2.0), 422, "top_p"),
        (hugging_face(guarded.url, "wrong"), 401, "not valid"),
        (hugging_face(busy.url, busy.key), 429, "overloaded"),
        (hugging_face(starting), 503, "starting"),
    ):
        with pytest.raises(HfHubHTTPError, match=said) as caught:
            generator.run(asked("x"))
        assert caught.value.response.status_code == status


def test_errors_of_openai(url: str, guarded: Guarded, busy: Guarded, starting: str) -> None:
    for generator, kind, said in (
        (chat_openai(url, top_p=2.0), openai.UnprocessableEntityError, "top_p"),
        (chat_openai(guarded.url, "wrong"), openai.AuthenticationError, "not valid"),
        (chat_openai(busy.url, busy.key), openai.RateLimitError, "overloaded"),
        (chat_openai(starting), openai.InternalServerError, "starting"),
    ):
        with pytest.raises(kind, match=said):
            generator.run(asked("x"))


class Enough(Exception):
    pass


def test_a_stream_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    def leave(chunk: StreamingChunk) -> None:
        raise Enough

    # More than what lies between the two holds, so that a busy machine's client leaves before its end.
    endless = {"ignore_eos": True, "logprobs": True, "top_logprobs": 5}
    generator = chat_openai(url, max_tokens=ENDLESS_TOKENS, extra_body=endless)
    for _ in noticed():
        with pytest.raises(Enough):
            generator.run(asked("x"), streaming_callback=leave)


def test_async(url: str) -> None:
    async def ask() -> None:
        for connect in (hugging_face, chat_openai):
            generator: Any = connect(url)
            pieces: list[StreamingChunk] = []

            async def take(chunk: StreamingChunk, pieces: list[StreamingChunk] = pieces) -> None:
                pieces.append(chunk)

            (whole,) = (await generator.run_async(asked(REPEAT)))["replies"]
            await generator.run_async(asked(REPEAT), streaming_callback=take)
            assert "".join(piece.content for piece in pieces) == whole.text

    asyncio.run(ask())
