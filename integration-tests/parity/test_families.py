"""Every family's logits are transformers', in every way a sequence can be cut into steps, and its greedy text does
not depend on who else is in the batch. What was seen is the table of docs/models.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from families import FAMILIES, few_of, in_turn, vocabulary_of
from models import LENGTH, Reference, ids, make
from page import runs, saw
from ranks import Ranks
from torch import Tensor

# `make test-gpu` sets it to "cuda".
DEVICE = os.environ.get("PENSTOCK_TEST_DEVICE", "cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES = ("prefill", "chunks", "decode", "prefix hit", "ragged batch", "TP=2")
LIMITS: dict[str, Any] = {"max_slots": 20, "max_step_tokens": 2000, "max_sequence_tokens": 160, "blocks": 200}
GREEDY_TOKENS = 24

# The models are so small that a second thread costs more than it does.
torch.set_num_threads(1)


class Steps(Protocol):
    """An engine, or two."""

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> Any:
        """Executes one plan."""

    def last_logits(self) -> Tensor:
        """Logits of the rows that sampled."""


def blocks(tokens: int, first: int) -> list[int]:
    """Enough blocks for so many tokens."""
    return list(range(first, first + -(-tokens // 16)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks of one group: this process, and one that does as it is told."""
    with Ranks(tmp_path_factory.mktemp("group"), shards=2) as pair:
        yield pair


@pytest.mark.few(45)
@pytest.mark.parametrize("family", in_turn())
def test_a_family_computes_what_transformers_computes(family: str, tmp_path: Path, pair: Ranks) -> None:
    from driver import Driver
    from penstock.engine import step_graphs

    step_graphs.MIXED_TOKENS = (128,)  # of what a GPU records what these steps use
    config = FAMILIES[family]
    folder = make(tmp_path, config)
    vocabulary = vocabulary_of(config)
    sequences = [ids(vocabulary, 1), ids(vocabulary, 2, 90)]
    reference = Reference(folder, sequences)
    for short, dtype in DTYPES.items():
        driver = Driver(folder, dtype, **LIMITS)
        driver.forgets = True
        prefill(driver, reference, sequences, dtype)
        in_pieces(driver, reference, sequences, dtype)
        ragged(driver, reference, sequences, dtype)
        driver.forgets = False
        prefix_hit(driver, reference, sequences, dtype)
        if DEVICE != "cpu":  # two ranks need two GPUs, and the page is of what was seen without one
            continue
        divided = pair.driver(folder, dtype, **LIMITS)
        prefill(divided, reference, sequences, dtype)
        in_pieces(divided, reference, sequences, dtype)
        ragged(divided, reference, sequences, dtype)
        prefix_hit(divided, reference, sequences, dtype)
        for mode in MODES:
            saw(family, mode, short)


@pytest.mark.skipif(DEVICE != "cpu", reason="the test above runs all of them there")
@pytest.mark.covered_by("test_a_family_computes_what_transformers_computes")
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_computes_in_fp32_what_transformers_computes(family: str, tmp_path: Path) -> None:
    """What the test above costs too much for, with every change: all others, in one type and one process."""
    from driver import Driver

    folder = make(tmp_path, FAMILIES[family])
    vocabulary = vocabulary_of(FAMILIES[family])
    sequences = [ids(vocabulary, 1), ids(vocabulary, 2, 90)]
    reference = Reference(folder, sequences)
    driver = Driver(folder, torch.float32, **LIMITS)
    driver.forgets = True
    prefill(driver, reference, sequences, torch.float32)
    in_pieces(driver, reference, sequences, torch.float32)


@pytest.mark.parametrize("family", few_of(FAMILIES))
def test_a_greedy_text_does_not_depend_on_its_company(family: str, tmp_path: Path, pair: Ranks) -> None:
    from driver import Driver

    if DEVICE != "cpu":
        pytest.skip("sums depend on the batch there")
    config = FAMILIES[family]
    folder = make(tmp_path, config)
    for dtype in DTYPES.values():
        exact = dtype == torch.bfloat16
        greedy(Driver(folder, dtype, deterministic=exact, **LIMITS), vocabulary_of(config))
    greedy(pair.driver(folder, torch.float32, **LIMITS), vocabulary_of(config))
    if runs(family) == "engine":  # whose sums are the same for any batch
        driver = Driver(folder, torch.bfloat16, **LIMITS)
        assert driver.engine.native is not None
        greedy(driver, vocabulary_of(config))
    saw(family, "greedy text", "fp32, bf16")


def prefill(driver: Any, reference: Reference, sequences: list[list[int]], dtype: torch.dtype) -> None:
    """The whole sequence in one step."""
    from client import row

    whole = driver.all_logits(
        [row(0, sequences[0], 0, blocks(LENGTH, 0), start={}, sample=False, targets=[1] * LENGTH)]
    )
    for position, logits_V in enumerate(whole):
        reference.check(logits_V, 0, position, dtype)


def in_pieces(driver: Steps, reference: Reference, sequences: list[list[int]], dtype: torch.dtype) -> None:
    """Pieces of uneven length, then token by token."""
    from client import row

    position = 0
    for count in (1, 16, 37, 30, *[1] * 16):
        tokens = sequences[0][position : position + count]
        new = blocks(LENGTH, 20) if position == 0 else []
        driver.step([row(1, tokens, position, new, start=None if position else {})])
        position += count
        reference.check(driver.last_logits()[0], 0, position - 1, dtype)


def prefix_hit(driver: Steps, reference: Reference, sequences: list[list[int]], dtype: torch.dtype) -> None:
    """A sequence that starts with blocks that another one filled, and with a copy of its state."""
    from client import row

    driver.step([row(2, sequences[0][:64], 0, blocks(64, 40), start={}, saves=[(32, 1), (48, 0)])])
    driver.step([], released=[2])
    shared = [40, 41, 42, *blocks(LENGTH - 48, 50)]
    driver.step([row(3, sequences[0][48:], 48, shared, start={"state_source": 0})])
    reference.check(driver.last_logits()[0], 0, LENGTH - 1, dtype)


def ragged(driver: Steps, reference: Reference, sequences: list[list[int]], dtype: torch.dtype) -> None:
    """Decodes of long and short contexts beside pieces of several shapes, a start among them."""
    from client import row

    one, other = sequences
    driver.step(
        [
            row(4, one[:40], 0, blocks(41, 60), start={}),
            row(5, one[:5], 0, blocks(6, 70), start={}),
            row(6, other[:33], 0, blocks(90, 80), start={}, sample=False),
            row(7, other[:1], 0, blocks(2, 90), start={}),
        ]
    )
    wanted = [(0, 39), (0, 4), (1, 0)]
    for got, (sequence, position) in zip(driver.last_logits(), wanted, strict=True):
        reference.check(got, sequence, position, dtype)
    driver.step(
        [
            row(5, [one[5]], 5),
            row(6, other[33:90], 33),
            row(4, [one[40]], 40),
            row(8, other[:20], 0, blocks(20, 100), start={}),
            row(7, [other[1]], 1),
            row(9, other[:3], 0, blocks(3, 110), start={}),
        ]
    )
    wanted = [(0, 5), (1, 89), (0, 40), (1, 19), (1, 1), (1, 2)]
    for got, (sequence, position) in zip(driver.last_logits(), wanted, strict=True):
        reference.check(got, sequence, position, dtype)


def greedy(driver: Any, vocabulary: int) -> None:
    """The same text alone and cold, after a prefix hit, and in a batch of 16 of mixed lengths."""
    from client import row

    prompts = [ids(vocabulary, 10 + at, 5 + 5 * at) for at in range(16)]
    prompts[7] = ids(vocabulary, 10, 70)[:60]

    def generate(slots: list[int], cached: int = 0) -> list[list[int]]:
        """Starts the prompts of these slots together and decodes them; `cached` tokens are in the blocks."""
        rows = [
            row(
                slot,
                prompts[slot][cached:],
                cached,
                blocks(len(prompts[slot]) + 32, 8 * slot),
                start={"state_source": 0} if cached else {},
                saves=[(48, 0)] if slot == 7 and not cached else [],
            )
            for slot in slots
        ]
        texts: list[list[int]] = [[] for _ in slots]
        for turn in range(GREEDY_TOKENS):
            result = driver.step(rows)
            assert not result.errors
            sampled = [
                int.from_bytes(result.sampled[4 * at : 4 * at + 4], "little") for at in range(len(slots))
            ]
            for text, token in zip(texts, sampled, strict=True):
                text.append(token)
            rows = [row(slot, None, len(prompts[slot]) + turn) for slot in slots]
        return texts

    together = generate(list(range(16)))
    for slot in (0, 3, 7, 12):
        driver.begin()
        (cold,) = generate([slot])
        assert cold == together[slot], f"the text of slot {slot} depends on its company"
    driver.begin()
    (cold,) = generate([7])
    driver.begin()
    (warm,) = generate([7], cached=48)
    assert warm == cold, "the text depends on what was cached"
