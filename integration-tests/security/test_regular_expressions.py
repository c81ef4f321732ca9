"""Class: regular expressions that take exponential time, of clients and of a model's files.

Tried: grammars and formats that blow up when they are compiled or matched; the longest runs of what the tokenizer's own
expressions repeat; a tokenizer whose expression backtracks without end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from checkpoints import random_llama
from conftest import Launch
from launched import Launched
from probe import probed
from prompts import user

pytestmark = pytest.mark.alone

BODY = 1_900_000  # just under --payload-limit
CHAT = {"messages": user("x"), "max_tokens": 2}
FEW = {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("attacked")) as launched:
        yield launched.wait_ready()


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*" * 1_000 + "b", "a{1,1000000000}", "(" * 100_000, "x" * BODY]
)
def test_no_expression_of_a_client_holds_up_others(attacked: Launched, pattern: str) -> None:
    """Expressions that blow up when they are compiled or matched, as grammar and as format: refused in time by name, or
    followed; nobody else waits."""

    def as_grammar(value: str) -> Any:
        return {"inputs": "a" * 100, "parameters": {**FEW, "grammar": {"type": "regex", "value": value}}}

    def as_format(value: str) -> Any:
        return {**CHAT, "response_format": {"type": "regex", "value": value}}

    for path, asks in (("/generate", as_grammar), ("/v1/chat/completions", as_format)):

        def ask(turn: int, path: str = path, asks: Callable[[str], Any] = asks) -> tuple[wire.Reply, float]:
            # Another one each time, since what was compiled is known.
            body = asks(pattern + "b" * turn)
            began = time.monotonic()
            reply = wire.post(attacked.address, path, body)
            return reply, time.monotonic() - began

        (reply, took), probe = probed(attacked.address, 1.5, ask)
        assert reply.status in (200, 422), reply
        assert took < 5 and probe.slowest < 1.5, (took, probe.slowest)


@pytest.mark.parametrize("piece", [" ", "a", "\n", "'s", "1", "\t ", "\u0301", "é"])
def test_the_tokenizers_own_expressions_take_linear_time(attacked: Launched, piece: str) -> None:
    """The longest runs of what the tokenizer's expressions repeat: four times the text takes about four times as long,
    not sixteen."""

    def seconds(size: int) -> float:
        body = json.dumps(
            {"inputs": piece * (size // len(json.dumps(piece, ensure_ascii=False).encode()[1:-1]))},
            ensure_ascii=False,
        )
        began = time.monotonic()
        assert wire.post(attacked.address, "/tokenize", body).status in (200, 422)
        return time.monotonic() - began

    short, long = min(seconds(BODY // 4) for _ in range(3)), min(seconds(BODY) for _ in range(2))
    assert long < 12 * short + 1, (short, long)


def test_an_expression_of_a_tokenizer_that_backtracks_without_end_fails_the_request(
    tmp_path: Path, launch: Launch
) -> None:
    """`(a|a|aa)+$` tries all ways to cut a run of `a`: it is given up after so many, and the others go on."""
    model = random_llama(tmp_path / "model", hidden=64, layers=1)
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    cut = {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [cut, letters]}
    file.write_text(json.dumps(tokenizer))
    launched = launch("--model-id", str(model)).wait_ready()

    def ask(_: int) -> wire.Reply:
        began = time.monotonic()
        reply = wire.post(launched.address, "/generate", {"inputs": "a" * 40 + "b"})
        assert time.monotonic() - began < 20
        return reply

    reply, probe = probed(launched.address, 1.5, ask)
    assert reply.status == 424, reply
    assert probe.slowest < 1.5
    reply = wire.post(launched.address, "/generate", {"inputs": "b a c", "parameters": {"max_new_tokens": 1}})
    assert reply.status == 200, reply
