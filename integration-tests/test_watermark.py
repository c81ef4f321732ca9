"""Texts that bear a watermark, found by the detector of examples/watermark.py; and what a restarted worker makes of them.

Kirchenbauer et al., "A Watermark for Large Language Models", 2023: who knows which tokens are green after which
counts them. Without a watermark their share is gamma; the z-score says by how many standard deviations it is more.
"""

from __future__ import annotations

import runpy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import EXACT, Launched
from load import Answer, Ask, ask, ask_all, complete, generate
from processes import wait_for
from prompts import ADD, as_text, user

DETECTOR = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "watermark.py"))
GAMMA, DELTA = 0.25, 4.0
PROMPT = "Once upon a time there was a"
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.5}


@pytest.fixture(scope="module")
def marking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    flags = ("--watermark-gamma", str(GAMMA), "--watermark-delta", str(DELTA), "--step-timeout", "5")
    with Launched(tmp_path_factory.mktemp("marking"), *flags, *EXACT) as launched:
        yield launched.wait_ready()


def z_score(address: wire.Address, answers: list[tuple[list[int], list[int]]], gamma: float = GAMMA) -> float:
    """Of prompts' and texts' tokens; a prompt's last token stands before the text's first."""
    vocabulary = int(wire.get(address, "/info").json()["vocab_size"])
    texts = [[prompt[-1], *text] for prompt, text in answers]
    score: float = DETECTOR["z_score"](texts, vocabulary, gamma)
    return score


def sampled(number: int, **more: Any) -> Ask:
    return generate(f"{PROMPT} {number}", 80, seed=number, **SAMPLED, **more)


def with_prompts(address: wire.Address, answers: list[Answer]) -> list[tuple[list[int], list[int]]]:
    def prompt(number: int) -> list[int]:
        return [
            token["id"] for token in wire.post(address, "/tokenize", {"inputs": f"{PROMPT} {number}"}).json()
        ]

    return [(prompt(number), answer.pieces) for number, answer in enumerate(answers)]


def test_a_detector_finds_the_watermark_and_nothing_where_there_is_none(marking: Launched) -> None:
    address = marking.address
    # Side by side, so that marked and unmarked rows share every step.
    requests = [sampled(number, watermark=marked) for marked in (True, False) for number in range(6)]
    answers = ask_all(address, requests)
    marked, plain = (with_prompts(address, some) for some in (answers[:6], answers[6:]))
    scores = z_score(address, marked), z_score(address, plain)
    assert scores[0] > 6, scores
    assert abs(scores[1]) < 4, scores
    # The text that others in the batch get is the one they would have got alone.
    assert ask(address, requests[7]).same_as(answers[7])
    # Another secret, here another gamma, finds nothing.
    assert abs(z_score(address, marked, 0.6)) < scores[0] / 2


def test_each_token_is_as_likely_as_without_the_watermark(marking: Launched) -> None:
    """What is reported is the model's own distribution, whatever was added before the choice."""
    parameters = {"max_new_tokens": 12, "details": True, "watermark": True, "decoder_input_details": True}
    body = {"inputs": as_text(ADD), "parameters": parameters}
    details = wire.post(marking.address, "/generate", body).json()["details"]
    generated = [token["id"] for token in details["tokens"]]
    again = {"prompt": [token["id"] for token in details["prefill"]] + generated, "echo": True}
    again |= {"logprobs": 1, "max_tokens": 0}
    scored = wire.post(marking.address, "/v1/completions", again).json()["choices"][0]["logprobs"]
    own = scored["token_logprobs"][-len(generated) :]
    assert [token["logprob"] for token in details["tokens"]] == pytest.approx(own, abs=1e-3)


@pytest.mark.tail
def test_a_killed_worker_changes_neither_watermark_nor_minimum(launch: Launch, marking: Launched) -> None:
    chat = {"messages": user(ADD), "max_tokens": 120, "min_tokens": 100, "stream": True, "temperature": 0}
    free = wire.post(
        marking.address, "/v1/chat/completions", {**chat, "min_tokens": 0, "stream": False}
    ).json()
    assert free["usage"]["completion_tokens"] < 60, "the model should end this by itself"
    requests = [
        sampled(1, watermark=True),
        sampled(2),
        complete(as_text(ADD), 120, ignore_eos=False, min_tokens=100),
        complete(as_text(ADD), 120, ignore_eos=False, min_tokens=100, seed=3, temperature=1.2),
    ]
    undisturbed = ask_all(marking.address, requests)
    assert all(answer.pieces[-1] > 100 for answer in undisturbed[2:]), undisturbed
    for request, expected in zip(requests, undisturbed, strict=True):
        seen: list[int] = []

        def kill_once(seen: list[int] = seen) -> None:
            seen.append(1)
            if len(seen) == 20:
                marking.worker().signal(signal.SIGKILL)

        assert ask(marking.address, request, kill_once).same_as(expected), request
        wait_for(
            lambda: (marking.health() or wire.Reply(0, {}, b"")).status == 200, "the worker to be back", 60
        )
