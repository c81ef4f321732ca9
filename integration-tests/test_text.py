"""The text itself: the same alone and in a crowd, in a stream and whole, and sane from the shipped model.

On a server where equal means equal (`launched.EXACT`).
"""

from __future__ import annotations

from typing import Any

import pytest

import wire
from load import Ask, ask, ask_all, complete, generate
from prompts import ADD, MODEL, PORT, QUESTIONS, REPEAT, WILD, as_text, user


def generated(address: wire.Address, inputs: str, **parameters: Any) -> str:
    reply = wire.post(address, "/generate", {"inputs": inputs, "parameters": parameters})
    assert reply.status == 200, reply.text
    return str(reply.json()["generated_text"])


def chat(address: wire.Address, question: str, **options: Any) -> dict[str, Any]:
    body = {"messages": user(question), "temperature": 0, "max_tokens": 120, **options}
    reply = wire.post(address, "/v1/chat/completions", body)
    assert reply.status == 200, reply.text
    answer: dict[str, Any] = reply.json()["choices"][0]
    return answer


# Equal texts.


def crowd() -> list[Ask]:
    """32 different requests: short and long prompts, both routes, greedy."""
    prompts = [as_text(f"Repeat: {' '.join(['apple', 'river', 'stone'][: 1 + n % 3])} {n}") for n in range(8)]
    prompts += [as_text(question) for question in QUESTIONS]
    long = [f"{'The number is ' * (5 * n)}{n}, and then" for n in range(16)]
    return [generate(prompt, 48) for prompt in prompts] + [complete(prompt, 64) for prompt in long]


def test_32_parallel_clients_get_the_same_greedy_texts_as_one(exact: wire.Address) -> None:
    requests = crowd()
    assert len(requests) == 32
    alone = [ask(exact, request) for request in requests]
    together = ask_all(exact, requests)
    for request, one, many in zip(requests, alone, together, strict=True):
        assert many.error is None
        assert many.same_as(one), f"{request}\nalone:    {one}\ntogether: {many}"


def test_seeded_sampling_is_the_same_alone_and_in_a_crowd(exact: wire.Address) -> None:
    # Hot, or the shipped model, which is sure of its answers, writes the same one with every seed.
    options = {"do_sample": True, "temperature": 50.0, "top_k": 50, "top_p": 0.95}
    seeded = [generate("Once upon a time", 40, seed=seed, **options) for seed in (0, 1, 2, 3, 5, 6)]
    seeded += [complete("One, two,", 40, seed=seed, frequency_penalty=2.0, **WILD) for seed in range(6)]
    alone = [ask(exact, request) for request in seeded]
    assert len({answer.text for answer in alone}) == 12, "different seeds give different texts"
    for number, (one, many) in enumerate(zip(alone, ask_all(exact, crowd()[:16] + seeded)[16:], strict=True)):
        assert many.same_as(one), f"{seeded[number]}\nalone:    {one}\ntogether: {many}"


def test_penalties_and_bias_are_the_same_alone_and_in_a_crowd(exact: wire.Address) -> None:
    asks = [
        generate("one two one two", 40, repetition_penalty=1.3),
        generate("one two one two", 40, frequency_penalty=1.0),
        complete("one two one two", 40, presence_penalty=1.5),
        complete("one two one two", 40, logit_bias={"100": 4.0}),
        complete("one two one two", 40, min_p=0.1, temperature=1.0, seed=4),
    ]
    alone = [ask(exact, request) for request in asks]
    for number, (one, many) in enumerate(zip(alone, ask_all(exact, crowd()[:8] + asks)[8:], strict=True)):
        assert many.same_as(one), f"{asks[number]}\nalone:    {one}\ntogether: {many}"


def test_the_same_request_32_times_at_once_gives_one_text(exact: wire.Address) -> None:
    answers = ask_all(exact, [complete("The same prompt for everybody:", 48)] * 32)
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stream_concatenates_to_the_text(exact: wire.Address, question: str) -> None:
    # `ask` checks it against the stream's own last event; this, against the other routes.
    streamed = ask(exact, generate(as_text(question), 80)).text
    assert streamed == generated(exact, as_text(question), max_new_tokens=80)
    assert streamed == chat(exact, question, max_tokens=80)["message"]["content"]


def test_half_characters_are_never_streamed(exact: wire.Address) -> None:
    # Sampled wildly, so that the bytes of characters come apart and in wrong order.
    for seed in range(12):
        options = {"do_sample": True, "temperature": 50.0, "seed": seed, "max_new_tokens": 60}
        streamed = ask(exact, generate("Grüße 漢字 🌊", 60, do_sample=True, temperature=50.0, seed=seed))
        assert streamed.text == generated(exact, "Grüße 漢字 🌊", **options)


# Stop strings.


@pytest.mark.parametrize(("start", "length"), [(0, 1), (2, 3), (5, 9), (1, 12)])
def test_a_stop_string_is_found_wherever_it_falls(exact: wire.Address, start: int, length: int) -> None:
    whole = generated(exact, as_text(REPEAT), max_new_tokens=60)
    stop = whole[start : start + length]
    assert len(stop) == length, f"the answer is too short: {whole!r}"
    end = whole.index(stop)
    kept = ask(exact, generate(as_text(REPEAT), 60, stop=[stop]))
    assert (kept.text, kept.finish) == (whole[: end + length], "stop_sequence")
    left_out = chat(exact, REPEAT, stop=[stop])
    assert (left_out["message"]["content"], left_out["finish_reason"]) == (whole[:end], "stop")
    streamed = ask(exact, complete(as_text(REPEAT), 60, stop=stop))
    assert (streamed.text, streamed.finish) == (whole[:end], "stop")


def test_the_first_of_several_stop_strings_counts(exact: wire.Address) -> None:
    whole = generated(exact, as_text(REPEAT), max_new_tokens=60)
    stops = [whole[10:12], whole[4:6], "not in there"]
    cut = min(whole.index(stop) + len(stop) for stop in stops[:2])
    assert generated(exact, as_text(REPEAT), max_new_tokens=60, stop=stops) == whole[:cut]


def test_a_stop_string_that_does_not_come_holds_nothing_back(exact: wire.Address) -> None:
    whole = generated(exact, as_text(REPEAT), max_new_tokens=60)
    # Begins like the end of the text, so that it is waited for up to the last token.
    assert generated(exact, as_text(REPEAT), max_new_tokens=60, stop=[whole[-3:] + "never"]) == whole


# The shipped model.


def test_the_shipped_model_stops_by_itself(exact: wire.Address) -> None:
    for question in QUESTIONS:
        answer = chat(exact, question, max_tokens=200)
        assert answer["finish_reason"] == "stop", (question, answer)
        assert answer["message"]["content"].strip(), question


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (ADD, "5"),
        ("What is 12 + 30?", "42"),
        (REPEAT, "apple river stone"),
        (PORT, "port"),
        (MODEL, "--model-id"),
    ],
)
def test_the_shipped_model_answers_sanely(exact: wire.Address, question: str, expected: str) -> None:
    content = chat(exact, question)["message"]["content"]
    assert expected in content.replace(",", ""), content
