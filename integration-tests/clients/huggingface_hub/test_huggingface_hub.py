"""`huggingface_hub`'s inference clients: every option, streams, its exception classes. Runs with the present
client, and with the last one that speaks through `requests` and `aiohttp`."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import (
    HfHubHTTPError,
    InferenceTimeoutError,
    OverloadedError,
    TextGenerationError,
    UnknownError,
    ValidationError,
)

from conftest import ENDLESS_SEED, ENDLESS_TEMPERATURE, ENDLESS_TOKENS, Guarded, Noticed
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

# Each option of `text_generation` with a value that has an effect, and each option of `chat_completion`.
SAMPLING: dict[str, Any] = {
    "best_of": 2,
    "do_sample": True,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "typical_p": 0.9,
}
OTHERS: dict[str, Any] = {
    "decoder_input_details": True,
    "details": True,
    "max_new_tokens": 6,
    "return_full_text": True,
    "stop": ["never", "seen"],
    "top_n_tokens": 2,
    "truncate": 20,
}
CHAT: dict[str, Any] = {
    "extra_body": {"top_k": 40, "min_p": 0.01},
    "frequency_penalty": 0.5,
    "logit_bias": {"17": -100.0},  # a list, as its type hint says, has no effect
    "logprobs": True,
    "max_tokens": 6,
    "n": 1,
    "presence_penalty": 0.5,
    "response_format": None,
    "seed": 11,
    "stop": ["never", "seen"],
    "temperature": 0.7,
    "tool_choice": None,
    "tool_prompt": None,
    "tools": None,
    "top_logprobs": 3,
    "top_p": 0.9,
}


@pytest.fixture
def client(url: str) -> InferenceClient:
    return InferenceClient(model=url, timeout=120)


def test_no_option_of_the_client_is_left_out() -> None:
    text = set(inspect.signature(InferenceClient.text_generation).parameters) - {"self", "prompt", "model"}
    text -= {"stop_sequences"}  # what `stop` was called before
    assert text == {*SAMPLING, *OTHERS, "seed", "stream", "adapter_id", "grammar", "watermark"}
    chat = set(inspect.signature(InferenceClient.chat_completion).parameters) - {"self", "messages", "model"}
    assert chat == {*CHAT, "stream", "stream_options"}


# Text generation.


@pytest.mark.golden
def test_a_text(client: InferenceClient) -> None:
    answer: Any = client.text_generation(as_text(ADD), max_new_tokens=12, return_full_text=False)
    assert isinstance(answer, str) and answer


@pytest.mark.golden
def test_a_text_with_details(client: InferenceClient) -> None:
    answer: Any = client.text_generation(as_text(ADD), **OTHERS)
    assert answer.generated_text.startswith(as_text(ADD))
    assert len(answer.details.tokens) == len(answer.details.top_tokens) == 6
    assert answer.details.finish_reason == "length"
    assert 0 < len(answer.details.prefill) <= 20


@pytest.mark.golden
def test_a_stream(client: InferenceClient) -> None:
    prompt = as_text(REPEAT)
    whole: Any = client.text_generation(prompt, max_new_tokens=10, return_full_text=False, details=True)
    stream: Any = client.text_generation(prompt, max_new_tokens=10, return_full_text=False, stream=True)
    pieces = list(stream)
    assert len(pieces) == whole.details.generated_tokens
    assert "".join(pieces).startswith(whole.generated_text)
    detailed: Any = client.text_generation(
        prompt, max_new_tokens=10, return_full_text=False, stream=True, details=True, top_n_tokens=2
    )
    last = list(detailed)[-1]
    assert last.generated_text == whole.generated_text
    assert last.details.finish_reason == whole.details.finish_reason


@pytest.mark.golden
def test_sampling(client: InferenceClient) -> None:
    answer: Any = client.text_generation(
        "Once upon", max_new_tokens=6, details=True, return_full_text=False, **SAMPLING
    )
    (other,) = answer.details.best_of_sequences
    assert other.generated_tokens == answer.details.generated_tokens == 6 or "eos_token" in (
        other.finish_reason,
        answer.details.finish_reason,
    )
    seeded = {key: value for key, value in SAMPLING.items() if key != "best_of"}
    texts = {client.text_generation("Once upon", max_new_tokens=6, seed=seed, **seeded) for seed in (5, 5, 5)}
    assert len(texts) == 1


@pytest.mark.golden
def test_a_stop_string(client: InferenceClient) -> None:
    whole: Any = client.text_generation(as_text(REPEAT), max_new_tokens=10, return_full_text=False)
    stop = whole[2:4]
    cut: Any = client.text_generation(
        as_text(REPEAT), max_new_tokens=10, return_full_text=False, stop=[stop], details=True
    )
    assert cut.generated_text == whole[: whole.index(stop) + 2]
    assert cut.details.finish_reason == "stop_sequence"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 2.0),
        ("top_k", -3),
        ("max_new_tokens", 1_000_000),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", 9.0),
        ("truncate", 0),
        ("top_n_tokens", 1_000),
        ("adapter_id", "nobody/knows"),
        ("stop", ["a", "b", "c", "d", "e"]),
    ],
)
def test_a_wrong_option_is_a_validation_error(
    client: InferenceClient, option: str, value: Any, stream: bool
) -> None:
    with pytest.raises(ValidationError, match=option):
        list(client.text_generation("x", do_sample=True, stream=stream, **{option: value}))


@pytest.mark.golden
def test_a_validation_error(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="top_p"):
        client.text_generation("x", top_p=2.0)


def test_an_empty_prompt_is_a_validation_error(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="inputs"):
        client.text_generation("")


def test_best_of_in_a_stream_is_a_validation_error(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="best_of"):
        list(client.text_generation("x", do_sample=True, best_of=2, stream=True))


@pytest.mark.golden
def test_a_grammar(client: InferenceClient) -> None:
    grammar: Any = {"type": "regex", "value": "[0-9]{3}"}
    # The route that the client asks gives the prompt back as well.
    assert re.fullmatch("x[0-9]{3}", client.text_generation("x", grammar=grammar, max_new_tokens=40))
    streamed = client.text_generation("x", grammar=grammar, max_new_tokens=40, stream=True)
    assert re.fullmatch("[0-9]{3}", "".join(streamed))


def test_a_busy_server_is_an_overloaded_error(busy: Guarded) -> None:
    client = InferenceClient(model=busy.url, token=busy.key)
    for stream in (False, True):
        with pytest.raises(OverloadedError, match="overloaded"):
            list(client.text_generation("x", max_new_tokens=2, stream=stream))
    with pytest.raises(HfHubHTTPError, match="overloaded") as caught:
        client.chat_completion(user("x"), max_tokens=2)
    assert caught.value.response.status_code == 429
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_wrong_key_is_an_error_of_its_own(guarded: Guarded) -> None:
    """On TGI's routes by `error_type`, for which this client has no class; on OpenAI's by the status."""
    for token, said in (("wrong", "not valid"), (None, "required")):
        client = InferenceClient(model=guarded.url, token=token)
        for call in (
            lambda c: c.text_generation("x"),
            lambda c: list(c.text_generation("x", stream=True)),
        ):
            with pytest.raises(UnknownError, match=said) as unknown:
                call(client)
            cause = unknown.value.__cause__
            assert isinstance(cause, HfHubHTTPError) and cause.response.status_code == 401
        for call in (
            lambda c: c.chat_completion(user("x")),
            lambda c: list(c.chat_completion(user("x"), stream=True)),
        ):
            with pytest.raises(HfHubHTTPError, match=said) as caught:
                call(client)
            assert not isinstance(caught.value, TextGenerationError)
            assert caught.value.response.status_code == 401
    right = InferenceClient(model=guarded.url, token=guarded.key)
    assert right.chat_completion(user(ADD), max_tokens=2).choices


def test_a_server_that_starts_is_an_http_error_with_its_status(starting: str) -> None:
    client = InferenceClient(model=starting, timeout=20)
    for call in (lambda: client.text_generation("x"), lambda: client.chat_completion(user("x"))):
        with pytest.raises(HfHubHTTPError, match="starting") as caught:
            call()
        assert caught.value.response.status_code == 503


def test_what_has_to_be_endless_ends_by_its_length_alone(client: InferenceClient) -> None:
    answer: Any = client.text_generation(
        "x",
        details=True,
        do_sample=True,
        seed=ENDLESS_SEED,
        temperature=ENDLESS_TEMPERATURE,
        max_new_tokens=ENDLESS_TOKENS,
    )
    assert (answer.details.finish_reason, answer.details.generated_tokens) == ("length", ENDLESS_TOKENS)


def test_a_time_out_is_the_clients_own(client: InferenceClient, noticed: Noticed, url: str) -> None:
    hasty = InferenceClient(model=url, timeout=0.1)
    for _ in noticed():
        with pytest.raises((InferenceTimeoutError, OSError)):
            hasty.text_generation(
                "x",
                do_sample=True,
                seed=ENDLESS_SEED,
                temperature=ENDLESS_TEMPERATURE,
                max_new_tokens=ENDLESS_TOKENS,
            )


def test_a_stream_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    for _ in noticed():
        client = InferenceClient(model=url)
        stream: Any = client.text_generation(
            "x",
            stream=True,
            do_sample=True,
            seed=ENDLESS_SEED,
            temperature=ENDLESS_TEMPERATURE,
            max_new_tokens=ENDLESS_TOKENS,
        )
        next(stream)
        stream.close()
        if hasattr(client, "exit_stack"):
            client.exit_stack.close()  # it holds the connection


# Chat.


@pytest.mark.golden
def test_a_chat(client: InferenceClient) -> None:
    answer = client.chat_completion(user(ADD), max_tokens=10, temperature=0.0)
    assert answer.choices[0].message.content
    usage = answer.usage
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens


@pytest.mark.golden
def test_a_chat_stream(client: InferenceClient) -> None:
    options: Any = {"max_tokens": 10, "temperature": 0.0}
    whole = client.chat_completion(user(REPEAT), **options)
    chunks = list(
        client.chat_completion(user(REPEAT), stream=True, stream_options={"include_usage": True}, **options)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens


@pytest.mark.golden
def test_a_chat_with_every_option(client: InferenceClient) -> None:
    answer = client.chat_completion(user(ADD), **CHAT)
    assert answer.usage.completion_tokens <= 6
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and len(logprobs.content[0].top_logprobs) == 3
    again = client.chat_completion(user(ADD), **CHAT)
    assert again.choices[0].message.content == answer.choices[0].message.content, "the seed"


@pytest.mark.golden
def test_tools(client: InferenceClient) -> None:
    tools: Any = [WEATHER_TOOL]
    name, arguments = WEATHER_CALLED
    messages = user(WEATHER)
    for choice in ("auto", name, {"type": "function", "function": {"name": name}}):
        asked: dict[str, Any] = {"tools": tools, "tool_choice": choice, "temperature": 0.0, "max_tokens": 60}
        (call,) = client.chat_completion(messages, **asked).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == WEATHER_CALLED
        chunks = client.chat_completion(messages, stream=True, **asked)
        parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
        assert parts[0].function.name == name
        assert json.loads("".join(part.function.arguments for part in parts)) == arguments


@pytest.mark.golden
def test_a_round_of_call_result_and_answer(client: InferenceClient) -> None:
    tools: Any = [WEATHER_TOOL]
    asked: dict[str, Any] = {"tools": tools, "temperature": 0.0, "max_tokens": 60}
    message = client.chat_completion(user(WEATHER), **asked).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
    conversation = [*user(WEATHER), message, result]
    whole = client.chat_completion(conversation, **asked).choices[0].message.content
    assert whole is not None and WEATHER_ANSWERED in whole
    chunks = client.chat_completion(conversation, stream=True, **asked)
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
def test_a_response_format(client: InferenceClient) -> None:
    for schema in (
        {"type": "json", "value": PLACE},
        {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}},
    ):
        form: Any = schema
        answer = client.chat_completion(user("Name a place"), response_format=form, max_tokens=60)
        place = json.loads(answer.choices[0].message.content or "")
        assert place["city"] in ("Oslo", "Bergen") and 1 <= place["days"] <= 9


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("temperature", -1.0), ("top_p", 2.0), ("max_tokens", 1_000_000), ("top_logprobs", 99)],
)
def test_a_wrong_option_of_a_chat_is_named(
    client: InferenceClient, option: str, value: Any, stream: bool
) -> None:
    with pytest.raises(HfHubHTTPError, match=option) as caught:
        list(client.chat_completion(user("x"), logprobs=True, stream=stream, **{option: value}))
    assert caught.value.response.status_code == 422


def test_the_openai_spelling_of_the_client(url: str) -> None:
    client = InferenceClient(base_url=f"{url}/v1")
    answer = client.chat.completions.create(model="tgi", messages=user(ADD), max_tokens=4)
    assert answer.choices[0].message.content


def test_what_the_client_asks_about_the_server(url: str) -> None:
    client = InferenceClient(model=url, provider="hf-inference")
    assert client.get_endpoint_info()["max_input_tokens"] > 0
    assert client.health_check() is True


# Async.


def test_async(url: str) -> None:
    async def ask() -> None:
        async with AsyncInferenceClient(model=url, timeout=120) as client:
            prompt = as_text(REPEAT)
            whole: Any = await client.text_generation(prompt, max_new_tokens=8, return_full_text=False)
            stream: Any = await client.text_generation(prompt, max_new_tokens=8, stream=True, details=True)
            assert [piece async for piece in stream][-1].generated_text.endswith(whole)
            chat = await client.chat_completion(user(REPEAT), max_tokens=8, temperature=0.0)
            chunks: Any = await client.chat_completion(
                user(REPEAT), max_tokens=8, temperature=0.0, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
            assert text == chat.choices[0].message.content
            with pytest.raises(ValidationError, match="top_p"):
                await client.text_generation("x", top_p=2.0)

    asyncio.run(ask())


def test_an_async_stream_that_is_left_is_noticed(url: str, noticed: Noticed) -> None:
    async def leave() -> None:
        async with AsyncInferenceClient(model=url) as client:
            stream: Any = await client.text_generation(
                "x",
                stream=True,
                do_sample=True,
                seed=ENDLESS_SEED,
                temperature=ENDLESS_TEMPERATURE,
                max_new_tokens=ENDLESS_TOKENS,
            )
            await anext(aiter(stream))
            await stream.aclose()

    for _ in noticed():
        asyncio.run(leave())
