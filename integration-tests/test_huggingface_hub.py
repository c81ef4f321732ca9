"""`huggingface_hub`'s inference clients against the real server, used as their documentation shows."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError

from launched import Launched
from prompts import ADD, PORT, REPEAT, as_text, user

CASES = pytest.mark.parametrize("question", [ADD, REPEAT, PORT])


@pytest.fixture
def client(server: Launched) -> InferenceClient:
    return InferenceClient(model=server.url, timeout=60)


def generate(client: InferenceClient, prompt: str, **options: object) -> str:
    return client.text_generation(prompt, return_full_text=False, **options)  # type: ignore[call-overload,no-any-return]


# Text generation.


@CASES
def test_a_stream_of_text_is_the_whole_text_in_pieces(client: InferenceClient, question: str) -> None:
    whole = client.text_generation(as_text(question), details=True, return_full_text=False, max_new_tokens=60)
    pieces = list(client.text_generation(as_text(question), stream=True, details=True, max_new_tokens=60))
    text = "".join(piece.token.text for piece in pieces if not piece.token.special)
    assert whole.details is not None
    assert text == whole.generated_text
    assert [piece.token.id for piece in pieces] == [token.id for token in whole.details.tokens]
    assert [piece.index for piece in pieces] == list(range(1, len(pieces) + 1))


def test_the_prompt_comes_back_in_front_unless_it_is_declined(client: InferenceClient) -> None:
    # `POST /`, which this client uses, returns the full text by default, as TGI does for a model without a
    # pipeline tag.
    prompt = "Numbers: one, two,"
    alone = client.text_generation(prompt, max_new_tokens=8, return_full_text=False)
    full = client.text_generation(prompt, max_new_tokens=8, return_full_text=True)
    default = client.text_generation(prompt, max_new_tokens=8)
    assert full == prompt + alone
    assert default == full


def test_details_tell_tokens_reason_and_count(client: InferenceClient) -> None:
    answer = client.text_generation(as_text(ADD), details=True, max_new_tokens=60, return_full_text=False)
    details = answer.details
    assert details is not None
    assert details.finish_reason == "eos_token"
    assert details.generated_tokens == len(details.tokens)
    assert details.seed is None, "greedy decoding has no seed"
    assert details.prefill == []
    assert details.tokens[-1].special, "the end-of-sequence token is reported"
    assert all(token.logprob <= 0 for token in details.tokens)
    assert "".join(token.text for token in details.tokens if not token.special) == answer.generated_text


def test_max_new_tokens_is_exact(client: InferenceClient) -> None:
    answer = client.text_generation(as_text(PORT), details=True, max_new_tokens=3)
    assert answer.details is not None
    assert answer.details.finish_reason == "length"
    assert len(answer.details.tokens) == 3


def test_decoder_input_details_give_the_prompts_log_probabilities(client: InferenceClient) -> None:
    answer = client.text_generation(as_text(ADD), details=True, decoder_input_details=True, max_new_tokens=4)
    assert answer.details is not None
    prefill = answer.details.prefill
    assert "".join(token.text for token in prefill).replace(" ", "") == as_text(ADD).replace(" ", "")
    assert prefill[0].logprob is None, "nothing comes before the first token"
    assert all(token.logprob is not None and token.logprob <= 0 for token in prefill[1:])


def test_prompt_log_probabilities_agree_with_those_of_generated_tokens(client: InferenceClient) -> None:
    first = client.text_generation(as_text(PORT), details=True, max_new_tokens=6, return_full_text=True)
    assert first.details is not None
    again = client.text_generation(
        first.generated_text,
        details=True,
        decoder_input_details=True,
        max_new_tokens=1,
        return_full_text=False,
    )
    assert again.details is not None
    generated = first.details.tokens
    tail = again.details.prefill[-len(generated) :]
    if [token.id for token in tail] != [token.id for token in generated]:
        pytest.skip("the text was cut into other tokens the second time")
    for before, after in zip(generated, tail, strict=True):
        assert after.logprob is not None
        assert math.isclose(before.logprob, after.logprob, abs_tol=0.1), "bf16, another batch shape"


def test_top_n_tokens_are_exactly_n_and_sorted(client: InferenceClient) -> None:
    answer = client.text_generation(as_text(ADD), details=True, top_n_tokens=5, max_new_tokens=5)
    assert answer.details is not None and answer.details.top_tokens is not None
    assert len(answer.details.top_tokens) == len(answer.details.tokens)
    for token, top in zip(answer.details.tokens, answer.details.top_tokens, strict=True):
        assert len(top) == 5
        alternatives: list[Any] = list(top)  # the client leaves what is nested this deep as it came
        logprobs = [one["logprob"] for one in alternatives]
        assert alternatives[0]["id"] == token.id, "greedy takes the most likely one"
        assert logprobs == sorted(logprobs, reverse=True)
        assert math.isclose(logprobs[0], token.logprob, abs_tol=1e-5)
        assert sum(math.exp(logprob) for logprob in logprobs) <= 1.0001


def test_a_stream_carries_top_tokens_too(client: InferenceClient) -> None:
    pieces = list(
        client.text_generation(as_text(ADD), details=True, stream=True, top_n_tokens=2, max_new_tokens=4)
    )
    assert all(piece.top_tokens is not None and len(piece.top_tokens) == 2 for piece in pieces)


def test_the_last_piece_of_a_stream_holds_the_text_and_the_details(client: InferenceClient) -> None:
    pieces = list(
        client.text_generation(
            as_text(ADD), details=True, stream=True, max_new_tokens=60, return_full_text=False
        )
    )
    assert all(piece.generated_text is None and piece.details is None for piece in pieces[:-1])
    last = pieces[-1]
    assert last.generated_text == "".join(piece.token.text for piece in pieces if not piece.token.special)
    assert last.details is not None
    assert last.details.finish_reason == "eos_token"
    assert last.details.generated_tokens == len(pieces)
    assert last.details.input_length > 0


def test_a_stop_string_is_kept_at_the_end(client: InferenceClient) -> None:
    whole = generate(client, as_text(REPEAT), max_new_tokens=60)
    stop = whole[3:5]
    answer = client.text_generation(
        as_text(REPEAT), details=True, stop=[stop], max_new_tokens=60, return_full_text=False
    )
    assert answer.details is not None
    assert answer.details.finish_reason == "stop_sequence"
    assert answer.generated_text == whole[: whole.index(stop) + len(stop)]


def test_a_seed_fixes_what_is_sampled(client: InferenceClient) -> None:
    options = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 24}
    first = generate(client, "Once upon", seed=7, **options)
    assert generate(client, "Once upon", seed=7, **options) == first
    others = {generate(client, "Once upon", seed=seed, **options) for seed in range(100, 108)}
    assert len(others) > 1, "seeds have no effect"


def test_a_seed_is_reported_when_it_was_drawn(client: InferenceClient) -> None:
    answer = client.text_generation("Once upon", details=True, do_sample=True, max_new_tokens=4)
    assert answer.details is not None and answer.details.seed is not None
    again = client.text_generation(
        "Once upon", details=True, do_sample=True, max_new_tokens=4, seed=answer.details.seed
    )
    assert again.generated_text == answer.generated_text


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.01},
        {"top_k": 1, "temperature": 2.0},
        {"top_p": 0.0001, "temperature": 1.0},
        {"typical_p": 0.95, "temperature": 0.01},
    ],
    ids=["cold", "top_k", "top_p", "typical_p"],
)
def test_sampling_that_leaves_one_choice_is_greedy(
    client: InferenceClient, options: dict[str, float]
) -> None:
    greedy = generate(client, as_text(REPEAT), max_new_tokens=30)
    assert generate(client, as_text(REPEAT), max_new_tokens=30, do_sample=True, seed=1, **options) == greedy


@pytest.mark.parametrize("options", [{"repetition_penalty": 50.0}, {"frequency_penalty": 2.0}])
def test_penalties_change_what_is_repeated(client: InferenceClient, options: dict[str, Any]) -> None:
    prompt = as_text("Count from 1 to 30.")  # so many commas that the penalty outweighs any certainty
    plain = client.text_generation(prompt, details=True, max_new_tokens=100)
    other = client.text_generation(prompt, details=True, max_new_tokens=100, **options)
    assert plain.details is not None and other.details is not None
    assert [token.id for token in plain.details.tokens] != [token.id for token in other.details.tokens]


def test_truncate_keeps_the_end_of_the_prompt(client: InferenceClient) -> None:
    long = "word " * 50 + as_text(ADD)
    last = client.text_generation(as_text(ADD), details=True, decoder_input_details=True, max_new_tokens=2)
    assert last.details is not None
    size = len(last.details.prefill)
    cut = client.text_generation(
        long,
        details=True,
        decoder_input_details=True,
        max_new_tokens=2,
        truncate=size,
        return_full_text=False,
    )
    assert cut.details is not None
    assert [token.id for token in cut.details.prefill] == [token.id for token in last.details.prefill]


def test_a_refused_parameter_is_a_validation_error(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="temperature"):
        client.text_generation("x", temperature=-1.0, do_sample=True)
    with pytest.raises(ValidationError, match="inputs"):
        client.text_generation("")
    with pytest.raises(ValidationError, match="max_new_tokens"):
        client.text_generation("x", max_new_tokens=10_000_000)


def test_a_stream_that_is_refused_has_the_status_of_its_error(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="top_p"):
        list(client.text_generation("x", stream=True, top_p=7.0))


def test_a_grammar_is_followed_and_a_wrong_one_is_an_error(client: InferenceClient) -> None:
    grammar: Any = {"type": "regex", "value": "[0-9]{3}"}
    # The route that the client asks gives the prompt back as well.
    assert re.fullmatch("x[0-9]{3}", client.text_generation("x", grammar=grammar, max_new_tokens=40))
    broken: Any = {"type": "regex", "value": "("}
    with pytest.raises(ValidationError, match="grammar"):
        client.text_generation("x", grammar=broken, max_new_tokens=4)


# Chat.


@CASES
def test_a_chat_stream_is_the_whole_answer_in_pieces(client: InferenceClient, question: str) -> None:
    whole = client.chat_completion(user(question), max_tokens=60, temperature=0.0)
    chunks = list(client.chat_completion(user(question), max_tokens=60, temperature=0.0, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}


def test_a_chat_answer_has_an_id_and_adds_up(client: InferenceClient) -> None:
    answer = client.chat_completion(user(ADD), max_tokens=60, temperature=0.0)
    assert answer.id
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.role == "assistant"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_chat_options_reach_the_model(client: InferenceClient) -> None:
    cut = client.chat_completion(user(PORT), max_tokens=3, temperature=0.0)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 3
    seeded = {
        client.chat_completion(user(PORT), max_tokens=20, temperature=2.0, seed=3).choices[0].message.content
        for _ in range(3)
    }
    assert len(seeded) == 1
    with_logprobs = client.chat_completion(
        user(ADD), max_tokens=4, temperature=0.0, logprobs=True, top_logprobs=3
    )
    logprobs = with_logprobs.choices[0].logprobs
    assert logprobs is not None
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
    with_usage: Any = {"include_usage": True}
    chunks = client.chat_completion(
        user(ADD), max_tokens=4, temperature=0.0, stream=True, stream_options=with_usage
    )
    usage = list(chunks)[-1].usage
    assert usage is not None and usage.completion_tokens > 0


def test_the_openai_spelling_of_the_client_works(client: InferenceClient, server: Launched) -> None:
    spelled = InferenceClient(base_url=f"{server.url}/v1", timeout=60)
    answer = spelled.chat.completions.create(model="tgi", messages=user(ADD), max_tokens=60, temperature=0.0)
    same = client.chat_completion(user(ADD), max_tokens=60, temperature=0.0)
    assert answer.choices[0].message.content == same.choices[0].message.content


def test_a_refused_chat_request_names_its_field(client: InferenceClient) -> None:
    with pytest.raises(HfHubHTTPError, match="temperature") as caught:
        client.chat_completion(user(ADD), temperature=-2.0)
    assert caught.value.response.status_code == 422


# Async.


def test_the_async_client_does_the_same(client: InferenceClient, server: Launched) -> None:
    async def ask() -> tuple[str, str, str, str]:
        async with AsyncInferenceClient(model=server.url, timeout=60) as aclient:
            whole = await aclient.text_generation(as_text(REPEAT), max_new_tokens=40, return_full_text=False)
            stream = await aclient.text_generation(
                as_text(REPEAT), max_new_tokens=40, stream=True, details=True, return_full_text=False
            )
            pieces = "".join([piece.token.text async for piece in stream if not piece.token.special])
            chat = await aclient.chat_completion(user(REPEAT), max_tokens=40, temperature=0.0)
            chunks = await aclient.chat_completion(user(REPEAT), max_tokens=40, temperature=0.0, stream=True)
            chatted = "".join(
                [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
            )
            return whole, pieces, chat.choices[0].message.content or "", chatted

    whole, pieces, chat, chatted = asyncio.run(ask())
    assert whole == pieces == generate(client, as_text(REPEAT), max_new_tokens=40)
    assert chat == chatted == whole, "the template gives the text that the prompt spells out"


def test_many_async_requests_at_once_are_answered_each(client: InferenceClient, server: Launched) -> None:
    async def ask() -> list[str]:
        async with AsyncInferenceClient(model=server.url, timeout=60) as aclient:
            questions = [f"What is {number} + 1?" for number in range(12)]
            answers = [aclient.chat_completion(user(q), max_tokens=30, temperature=0.0) for q in questions]
            return [answer.choices[0].message.content or "" for answer in await asyncio.gather(*answers)]

    assert len(asyncio.run(ask())) == 12


def test_the_async_client_gets_the_same_errors(server: Launched) -> None:
    async def ask() -> None:
        async with AsyncInferenceClient(model=server.url, timeout=60) as aclient:
            await aclient.text_generation("x", temperature=-1.0, do_sample=True)

    with pytest.raises(ValidationError, match="temperature"):
        asyncio.run(ask())
