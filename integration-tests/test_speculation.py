"""`--speculate`: the same answers with drafts as without, token by token, and fewer steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import EXACT, ON_TORCH, Launched
from load import Ask, ask_all, ask_all_through, chat, complete, generate
from prompts import QUESTIONS, REPEAT, as_text, user
from test_access import bearer

DRAFTS = 6

LIST = ", ".join(f"item {number} is {'red' if number % 2 else 'blue'}" for number in range(12))
AGAIN = "again and " * 8
# Whose text goes round and round.
FEW: dict[str, Any] = {"logit_bias": {str(token): 100 for token in range(400, 416)}}


@pytest.fixture(scope="module")
def speculating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Where the same means the same to the last bit."""
    folder: Path = tmp_path_factory.mktemp("speculating")
    with Launched(folder, *EXACT, "--speculate", str(DRAFTS)) as launched:
        yield launched.wait_ready()


def repetitive(tokens: int = 120, **parameters: Any) -> dict[str, Any]:
    return {
        "inputs": AGAIN,
        "parameters": {"max_new_tokens": tokens, "details": True, "ignore_eos_token": True, **parameters},
    }


BODIES: dict[str, dict[str, Any]] = {
    "greedy": repetitive(),
    "sampled": repetitive(do_sample=True, temperature=0.7, seed=11, top_k=40, top_p=0.95),
    "typical": repetitive(do_sample=True, temperature=0.9, seed=12, typical_p=0.8),
    "penalties": repetitive(repetition_penalty=1.05, frequency_penalty=0.1),
    "alternatives": repetitive(top_n_tokens=3, decoder_input_details=True),
    "watermark": repetitive(watermark=True),
    "stop string": repetitive(stop=["plusand again", "Goodbye!\nGoodbye!"]),
    "an answer that ends": {
        "inputs": as_text(REPEAT),
        "parameters": {"max_new_tokens": 60, "details": True},
    },
}


# What is asked for stands in the prompt, value by value, and again in the text.
RECORDS = json.dumps([{"name": f"Karen River {number}", "city": "Trondheim"} for number in range(4)])
PEOPLE = {
    "type": "array",
    "minItems": 8,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^Karen River [0-9]$"},
            "city": {"type": "string", "maxLength": 20},
        },
        "required": ["name", "city"],
        "additionalProperties": False,
    },
}


def constrained(tokens: int = 160, **parameters: Any) -> dict[str, Any]:
    grammar = {"type": "json", "value": PEOPLE}
    return {
        "inputs": f"{RECORDS}\n{RECORDS}\n",
        "parameters": {"max_new_tokens": tokens, "details": True, "grammar": grammar, **parameters},
    }


GRAMMARS: dict[str, dict[str, Any]] = {
    "greedy": constrained(),
    "sampled": constrained(do_sample=True, temperature=0.9, seed=11, top_k=40, top_p=0.95),
    "typical": constrained(do_sample=True, temperature=1.1, seed=12, typical_p=0.8),
    "penalties": constrained(repetition_penalty=1.05, frequency_penalty=0.1),
    "alternatives": constrained(top_n_tokens=3),
    "watermark": constrained(watermark=True),
    "stop string": constrained(stop=['"city": "Tr', '","city":"T']),
    "a regular expression": {
        "inputs": AGAIN,
        "parameters": {
            "max_new_tokens": 200,
            "details": True,
            "grammar": {"type": "regex", "value": "((again|once more) and ){30}"},
        },
    },
}


def answer(address: wire.Address, path: str, body: dict[str, Any]) -> Any:
    reply = wire.post(address, path, body)
    assert reply.status == 200, reply.text
    told = reply.json()
    # How many were guessed is no part of what is said.
    for name in ("id", "created", "accepted_drafts"):
        told.pop(name, None) if isinstance(told, dict) else None
    return told


@pytest.mark.parametrize("name", BODIES)
def test_an_answer_is_the_same_with_drafts_and_without(
    name: str, speculating: Launched, exact: wire.Address
) -> None:
    with_drafts = answer(speculating.address, "/generate", BODIES[name])
    assert with_drafts == answer(exact, "/generate", BODIES[name])
    details = with_drafts["details"]
    assert len(details["tokens"]) == details["generated_tokens"]


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_text_of_a_grammar_is_the_same_with_guesses_and_without(
    name: str, speculating: Launched, exact: wire.Address
) -> None:
    with_guesses = answer(speculating.address, "/generate", GRAMMARS[name])
    assert with_guesses == answer(exact, "/generate", GRAMMARS[name])


def test_several_answers_of_a_grammar_are_the_same_beside_each_other(
    speculating: Launched, exact: wire.Address
) -> None:
    form = {"type": "json", "value": PEOPLE}
    body = {"prompt": RECORDS, "max_tokens": 90, "n": 2, "seed": 7, "temperature": 0.9, "logprobs": 2}
    body["response_format"] = form
    assert answer(speculating.address, "/v1/completions", body) == answer(exact, "/v1/completions", body)


def test_guesses_under_a_grammar_are_accepted_beside_what_it_forces(speculating: Launched) -> None:
    names = (
        "penstock_accepted_drafts",
        "penstock_forced_tokens",
        "penstock_generated_tokens",
        "penstock_steps",
    )

    def counted() -> list[float]:
        seen = speculating.metrics()
        return [seen.value(name) for name in names]

    before = counted()
    for name in ("greedy", "sampled", "a regular expression"):
        answer(speculating.address, "/generate", GRAMMARS[name])
    accepted, forced, tokens, steps = (now - then for now, then in zip(counted(), before, strict=True))
    assert accepted > 20 and forced > 20, (accepted, forced, tokens, steps)
    assert steps < 0.8 * tokens, (accepted, forced, tokens, steps)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_a_killed_worker_costs_a_text_with_guesses_under_a_grammar_nothing(name: str, launch: Launch) -> None:
    server = launch(*EXACT, "--speculate", str(DRAFTS)).wait_ready()
    alone = wire.post(server.address, "/generate", GRAMMARS[name]).json()
    tokens = [(token["id"], token["text"]) for token in alone["details"]["tokens"]]
    for kill in server.interruptions():
        got = []
        with wire.Events(server.address, "/generate_stream", GRAMMARS[name]) as events:
            for count, event in enumerate(map(json.loads, events)):
                got.append((event["token"]["id"], event["token"]["text"]))
                if count == 30:
                    kill()
        assert got == tokens


def test_drafts_are_accepted_and_counted(speculating: Launched) -> None:
    def counted() -> tuple[float, float, float, float]:
        seen = speculating.metrics()
        return (
            seen.value("penstock_accepted_drafts"),
            seen.value("tgi_request_skipped_tokens_sum"),
            seen.value("penstock_drafts"),
            seen.value("penstock_steps"),
        )

    before = counted()
    ask_all(speculating.address, [complete(LIST, 300, **FEW)])
    accepted, skipped, drafts, steps = (now - then for now, then in zip(counted(), before, strict=True))
    assert accepted == skipped and accepted > 100 and drafts >= accepted
    assert steps < 200, f"{steps} steps for 300 tokens"
    speculating.wait_told("skipped_tokens")


def test_an_answer_says_how_many_of_its_tokens_were_guessed(
    speculating: Launched, exact: wire.Address
) -> None:
    body = {"prompt": LIST, "max_tokens": 200, "temperature": 0, "ignore_eos": True, **FEW}

    def guessed(address: wire.Address, path: str, body: dict[str, Any]) -> int:
        told = wire.post(address, path, body).json()
        assert "completion_tokens_details" not in told["usage"], "what gives each number in it a price"
        return int(told.get("accepted_drafts", 0))

    before = speculating.metrics().value("penstock_accepted_drafts")
    told = guessed(speculating.address, "/v1/completions", body)
    assert told == speculating.metrics().value("penstock_accepted_drafts") - before and told > 20
    assert guessed(exact, "/v1/completions", body) == 0
    of_two = guessed(speculating.address, "/v1/completions", {**body, "prompt": [LIST, LIST + " and"]})
    assert of_two > 20
    with wire.Events(speculating.address, "/v1/completions", {**body, "stream": True}) as events:
        *_, last = [json.loads(event) for event in events if event != "[DONE]"]
    assert last["usage"]["completion_tokens"] == 200 and last["accepted_drafts"] > 20


def test_the_server_says_that_it_speculates(speculating: Launched, exact: wire.Address) -> None:
    assert wire.get(speculating.address, "/info").json()["speculate"] == DRAFTS
    assert wire.get(exact, "/info").json()["speculate"] == 0


def test_a_stream_has_one_event_for_each_token(speculating: Launched, exact: wire.Address) -> None:
    body = repetitive(top_n_tokens=2)
    whole = answer(exact, "/generate", body)
    with wire.Events(speculating.address, "/generate_stream", body) as events:
        told = [json.loads(event) for event in events]
    assert [event["token"] for event in told] == whole["details"]["tokens"]
    assert [event["top_tokens"] for event in told] == whole["details"]["top_tokens"]
    assert [event["index"] for event in told] == list(range(1, len(told) + 1))
    assert told[-1]["generated_text"] == whole["generated_text"]
    assert all(event["details"] is None for event in told[:-1])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LIST, "max_tokens": 90, "temperature": 0, "logprobs": 2, "n": 2}),
        ("/v1/completions", {"prompt": LIST, "max_tokens": 90, "temperature": 0.8, "seed": 3, "ignore_eos": True}),
        (
            "/v1/chat/completions",
            {"messages": user(REPEAT), "max_tokens": 60, "temperature": 0, "logprobs": True, "top_logprobs": 2},
        ),
        (
            "/v1/completions",
            {"prompt": AGAIN, "max_tokens": 90, "temperature": 0.9, "seed": 4, "n": 2, "best_of": 2},
        ),
        (
            "/generate",
            {"inputs": LIST, "parameters": {"max_new_tokens": 60, "grammar": {"type": "regex", "value": "(item [0-9]{1,2} is (red|blue), ){8}"}}},
        ),
    ],
)  # fmt: skip
def test_other_routes_and_grammars_answer_the_same(
    path: str, body: dict[str, Any], speculating: Launched, exact: wire.Address
) -> None:
    assert answer(speculating.address, path, body) == answer(exact, path, body)


def requests() -> list[Ask]:
    asks = [chat(user(question), 60) for question in QUESTIONS]
    for number in range(6):
        asks.append(complete(f"{LIST[: 20 * number]}{AGAIN}", 200 + number))
        asks.append(complete(f"{number} {LIST}", 200 + number, **FEW))
        asks.append(generate(f"{number}: {LIST}", 200, do_sample=True, temperature=0.8, seed=number))
    return asks


def test_what_one_key_was_answered_is_guessed_from_for_that_key_alone(launch: Launch) -> None:
    keys = ("key-of-one", "key-of-another")
    flags = [flag for key in keys for flag in ("--api-key", key)]
    launched = launch(
        *EXACT, *flags, "--speculate", str(DRAFTS), "--speculate-corpus-tokens", "10000"
    ).wait_ready()
    # No prompt has what follows, and nothing goes round.
    body = {
        "prompt": "A list of things:",
        "max_tokens": 150,
        "temperature": 1.2,
        "seed": 3,
        "ignore_eos": True,
    }

    def guessed(key: str) -> tuple[float, Any]:
        before = launched.metrics().value("penstock_accepted_corpus_drafts")
        reply = wire.post(launched.address, "/v1/completions", body, headers=bearer(key))
        assert reply.status == 200, reply.text
        return launched.metrics().value("penstock_accepted_corpus_drafts") - before, reply.json()["choices"]

    first, text = guessed(keys[0])
    again, of_again = guessed(keys[0])
    other, of_other = guessed(keys[1])
    assert of_again == text and of_other == text
    assert first == 0 and other == 0 and again > 50


def test_killed_half_way_every_stream_goes_on_as_it_would_have(launch: Launch, exact: wire.Address) -> None:
    expected = ask_all(exact, requests())
    launched = launch(*EXACT, "--speculate", str(DRAFTS)).wait_ready()
    for kill in launched.interruptions():
        found = ask_all_through(launched, requests(), kill, at=400)
        for request, one, other in zip(requests(), found, expected, strict=True):
            assert one.same_as(other), f"{request}: {one} instead of {other}"
    assert launched.metrics().value("penstock_accepted_drafts") > 50


@pytest.mark.tail
@pytest.mark.parametrize("flags", [("--num-shard", "2"), ("--pipeline-parallel", "2")], ids=" ".join)
def test_ranks_agree_on_what_was_accepted(
    flags: tuple[str, ...], launch: Launch, exact: wire.Address
) -> None:
    launched = launch(*ON_TORCH, "--speculate", str(DRAFTS), *flags).wait_ready()
    plain = launch(*ON_TORCH, *flags).wait_ready()
    for body in (BODIES["greedy"], BODIES["sampled"]):
        assert answer(launched.address, "/generate", body) == answer(plain.address, "/generate", body)
    assert launched.metrics().value("penstock_accepted_drafts") > 20
