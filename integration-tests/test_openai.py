"""The `openai` client against the real server, used as its documentation shows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, UnprocessableEntityError

import wire
from launched import Launched
from prompts import ADD, PORT, QUESTIONS, REPEAT, STREAM, WILD, as_text, user

CASES = pytest.mark.parametrize("question", [ADD, REPEAT, STREAM])


@pytest.fixture
def client(server: Launched) -> Iterator[OpenAI]:
    # No retries: a test must see the first answer.
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def exact_client(exact_server: Launched) -> Iterator[OpenAI]:
    """For sampled texts that must be equal twice, whatever is cached."""
    with OpenAI(base_url=f"{exact_server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def model(server: Launched) -> str:
    return str(wire.get(server.address, "/info").json()["model_id"])


# Models.


def test_models_lists_the_model_that_is_served(client: OpenAI, model: str) -> None:
    (only,) = client.models.list().data
    assert only.id == model
    assert only.object == "model"


# Chat.


@CASES
def test_a_stream_is_the_whole_answer_in_pieces(client: OpenAI, model: str, question: str) -> None:
    whole = client.chat.completions.create(model=model, messages=user(question), temperature=0, max_tokens=80)
    with client.chat.completions.create(
        model=model, messages=user(question), temperature=0, max_tokens=80, stream=True
    ) as stream:
        chunks = list(stream)
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].id
    assert {chunk.model for chunk in chunks} == {model} == {whole.model}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "stop" and set(reasons[:-1]) <= {None}
    assert all(chunk.usage is None for chunk in chunks), "usage was not asked for"


def test_include_usage_adds_one_last_chunk_without_choices(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=user(ADD), temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=user(ADD),
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert all(chunk.choices for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_usage_tells_how_much_of_the_prompt_was_cached(client: OpenAI, model: str) -> None:
    messages = user("Repeat: " + " ".join(f"word{number}" for number in range(40)))
    cached = []
    for _ in range(2):
        usage = client.chat.completions.create(model=model, messages=messages, max_tokens=2).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        cached.append((usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens))
    (_, _), (second, prompt) = cached
    assert second is not None and 0 < second < prompt


def test_n_gives_n_choices(exact_client: OpenAI, model: str) -> None:
    answer = exact_client.chat.completions.create(
        model=model, messages=user(PORT), n=2, seed=11, max_tokens=24, **WILD
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    again = exact_client.chat.completions.create(
        model=model, messages=user(PORT), n=2, seed=11, max_tokens=24, **WILD
    )
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.message.content for choice in again.choices] == texts
    assert texts[0] != texts[1], "n choices with one seed must not be n copies"
    assert answer.usage is not None and answer.usage.completion_tokens > answer.usage.total_tokens // 100


def test_n_choices_are_streamed_by_their_index(exact_client: OpenAI, model: str) -> None:
    options = {"n": 2, "seed": 11, "max_tokens": 24, **WILD}
    whole = exact_client.chat.completions.create(model=model, messages=user(PORT), **options)
    texts = {0: "", 1: ""}
    reasons: dict[int, str] = {}
    for chunk in exact_client.chat.completions.create(
        model=model, messages=user(PORT), stream=True, **options
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                assert choice.index not in reasons, "a choice ends once"
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_logprobs_hold_bytes_and_alternatives(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=user(ADD), temperature=0, max_tokens=40, logprobs=True, top_logprobs=4
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].token == entry.token
        assert math.isclose(entry.top_logprobs[0].logprob, entry.logprob, abs_tol=1e-5)
        assert entry.bytes is not None
    text = b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode()
    content = answer.choices[0].message.content
    assert content is not None and text.startswith(content)


def test_logprobs_come_with_each_chunk_of_a_stream(client: OpenAI, model: str) -> None:
    options = {"temperature": 0, "max_tokens": 20, "logprobs": True, "top_logprobs": 1}
    whole = client.chat.completions.create(model=model, messages=user(ADD), **options)  # type: ignore[call-overload]
    streamed = [
        entry
        for chunk in client.chat.completions.create(model=model, messages=user(ADD), stream=True, **options)  # type: ignore[call-overload]
        for choice in chunk.choices
        if choice.logprobs and choice.logprobs.content
        for entry in choice.logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole.choices[0].logprobs.content]


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_is_left_out(client: OpenAI, model: str, as_list: bool) -> None:
    whole = client.chat.completions.create(model=model, messages=user(REPEAT), temperature=0, max_tokens=40)
    text = whole.choices[0].message.content or ""
    stop = text[4:6]
    given: str | list[str] = [stop, "never seen"] if as_list else stop
    answer = client.chat.completions.create(
        model=model, messages=user(REPEAT), temperature=0, max_tokens=40, stop=given
    )
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(
        model=model, messages=user(REPEAT), temperature=0, max_tokens=40, stop=given, stream=True
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[: text.index(stop)]


def test_length_is_reported_as_such(client: OpenAI, model: str) -> None:
    for limit in (
        {"max_tokens": 3},
        {"max_completion_tokens": 3},
        {"max_tokens": 3, "max_completion_tokens": 3},
    ):
        answer = client.chat.completions.create(model=model, messages=user(PORT), temperature=0, **limit)  # type: ignore[call-overload]
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


def test_a_seed_fixes_what_is_sampled(client: OpenAI, model: str) -> None:
    def ask(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=model, messages=user(PORT), temperature=2, seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content

    assert ask(5) == ask(5)
    assert len({ask(seed) for seed in range(6)}) > 1


def test_a_nucleus_of_nothing_is_the_most_likely_token(exact_client: OpenAI, model: str) -> None:
    def text(temperature: float, top_p: float) -> str:
        answer = exact_client.responses.create(
            model=model, input=PORT, max_output_tokens=30, temperature=temperature, top_p=top_p
        )
        return answer.output_text

    likeliest = text(0, 1)
    # It is sure of what it says: of the other draws some are the same.
    assert all(text(2, 0) == likeliest for _ in range(5))
    assert any(text(2, 1) != likeliest for _ in range(20))


def test_logit_bias_bans_a_token(client: OpenAI, model: str, server: Launched) -> None:
    plain = client.chat.completions.create(model=model, messages=user(REPEAT), temperature=0, max_tokens=40)
    text = plain.choices[0].message.content or ""
    first = wire.post(server.address, "/tokenize", {"inputs": text}).json()[0]["id"]
    banned = client.chat.completions.create(
        model=model, messages=user(REPEAT), temperature=0, max_tokens=40, logit_bias={str(first): -100}
    )
    assert (banned.choices[0].message.content or "")[:3] != text[:3]


def test_what_openai_clients_send_by_habit_is_accepted(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model="gpt-4o",
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": [{"type": "text", "text": ADD}]},
        ],
        top_p=1,
        temperature=0,
        frequency_penalty=0,
        presence_penalty=0,
        max_tokens=40,
        user="someone",
        response_format={"type": "text"},
        tools=[],
        extra_body={"stream_options": None, "top_k": 50, "min_p": 0.0},
    )
    assert answer.model == "gpt-4o", "any name is served by the base model, and given back"
    assert answer.choices[0].message.content


def test_errors_have_openais_shape(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="temperature") as caught:
        client.chat.completions.create(model=model, messages=user(ADD), temperature=-1)
    body = caught.value.body
    assert isinstance(body, dict)
    assert {"message", "type", "param", "code"} <= set(body)
    assert body["param"] == "temperature"


def test_a_refused_stream_is_refused_before_it_starts(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens"):
        client.chat.completions.create(model=model, messages=user(ADD), max_tokens=10_000_000, stream=True)


# Completions.


@CASES
def test_a_completion_stream_is_the_whole_text_in_pieces(client: OpenAI, model: str, question: str) -> None:
    options = {"model": model, "prompt": as_text(question), "temperature": 0, "max_tokens": 60}
    whole = client.completions.create(**options)  # type: ignore[call-overload]
    chunks = list(client.completions.create(stream=True, **options))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) <= {None}
    assert whole.choices[0].finish_reason == "stop"
    assert whole.object == "text_completion"
    chat = client.chat.completions.create(model=model, messages=user(question), temperature=0, max_tokens=60)
    assert whole.choices[0].text == chat.choices[0].message.content


def test_several_prompts_are_answered_in_order(client: OpenAI, model: str) -> None:
    prompts = [as_text(question) for question in QUESTIONS[:4]]
    together = client.completions.create(model=model, prompt=prompts, temperature=0, max_tokens=40)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(model=model, prompt=p, temperature=0, max_tokens=40) for p in prompts]
    assert [c.text for c in together.choices] == [one.choices[0].text for one in alone]
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(
        model=model, prompt=prompts, temperature=0, max_tokens=40, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [c.text for c in together.choices]


def test_a_prompt_may_be_token_ids(client: OpenAI, model: str, server: Launched) -> None:
    tokens = [
        token["id"] for token in wire.post(server.address, "/tokenize", {"inputs": as_text(ADD)}).json()
    ]
    by_text = client.completions.create(model=model, prompt=as_text(ADD), temperature=0, max_tokens=40)
    by_ids = client.completions.create(model=model, prompt=tokens, temperature=0, max_tokens=40)
    by_two = client.completions.create(model=model, prompt=[tokens, tokens], temperature=0, max_tokens=40)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert [choice.text for choice in by_two.choices] == [by_text.choices[0].text] * 2


def test_echo_returns_the_prompt_and_its_log_probabilities(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="one two three", echo=True, logprobs=2, temperature=0, max_tokens=4
    )
    choice = answer.choices[0]
    assert choice.text.startswith("one two three")
    logprobs = choice.logprobs
    assert (
        logprobs is not None
        and logprobs.tokens
        and logprobs.token_logprobs
        and logprobs.text_offset is not None
    )
    assert answer.usage is not None
    assert len(logprobs.tokens) == answer.usage.total_tokens == len(logprobs.token_logprobs)
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[0] == 0


def test_completion_logprobs_line_up_with_the_text(client: OpenAI, model: str) -> None:
    choice = client.completions.create(
        model=model, prompt=as_text(REPEAT), logprobs=3, temperature=0, max_tokens=12
    ).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.top_logprobs
    assert all(top is not None and len(top) >= 3 for top in logprobs.top_logprobs)
    assert "".join(logprobs.tokens).startswith(choice.text)


def test_ignore_eos_and_min_length_options_go_through_extra_body(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=as_text(ADD), temperature=0, max_tokens=64, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 64
    assert answer.choices[0].finish_reason == "length"


def test_too_many_prompts_name_the_limit(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="4"):
        client.completions.create(model=model, prompt=["a", "b", "c", "d", "e"], max_tokens=1)


# Async.


def test_the_async_client_does_the_same(client: OpenAI, model: str, server: Launched) -> None:
    async def ask() -> tuple[str | None, str, str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as aclient:
            whole = await aclient.chat.completions.create(
                model=model, messages=user(REPEAT), temperature=0, max_tokens=40
            )
            stream = await aclient.chat.completions.create(
                model=model, messages=user(REPEAT), temperature=0, max_tokens=40, stream=True
            )
            pieces = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            completion = await aclient.completions.create(
                model=model, prompt=as_text(REPEAT), temperature=0, max_tokens=40
            )
            return whole.choices[0].message.content, pieces, completion.choices[0].text

    whole, pieces, completion = asyncio.run(ask())
    assert whole == pieces == completion


def test_many_async_streams_at_once_stay_apart(client: OpenAI, model: str, server: Launched) -> None:
    questions = [f"Repeat: {word} {word}" for word in ("apple", "river", "stone", "cloud", "paper", "green")]

    async def one(aclient: AsyncOpenAI, question: str) -> str:
        stream = await aclient.chat.completions.create(
            model=model, messages=user(question), temperature=0, max_tokens=30, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as aclient:
            return await asyncio.gather(*(one(aclient, question) for question in questions))

    answers = asyncio.run(ask())
    for question, answer in zip(questions, answers, strict=True):
        assert question.split()[-1] in answer, (question, answer)


def test_best_of_answers_with_the_most_likely(exact_client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "Once", "max_tokens": 12, "seed": 3, "logprobs": 0, **WILD}

    def likelihood(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    both = exact_client.completions.create(n=2, **options)
    best = exact_client.completions.create(n=1, best_of=2, **options)
    first = max(both.choices, key=likelihood)
    assert [choice.text for choice in best.choices] == [first.text]
    assert best.usage is not None and both.usage is not None
    assert best.usage.completion_tokens == both.usage.completion_tokens, (
        "what was not chosen was computed too"
    )
    with pytest.raises(UnprocessableEntityError, match="best_of"):
        exact_client.completions.create(n=2, best_of=1, **options)


def test_stop_token_ids_end_the_text(client: OpenAI, server: Launched, model: str) -> None:
    prompt = as_text(PORT)
    whole = client.completions.create(model=model, prompt=prompt, max_tokens=40, temperature=0)
    tokens = wire.post(server.address, "/tokenize", {"inputs": whole.choices[0].text}).json()
    stop = tokens[3]["id"]
    first = next(place for place, token in enumerate(tokens) if token["id"] == stop)
    for options in ({}, {"ignore_eos": True}):
        extra = {"stop_token_ids": [stop], **options}
        cut = client.completions.create(
            model=model, prompt=prompt, max_tokens=40, temperature=0, extra_body=extra
        )
        assert cut.choices[0].text == "".join(token["text"] for token in tokens[:first])
        assert cut.choices[0].finish_reason == "stop"
    for bad in ([-1], [1e9], ["x"], [1.5], list(range(257))):
        with pytest.raises(UnprocessableEntityError, match="stop_token_ids"):
            client.completions.create(model=model, prompt=prompt, extra_body={"stop_token_ids": bad})
