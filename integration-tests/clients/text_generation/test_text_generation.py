"""`text-generation` 0.7, the client that TGI came with: both classes, every option, its exception classes."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from typing import Any

import pytest
from text_generation import AsyncClient, Client
from text_generation.errors import OverloadedError, UnknownError, ValidationError
from text_generation.types import FinishReason, Grammar, GrammarType, Message, Tool

from conftest import ENDLESS_SEED, ENDLESS_TEMPERATURE, ENDLESS_TOKENS, Guarded, Noticed
from prompts import ADD, REPEAT, as_text

OPTIONS: dict[str, Any] = {
    "best_of": 2,
    "decoder_input_details": True,
    "do_sample": True,
    "frequency_penalty": 0.5,
    "max_new_tokens": 6,
    "repetition_penalty": 1.2,
    "return_full_text": True,
    "stop_sequences": ["never", "seen"],
    "temperature": 0.7,
    "top_k": 5,
    "top_n_tokens": 2,
    "top_p": 0.9,
    "truncate": 20,
    "typical_p": 0.9,
}
NOT_IN_A_STREAM = {"best_of", "decoder_input_details"}
CHAT: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "logit_bias": [0.5],  # which has no effect, as in TGI: it does not say which tokens are meant
    "logprobs": True,
    "max_tokens": 6,
    "n": 1,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.2,
    "seed": 11,
    "temperature": 0.7,
    "top_logprobs": 3,
    "top_p": 0.9,
}


@pytest.fixture
def client(url: str) -> Client:
    return Client(url, timeout=120)


def question(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_no_option_of_the_client_is_left_out() -> None:
    generate = set(inspect.signature(Client.generate).parameters) - {"self", "prompt"}
    assert generate == {*OPTIONS, "seed", "grammar", "watermark"}
    chat = set(inspect.signature(Client.chat).parameters) - {"self", "messages"}
    assert chat == {*CHAT, "stream", "tools", "tool_choice"}


@pytest.mark.golden
def test_a_text(client: Client) -> None:
    answer = client.generate(as_text(ADD), max_new_tokens=12)
    assert answer.generated_text
    assert answer.details.generated_tokens == len(answer.details.tokens)
    assert answer.details.finish_reason in FinishReason


@pytest.mark.golden
def test_a_text_with_every_option(client: Client) -> None:
    answer = client.generate(as_text(ADD), **OPTIONS)
    assert answer.generated_text.startswith(as_text(ADD)), "return_full_text"
    assert answer.details.best_of_sequences is not None and len(answer.details.best_of_sequences) == 1
    assert answer.details.top_tokens is not None and len(answer.details.top_tokens[0]) == 2
    assert 0 < len(answer.details.prefill) <= 20, "decoder_input_details and truncate"


@pytest.mark.golden
def test_a_stream(client: Client) -> None:
    options = {key: value for key, value in OPTIONS.items() if key not in NOT_IN_A_STREAM}
    pieces = list(client.generate_stream(as_text(REPEAT), seed=3, **options))
    whole = client.generate(as_text(REPEAT), seed=3, **options)
    assert pieces[-1].generated_text == whole.generated_text
    assert [piece.token.id for piece in pieces] == [token.id for token in whole.details.tokens]
    assert pieces[-1].details is not None
    assert pieces[-1].details.seed == whole.details.seed == 3
    assert all(piece.top_tokens and len(piece.top_tokens) == 2 for piece in pieces)


def test_a_stop_string_is_kept(client: Client) -> None:
    whole = client.generate(as_text(REPEAT), max_new_tokens=10).generated_text
    cut = client.generate(as_text(REPEAT), max_new_tokens=10, stop_sequences=[whole[2:4]])
    assert cut.generated_text == whole[: whole.index(whole[2:4]) + 2]
    assert cut.details.finish_reason == FinishReason.StopSequence


@pytest.mark.golden
def test_a_validation_error(client: Client) -> None:
    with pytest.raises(ValidationError, match="max_new_tokens"):
        client.generate("x", max_new_tokens=1_000_000)
    with pytest.raises(ValidationError, match="max_new_tokens"):
        list(client.generate_stream("x", max_new_tokens=1_000_000))


@pytest.mark.golden
def test_a_grammar(client: Client) -> None:
    grammar = Grammar(type=GrammarType.Regex, value="[0-9]{3}")
    answer = client.generate("x", grammar=grammar, max_new_tokens=40)
    assert re.fullmatch("[0-9]{3}", answer.generated_text)


def test_a_busy_server_is_an_overloaded_error(busy: Guarded) -> None:
    client = Client(busy.url, headers={"Authorization": f"Bearer {busy.key}"})
    with pytest.raises(OverloadedError, match="overloaded"):
        client.generate("x")
    with pytest.raises(OverloadedError, match="overloaded"):
        list(client.generate_stream("x"))


def test_what_this_client_has_no_class_for_keeps_its_message(guarded: Guarded, starting: str) -> None:
    with pytest.raises(UnknownError, match="API key is required"):
        Client(guarded.url).generate("x")
    with pytest.raises(UnknownError, match="not valid"):
        Client(guarded.url, headers={"Authorization": "Bearer wrong"}).generate("x")
    with pytest.raises(UnknownError, match="starting"):
        Client(starting).generate("x")
    answer = Client(guarded.url, headers={"Authorization": f"Bearer {guarded.key}"}, timeout=120)
    assert answer.generate(as_text(ADD), max_new_tokens=2).generated_text


def test_a_stream_that_is_left_is_noticed(client: Client, noticed: Noticed) -> None:
    for _ in noticed():
        stream = client.generate_stream(
            "x",
            do_sample=True,
            seed=ENDLESS_SEED,
            temperature=ENDLESS_TEMPERATURE,
            max_new_tokens=ENDLESS_TOKENS,
        )
        next(stream)
        stream.close()


@pytest.mark.golden
def test_a_chat(client: Client) -> None:
    answer = client.chat(question(ADD), **CHAT)
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].logprobs is not None
    assert answer.usage["completion_tokens"] <= 6
    again = client.chat(question(ADD), **CHAT)
    assert again.choices[0].message.content == answer.choices[0].message.content, "the seed"


@pytest.mark.golden
def test_tools(client: Client) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Get the weather in a city", "parameters": schema}
    tools = [Tool(type="function", function=function)]
    for choice in ("auto", "get_weather"):
        answer = client.chat(
            question("What is the weather in Paris?"), tools=tools, tool_choice=choice, temperature=0.01
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    conversation = [
        *question("What is the weather in Paris?"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content='{"temperature": 21, "condition": "sunny"}'),
    ]
    answer = client.chat(conversation, tools=tools, temperature=0.01)
    assert "21" in answer.choices[0].message.content


def test_an_error_of_a_chat_has_its_message(client: Client) -> None:
    with pytest.raises(UnknownError, match="temperature"):
        client.chat(question("x"), temperature=-1.0)


def test_the_end_of_a_chat_stream_is_more_than_this_client_can_read(client: Client) -> None:
    """It demands `tool_calls` in each piece, and takes `[DONE]` for JSON: it could not read TGI 3's either."""
    with pytest.raises((AttributeError, ValueError)):
        list(client.chat(question(ADD), stream=True, max_tokens=4))


def test_async(url: str, noticed: Noticed) -> None:
    async def ask() -> None:
        client = AsyncClient(url, timeout=120)
        whole = await client.generate(as_text(REPEAT), max_new_tokens=8)
        pieces = [piece async for piece in client.generate_stream(as_text(REPEAT), max_new_tokens=8)]
        assert pieces[-1].generated_text == whole.generated_text
        chat: Any = await client.chat(question(ADD), max_tokens=4)
        assert chat.choices[0].message.content
        with pytest.raises(ValidationError, match="max_new_tokens"):
            await client.generate("x", max_new_tokens=1_000_000)
        for _ in noticed():
            stream: Any = client.generate_stream(
                "x",
                do_sample=True,
                seed=ENDLESS_SEED,
                temperature=ENDLESS_TEMPERATURE,
                max_new_tokens=ENDLESS_TOKENS,
            )
            await anext(stream)
            await stream.aclose()

    asyncio.run(ask())
