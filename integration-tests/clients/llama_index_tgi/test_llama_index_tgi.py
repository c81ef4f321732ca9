"""LlamaIndex's `TextGenerationInference`: deprecated in favour of the class that `../llama_index` tests, and still
to be had, with the LlamaIndex of its time."""

from __future__ import annotations

import json

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.text_generation_inference import TextGenerationInference
from tgi.errors import UnknownError

from conftest import Guarded
from prompts import ADD, WEATHER, WEATHER_CALLED

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def connect(url: str, **options: object) -> TextGenerationInference:
    return TextGenerationInference(model_url=url, **{"max_tokens": 8, "seed": "1", **options})


@pytest.mark.golden
def test_a_chat(url: str) -> None:
    llm = connect(url, temperature=0.5)
    assert llm.metadata.context_window == 2048, "it asks /info"
    first, second = (llm.chat([ChatMessage(role="user", content=ADD)]) for _ in range(2))
    assert first.message.content and first.message.content == second.message.content
    assert llm.complete(ADD).text


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return city


def test_a_call_is_in_the_message(url: str) -> None:
    """Its own reader looks for the arguments under another name than TGI's and OpenAI's answers have."""
    llm = connect(url, temperature=0.01, max_tokens=60)
    answer = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], WEATHER)
    (call,) = answer.message.additional_kwargs["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == WEATHER_CALLED
    with pytest.raises(KeyError, match="parameters"):
        llm.get_tool_calls_from_response(answer)


def test_errors_keep_their_message(url: str, guarded: Guarded) -> None:
    with pytest.raises(UnknownError, match="max_tokens"):
        connect(url, max_tokens=1_000_000).complete("x")
    with pytest.raises(UnknownError, match="not valid"):
        connect(guarded.url, token="wrong").complete("x")
