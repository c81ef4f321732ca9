"""LlamaIndex: `HuggingFaceInferenceAPI`, as chat and as text, and `OpenAILike`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from huggingface_hub.errors import HfHubHTTPError, OverloadedError, UnknownError, ValidationError
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.huggingface_api import HuggingFaceInferenceAPI
from llama_index.llms.openai_like import OpenAILike

from conftest import ENDLESS_TOKENS, Guarded, Noticed
from prompts import ADD, REPEAT, WEATHER, WEATHER_ANSWERED, WEATHER_CALLED, WEATHER_RESULT, as_text


def hugging_face(url: str, task: str = "conversational", **options: Any) -> HuggingFaceInferenceAPI:
    return HuggingFaceInferenceAPI(
        model_name=url, task=task, **{"num_output": 8, "temperature": 0.01, "timeout": 120, **options}
    )


def openai_like(url: str, key: str = "unused", **options: Any) -> OpenAILike:
    return OpenAILike(
        api_base=f"{url}/v1",
        api_key=key,
        model="tgi",
        context_window=2048,
        max_retries=0,
        **{"is_chat_model": True, "max_tokens": 8, "temperature": 0.0, **options},
    )


def asked(question: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content="Answer briefly."), ChatMessage(role="user", content=question)]


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return city


TOOLS = [FunctionTool.from_defaults(get_weather)]


# The Hugging Face API.


@pytest.mark.golden
def test_a_chat(url: str) -> None:
    llm = hugging_face(url)
    assert llm.chat(asked(ADD), seed=1).message.content
    assert llm.complete(ADD, seed=1).text


@pytest.mark.golden
def test_a_chat_stream(url: str) -> None:
    llm = hugging_face(url)
    pieces = list(llm.stream_chat(asked(REPEAT), seed=1))
    assert "".join(piece.delta or "" for piece in pieces) == llm.chat(asked(REPEAT), seed=1).message.content


@pytest.mark.golden
def test_a_chat_with_every_option(url: str) -> None:
    options: dict[str, Any] = {
        "frequency_penalty": 0.5,
        "logprobs": True,
        "presence_penalty": 0.5,
        "seed": 11,
        "stop": ["never", "seen"],
        "temperature": 0.7,
        "top_logprobs": 2,
        "top_p": 0.9,
    }
    llm = hugging_face(url)
    first, second = (llm.chat(asked(ADD), **options) for _ in range(2))
    assert first.message.content == second.message.content
    assert first.raw is not None and first.raw.choices[0].logprobs is not None


@pytest.mark.golden
def test_a_text(url: str) -> None:
    llm = hugging_face(url, "text-generation")
    options: dict[str, Any] = {"return_full_text": False, "seed": 1}
    whole = llm.complete(as_text(REPEAT), **options).text
    assert whole
    pieces = list(llm.stream_complete(as_text(REPEAT), **options))
    assert pieces[-1].text.startswith(whole)


@pytest.mark.golden
def test_a_text_with_every_option(url: str) -> None:
    llm = hugging_face(url, "text-generation")
    text = llm.complete(
        as_text(ADD),
        best_of=2,
        do_sample=True,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        return_full_text=False,
        stop=["never"],
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        truncate=20,
        typical_p=0.9,
    ).text
    assert isinstance(text, str)


def test_it_learns_the_context_window_from_the_server(url: str) -> None:
    assert hugging_face(url, provider="hf-inference").context_window == 2047


@pytest.mark.golden
def test_a_wrong_option(url: str) -> None:
    with pytest.raises(HfHubHTTPError, match="top_p") as caught:
        hugging_face(url).chat(asked("x"), top_p=2.0)
    assert caught.value.response.status_code == 422
    with pytest.raises(ValidationError, match="top_p"):
        hugging_face(url, "text-generation").complete("x", top_p=2.0)


def test_errors(guarded: Guarded, busy: Guarded, starting: str) -> None:
    for task in ("conversational", "text-generation"):
        unauthorized = HfHubHTTPError if task == "conversational" else UnknownError
        with pytest.raises(unauthorized, match="not valid"):
            hugging_face(guarded.url, task, token="wrong").complete("x")
        with pytest.raises((HfHubHTTPError, OverloadedError), match="overloaded"):
            hugging_face(busy.url, task, token=busy.key).complete("x")
        with pytest.raises(HfHubHTTPError, match="starting"):
            hugging_face(starting, task).complete("x")


# OpenAILike.


@pytest.mark.golden
def test_openai_like(url: str) -> None:
    llm = openai_like(url)
    assert llm.chat(asked(ADD)).message.content
    completion = openai_like(url, is_chat_model=False)
    assert completion.complete(as_text(ADD)).text


@pytest.mark.golden
def test_streams_of_openai_like(url: str) -> None:
    llm = openai_like(url, additional_kwargs={"stream_options": {"include_usage": True}})
    whole = openai_like(url).chat(asked(REPEAT)).message.content
    assert "".join(piece.delta or "" for piece in llm.stream_chat(asked(REPEAT))) == whole
    completion = openai_like(url, is_chat_model=False)
    pieces = list(completion.stream_complete(as_text(REPEAT)))
    assert pieces[-1].text == completion.complete(as_text(REPEAT)).text


@pytest.mark.golden
def test_openai_like_with_every_option(url: str) -> None:
    options = {
        "frequency_penalty": 0.5,
        "logit_bias": {"17": -100},
        "presence_penalty": 0.5,
        "seed": 11,
        "stop": ["never", "seen"],
        "top_p": 0.9,
        "extra_body": {"top_k": 40},
    }
    llm = openai_like(url, temperature=0.7, logprobs=True, top_logprobs=2, additional_kwargs=options)
    first, second = (llm.chat(asked(ADD)) for _ in range(2))
    assert first.message.content == second.message.content
    assert first.logprobs


@pytest.mark.golden
@pytest.mark.parametrize("required", [False, True], ids=["auto", "required"])
def test_tools_of_openai_like(url: str, required: bool) -> None:
    llm = openai_like(url, is_function_calling_model=True, max_tokens=100)
    response = llm.chat_with_tools(TOOLS, WEATHER, tool_required=required)
    (call,) = llm.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == WEATHER_CALLED
    (*_, last) = llm.stream_chat_with_tools(TOOLS, WEATHER, tool_required=required)
    (streamed,) = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == WEATHER_CALLED
    result = ChatMessage(
        role="tool", content=WEATHER_RESULT, additional_kwargs={"tool_call_id": call.tool_id}
    )
    conversation = [ChatMessage(role="user", content=WEATHER), response.message, result]
    whole = llm.chat_with_tools(TOOLS, chat_history=conversation).message.content
    assert whole is not None and WEATHER_ANSWERED in whole
    pieces = llm.stream_chat_with_tools(TOOLS, chat_history=conversation)
    assert "".join(piece.delta or "" for piece in pieces) == whole


def test_errors_of_openai_like(url: str, guarded: Guarded, busy: Guarded, starting: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="top_p"):
        openai_like(url).chat(asked("x"), top_p=2.0)
    with pytest.raises(openai.AuthenticationError, match="not valid"):
        openai_like(guarded.url, "wrong").chat(asked("x"))
    with pytest.raises(openai.RateLimitError, match="overloaded"):
        openai_like(busy.url, busy.key).chat(asked("x"))
    with pytest.raises(openai.InternalServerError, match="starting"):
        openai_like(starting).chat(asked("x"))


def test_a_stream_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    endless = {"extra_body": {"ignore_eos": True}}
    llm = openai_like(url, max_tokens=ENDLESS_TOKENS, additional_kwargs=endless)
    for _ in noticed():
        stream: Any = llm.stream_chat(asked("x"))
        next(stream)
        stream.close()


def test_async(url: str) -> None:
    async def ask() -> None:
        for llm in (hugging_face(url), openai_like(url)):
            whole = await llm.achat(asked(REPEAT), seed=1)
            pieces = [piece async for piece in await llm.astream_chat(asked(REPEAT), seed=1)]
            assert "".join(piece.delta or "" for piece in pieces) == whole.message.content
        text = hugging_face(url, "text-generation")
        assert (await text.acomplete(as_text(ADD), seed=1)).text
        with pytest.raises(ValidationError, match="top_p"):
            await text.acomplete("x", top_p=2.0)

    asyncio.run(ask())
