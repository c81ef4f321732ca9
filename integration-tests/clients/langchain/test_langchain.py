"""LangChain: `HuggingFaceEndpoint` and `ChatHuggingFace` of `langchain-huggingface`, `ChatOpenAI` and `OpenAI` of
`langchain-openai`."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from huggingface_hub.errors import HfHubHTTPError, OverloadedError, UnknownError, ValidationError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI, OpenAI

from conftest import ENDLESS_SEED, ENDLESS_TEMPERATURE, ENDLESS_TOKENS, Guarded, Noticed
from prompts import (
    ADD,
    REPEAT,
    WEATHER,
    WEATHER_ANSWERED,
    WEATHER_CALLED,
    WEATHER_RESULT,
    as_text,
)

# Every sampling option of the class; `top_p` and `typical_p` are 0.95, and `temperature` 0.8, unless told otherwise.
OPTIONS: dict[str, Any] = {
    "do_sample": True,
    "max_new_tokens": 8,
    "repetition_penalty": 1.2,
    "return_full_text": False,
    "seed": 11,
    "stop_sequences": ["never", "seen"],
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "truncate": 40,
    "typical_p": 0.9,
}


def endpoint(url: str, key: str | None = None, **options: Any) -> HuggingFaceEndpoint:
    # It sends no token to an address of one's own, so that a key goes by the headers.
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return HuggingFaceEndpoint(
        endpoint_url=url, server_kwargs={"headers": headers}, **{"max_new_tokens": 8, "seed": 1, **options}
    )


def chat(url: str, key: str | None = None, **options: Any) -> ChatHuggingFace:
    # With `model_id` it does not look for the model on the hub.
    return ChatHuggingFace(llm=endpoint(url, key), model_id="penstock-tiny", **{"max_tokens": 8, **options})


def chat_openai(url: str, key: str = "unused", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="tgi", max_retries=0, **options)


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return city


class Mood(pydantic.BaseModel, extra="forbid"):
    """How somebody is"""

    mood: Literal["good", "bad"]


def is_called(message: Any) -> None:
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == WEATHER_CALLED


def collected(chunks: Iterator[Any]) -> Any:
    return functools.reduce(operator.add, chunks)


def goes_round(model: Any) -> None:
    """Call, result and answer, whole and streamed, with a model that was told of the tool."""
    called = model.invoke(WEATHER)
    is_called(called)
    is_called(collected(model.stream(WEATHER)))
    result = ToolMessage(WEATHER_RESULT, tool_call_id=called.tool_calls[0]["id"])
    conversation = [HumanMessage(WEATHER), called, result]
    whole = model.invoke(conversation).content
    assert WEATHER_ANSWERED in whole
    assert collected(model.stream(conversation)).content == whole


# langchain-huggingface.


@pytest.mark.golden
def test_the_endpoint(url: str) -> None:
    assert endpoint(url).invoke(as_text(ADD))


@pytest.mark.golden
def test_the_endpoint_with_every_option(url: str) -> None:
    llm = endpoint(url, **OPTIONS)
    assert llm.invoke(as_text(ADD)) == llm.invoke(as_text(ADD)), "the seed"


@pytest.mark.golden
def test_a_stream_of_the_endpoint(url: str) -> None:
    llm = endpoint(url)
    assert "".join(llm.stream(as_text(REPEAT))).startswith(llm.invoke(as_text(REPEAT)))


def test_a_stop_string_of_the_endpoint_is_cut_off_by_it(url: str) -> None:
    llm = endpoint(url, temperature=0.01)
    whole = llm.invoke(as_text(REPEAT))
    assert llm.invoke(as_text(REPEAT), stop=[whole[2:4]]) == whole[: whole.index(whole[2:4])]


@pytest.mark.golden
def test_a_wrong_option_of_the_endpoint(url: str) -> None:
    with pytest.raises(ValidationError, match="top_p"):
        endpoint(url, top_p=2.0).invoke("x")
    with pytest.raises(ValidationError, match="top_p"):
        list(endpoint(url, top_p=2.0).stream("x"))


def test_errors_of_the_endpoint(guarded: Guarded, busy: Guarded) -> None:
    with pytest.raises(UnknownError, match="not valid"):
        endpoint(guarded.url, "wrong").invoke("x")
    with pytest.raises(OverloadedError, match="overloaded"):
        endpoint(busy.url, busy.key).invoke("x")


def test_a_server_that_starts(starting: str) -> None:
    with pytest.raises(HfHubHTTPError, match="starting"):
        endpoint(starting).invoke("x")


@pytest.mark.golden
def test_the_chat(url: str) -> None:
    answer = chat(url).invoke(ADD)
    assert answer.content
    assert answer.usage_metadata is not None and 0 < answer.usage_metadata["output_tokens"] <= 8


@pytest.mark.golden
def test_the_chat_with_every_option(url: str) -> None:
    options = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "n": 1, "stop": ["never", "seen"]}
    more = {"frequency_penalty": 0.5, "presence_penalty": 0.5, "logprobs": True, "top_logprobs": 2}
    model = chat(url, **options).bind(**more)
    first, second = (model.invoke(ADD) for _ in range(2))
    assert first.content == second.content


@pytest.mark.golden
def test_a_stream_of_the_chat(url: str) -> None:
    model = chat(url, temperature=0.01, seed=1)
    chunks = list(model.stream(REPEAT))
    assert "".join(str(chunk.content) for chunk in chunks) == model.invoke(REPEAT).content


@pytest.mark.golden
def test_tools_of_the_chat(url: str) -> None:
    model = chat(url, temperature=0.01, max_tokens=60)
    goes_round(model.bind_tools([get_weather]))
    is_called(model.bind_tools([get_weather], tool_choice="required").invoke(WEATHER))


@pytest.mark.golden
def test_structured_output_of_the_chat(url: str) -> None:
    """It takes a class for a schema alone, and gives back a dictionary."""
    model = chat(url, temperature=0.01, max_tokens=60)
    for method in ("json_schema", "function_calling"):
        filling = model.with_structured_output(Mood.model_json_schema(), method=method)
        given = filling.invoke("How are you?")
        assert Mood.model_validate(given)
        parts = list(filling.stream("How are you?"))
        assert parts[-1] == given and parts[0] != given, "it grows"


def test_a_stream_of_the_endpoint_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    llm = endpoint(
        url,
        seed=ENDLESS_SEED,
        temperature=ENDLESS_TEMPERATURE,
        top_p=None,
        typical_p=None,
        max_new_tokens=ENDLESS_TOKENS,
    )
    for _ in noticed():
        stream = llm.stream("x")
        next(stream)
        stream.close()
        llm.client.exit_stack.close()  # the client keeps it open until it is closed itself


# langchain-openai.


@pytest.mark.golden
def test_chat_openai(url: str) -> None:
    chain = ChatPromptTemplate.from_messages([("system", "Answer briefly."), ("user", "{question}")])
    model = chat_openai(url, temperature=0, max_tokens=8)
    assert (chain | model | StrOutputParser()).invoke({"question": ADD})
    answer = model.invoke(ADD)
    assert answer.usage_metadata is not None and answer.usage_metadata["input_tokens"] > 0


@pytest.mark.golden
def test_chat_openai_with_every_option(url: str) -> None:
    model = chat_openai(
        url,
        frequency_penalty=0.5,
        logit_bias={17: -100},
        logprobs=True,
        max_completion_tokens=8,
        n=2,
        presence_penalty=0.5,
        seed=11,
        stop=["never", "seen"],
        temperature=0.7,
        top_logprobs=2,
        top_p=0.9,
        extra_body={"top_k": 40},
    )
    first, second = (model.generate([[HumanMessage(ADD)]]) for _ in range(2))
    assert len(first.generations[0]) == 2
    assert [one.text for one in first.generations[0]] == [one.text for one in second.generations[0]]


@pytest.mark.golden
def test_a_stream_of_chat_openai(url: str) -> None:
    model = chat_openai(url, temperature=0, max_tokens=8, stream_usage=True)
    chunks = list(model.stream(REPEAT))
    assert "".join(str(chunk.content) for chunk in chunks) == model.invoke(REPEAT).content
    assert any(chunk.usage_metadata for chunk in chunks)


@pytest.mark.golden
def test_the_completions_of_openai(url: str) -> None:
    llm = OpenAI(
        base_url=f"{url}/v1", api_key="unused", model="tgi", max_retries=0, temperature=0, max_tokens=8, seed=1
    )  # fmt: skip
    whole = llm.invoke(as_text(REPEAT))
    assert "".join(llm.stream(as_text(REPEAT))) == whole
    assert len(llm.generate([as_text(ADD), as_text(REPEAT)]).generations) == 2


@pytest.mark.golden
def test_tools_of_chat_openai(url: str) -> None:
    model = chat_openai(url, temperature=0.0)
    goes_round(model.bind_tools([get_weather]))
    is_called(model.bind_tools([get_weather], tool_choice="any").invoke(WEATHER))
    for method in ("json_schema", "function_calling"):
        filling = model.with_structured_output(Mood, method=method)
        mood = filling.invoke("How are you?")
        assert isinstance(mood, Mood)
        assert list(filling.stream("How are you?"))[-1] == mood
        parts = list(
            model.with_structured_output(Mood.model_json_schema(), method=method).stream("How are you?")
        )
        assert parts[-1] == mood.model_dump() and parts[0] != parts[-1], "it grows"


def test_errors_of_chat_openai(url: str, guarded: Guarded, busy: Guarded, starting: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        chat_openai(url, temperature=-1).invoke("x")
    with pytest.raises(openai.AuthenticationError, match="not valid"):
        chat_openai(guarded.url, "wrong").invoke("x")
    with pytest.raises(openai.RateLimitError, match="overloaded"):
        chat_openai(busy.url, busy.key).invoke("x")
    with pytest.raises(openai.InternalServerError, match="starting"):
        chat_openai(starting).invoke("x")


def test_a_stream_of_chat_openai_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    model = chat_openai(url, max_tokens=ENDLESS_TOKENS, extra_body={"ignore_eos": True})
    for _ in noticed():
        stream = model.stream("x")
        next(stream)
        stream.close()


# Both, async.


def test_async(url: str) -> None:
    async def ask() -> None:
        llm = endpoint(url, temperature=0.01)
        whole = await llm.ainvoke(as_text(REPEAT))
        assert "".join([piece async for piece in llm.astream(as_text(REPEAT))]).startswith(whole)
        for model in (chat(url, temperature=0.01, seed=1), chat_openai(url, temperature=0, max_tokens=8)):
            answer = await model.ainvoke(REPEAT)
            chunks = [chunk async for chunk in model.astream(REPEAT)]
            assert "".join(str(chunk.content) for chunk in chunks) == answer.content
        with pytest.raises(ValidationError, match="top_p"):
            await endpoint(url, top_p=2.0).ainvoke("x")
        answers = await chat_openai(url, temperature=0, max_tokens=4).abatch([ADD, REPEAT, ADD])
        assert len(answers) == 3

    asyncio.run(ask())
