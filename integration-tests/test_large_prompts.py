"""Prompts of a hundred thousand tokens are worked on beside the others, not before them."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

import wire
from launched import Launched

pytestmark = pytest.mark.alone

# Above 100,000 tokens of the shipped model's tokenizer, which knows such words whole.
LONG = "zq9 " * 40_000


def tokenize(address: wire.Address, text: str) -> tuple[int, float]:
    """How many tokens, and after how many seconds."""
    began = time.monotonic()
    reply = wire.post(address, "/tokenize", {"inputs": text})
    seconds = time.monotonic() - began
    assert reply.status == 200, reply.text
    return len(reply.json()), seconds


def test_a_short_prompt_is_not_delayed_by_long_ones(server: Launched) -> None:
    address = server.address
    tokens, _ = tokenize(address, LONG)
    assert tokens >= 100_000
    long: list[float] = []
    busy = [threading.Thread(target=lambda: long.append(tokenize(address, LONG)[1])) for _ in range(6)]
    for thread in busy:
        thread.start()
    short: list[float] = []
    while any(thread.is_alive() for thread in busy):
        short.append(tokenize(address, "a short one")[1])
        wire.get(address, "/health")
    assert len(long) == 6 and len(short) > 6, "the long ones went too fast to tell"
    assert statistics.median(short) < statistics.median(long) / 4, (short, long)


def test_a_long_prompt_is_refused_by_its_tokens(server: Launched) -> None:
    reply = wire.post(server.address, "/generate", {"inputs": LONG, "parameters": {"max_new_tokens": 4}})
    assert reply.status == 422 and "inputs" in reply.text
    # Cut to its end it fits.
    parameters = {"max_new_tokens": 4, "truncate": 32, "details": True, "decoder_input_details": True}
    reply = wire.post(server.address, "/generate", {"inputs": LONG, "parameters": parameters})
    assert reply.status == 200 and len(reply.json()["details"]["prefill"]) == 32


def test_what_is_far_too_long_is_refused_before_it_is_tokenized(server: Launched) -> None:
    asked = {"inputs": LONG, "parameters": {"max_new_tokens": 4}}
    refusals: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        reply = wire.post(server.address, "/generate", asked)
        refusals.append(time.monotonic() - began)
        assert reply.status == 422 and "Given: more than" in reply.text
    tokenizing = min(tokenize(server.address, LONG)[1] for _ in range(2))
    assert min(refusals) < tokenizing / 3, (refusals, tokenizing)
    chat = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4, "n": 2}
    error = wire.post(server.address, "/v1/chat/completions", chat).json()["error"]
    assert error["param"] == "messages" and "`messages` must have <=" in error["message"], error
