"""Rows that begin and end while others go on, as under load: what the CPU engine makes of such plans by itself is to the last bit what Python does."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import checkpoints
from choosers import SETS
from client import row, sampled
from driver import Driver
from penstock.proto import penstock_pb2 as pb
from penstock_kernels.program import Kind
from test_go_on import BLOCK, VOCABULARY, Script, compare
from test_verify import SAMPLINGS

pytestmark = pytest.mark.skipif(not SETS, reason="the CPU engine was not built")
SLOTS, BLOCKS = 8, 12  # blocks of each
TRAFFIC: dict[str, dict[str, Any]] = {
    **SAMPLINGS,
    "ends": {"first_ends": 30, "ends": [3, 4, 5]},
    "one end": {"first_ends": 30, "ends": [7], "temperatures": 0.8, "seeds": 1},
    "watermark": {"watermark_deltas": 2.0, "watermark_greens": 70, "temperatures": 1.0, "seeds": 2},
    "presence": {"presence_penalties": 0.7, "history": []},
}
COMMON = list(range(20, 20 + BLOCK))  # that all prompts begin with


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """In bf16, so that the CPU engine runs it."""
    folder = checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config())
    return Driver(folder, torch.bfloat16, blocks=SLOTS * BLOCKS)


SPOILT = 150  # a token whose embedding is no number


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The same model where nothing is a number behind one token."""
    folder = checkpoints.write(tmp_path_factory.mktemp("spoilt"), checkpoints.config())
    driver = Driver(folder, torch.bfloat16, blocks=SLOTS * BLOCKS)
    model: Any = driver.engine.model
    (embed,) = (operation for operation in model.program.body if operation.kind == Kind.EMBED)
    # Tiles of 16 tokens by 32 numbers, in pairs. A checkpoint with such numbers would be refused.
    embed.weight.reshape(-1, 2, 16, 16, 2)[SPOILT // 16, :, :, SPOILT % 16] = 0x7FC0
    return driver


@dataclass
class Sequence:
    """One that runs in a slot."""

    start: dict[str, Any]
    masked: bool
    prompt: list[int]
    most: int  # tokens that it is to have
    text: list[int] = field(default_factory=list)
    fed: int = 0  # at most, as far as the router knows
    blocks: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it gets no more rows."""
        return len(self.text) >= self.most


@dataclass
class Traffic:
    """Sequences that come and go in all slots, of which some begin with a copy of what another one has computed."""

    script: Script
    rng: Random
    has_masks: bool
    has_drafts: bool
    samplings: list[str]
    running: dict[int, Sequence] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)  # slots whose first block was, before this plan
    pythons: set[int] = field(default_factory=set)  # plans that the engine leaves

    def begin(self, slot: int) -> Sequence:
        """A sequence whose first row is in this plan."""
        rng = self.rng
        start = {
            name: value for name, value in TRAFFIC[rng.choice(self.samplings)].items() if name != "top_tokens"
        }
        prompt = COMMON + [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 40))]
        if "seeds" in start:
            start["seeds"] = rng.randrange(1 << 63)
        if "history" in start:
            start["history"] = prompt
        if "first_ends" in start:
            start["first_ends"] = len(prompt) + rng.randrange(1, 12)
        masked = self.has_masks and rng.random() < 0.5
        self.running[slot] = Sequence(start, masked, prompt, rng.choice([1, 2, 5, 30]))
        return self.running[slot]

    def copied(self, slot: int) -> tuple[int, list[tuple[int, int]]]:
        """Where a sequence begins, and what is copied for that."""
        others = [other for other in self.computed if other != slot]
        if not others or self.rng.random() < 0.5:
            return 0, []
        return self.rng.randrange(1, BLOCK), [(self.rng.choice(others) * BLOCKS, slot * BLOCKS)]

    def row(self, slot: int, sequence: Sequence, copies: list[tuple[int, int]]) -> dict[str, Any]:
        """The next row of a sequence: its first one, a chunk of its prompt, or what it sampled last."""
        rng, start, drafts = self.rng, None, []
        if sequence.fed == 0:
            start = sequence.start
            sequence.fed, copied = self.copied(slot)
            copies += copied
        tokens = None if sequence.text else sequence.prompt[sequence.fed :]
        sample = True
        if tokens is None:
            if rng.random() < 0.5:
                sequence.fed = len(sequence.prompt) + len(sequence.text) - 1  # the router knows
            if self.has_drafts and rng.random() < 0.4:
                drafts = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 4))]
        elif rng.random() < 0.4:
            sample = len(tokens) == 1
            tokens = tokens[: max(1, len(tokens) // 2)]
        position, before = sequence.fed, sequence.blocks
        sequence.fed += len(drafts) + (1 if tokens is None else len(tokens))
        sequence.blocks = max(before, -(-sequence.fed // BLOCK))
        blocks = [slot * BLOCKS + number for number in range(before, sequence.blocks)]
        masked = sequence.masked and sample
        return row(slot, tokens, position, blocks, start=start, sample=sample, masked=masked, drafts=drafts)

    def step(self) -> None:
        """One plan, and what comes of it."""
        rng, script = self.rng, self.script
        starting = [slot for slot in range(SLOTS) if slot not in self.running and rng.random() < 0.3]
        self.computed = [slot for slot, one in self.running.items() if one.fed >= BLOCK]
        slots = [slot for slot, one in self.running.items() if not one.is_over and rng.random() < 0.9]
        if not slots + starting:
            return
        # Python alone takes biases over.
        begun = [self.begin(slot).start for slot in starting]
        is_pythons = any("bias" in start for start in begun)
        slots += starting
        rng.shuffle(slots)
        copies: list[tuple[int, int]] = []
        rows = [self.row(slot, self.running[slot], copies) for slot in slots]
        masks = [
            self.mask(one["drafts"][at : at + 1])
            for one in rows
            if one["masked"]
            for at in range(len(one["drafts"]) + 1)
        ]
        result = script.step(rows, masks or None, self.released, copies)
        if is_pythons:
            self.pythons.add(len(script.plans))
        self.take(rows, result)
        # A sequence is over when the router is told, or when it is cancelled, in its prompt or behind it.
        self.released = [
            slot
            for slot, one in self.running.items()
            if (one.is_over and rng.random() < 0.6) or rng.random() < 0.02
        ]
        for slot in self.released:
            del self.running[slot]

    def take(self, rows: list[dict[str, Any]], result: pb.StepResult) -> None:
        """What was sampled."""
        tokens, accepted = iter(sampled(result)), iter(np.frombuffer(result.accepted, "<u4").tolist())
        for one in rows:
            if one["sample"]:
                count = 1 + (next(accepted) if one["drafts"] else 0)
                self.running[one["slot"]].text += [next(tokens) for _ in range(count)]

    def mask(self, wanted: list[int]) -> list[int]:
        """The tokens that a sample may be, a draft among them or it alone."""
        others = self.rng.sample(range(VOCABULARY), self.rng.choice([1, 2, 60]))
        return sorted({*wanted, *others[: None if not wanted else self.rng.choice([0, 2, 60])]})


def run(driver: Driver, rng: Random, masks: bool, drafts: bool, samplings: list[str]) -> Traffic:
    """So many plans of traffic. The cache is empty behind them."""
    driver.begin()
    traffic = Traffic(Script(driver), rng, masks, drafts, samplings)
    for _ in range(120):
        traffic.step()
    # What is to be copied is nowhere else.
    for tensor_NJD in driver.engine.cache.tensors_NJD:
        tensor_NJD[:] = 0
    return traffic


PLAIN = [name for name in TRAFFIC if "bias" not in TRAFFIC[name]]


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drafts", [False, True], ids=["", "drafts"])
@pytest.mark.parametrize("masks", [False, True], ids=["free", "masks"])
@pytest.mark.parametrize("samplings", [PLAIN, list(TRAFFIC)], ids=["plain", "all"])
def test_rows_begin_and_end(
    samplings: list[str], masks: bool, drafts: bool, seed: int, driver: Driver
) -> None:
    rng = Random(seed)
    traffic = run(driver, rng, masks, drafts, samplings)
    script = traffic.script
    outcome = compare(script, rng)
    assert set(outcome.launched) == traffic.pythons
    starts = sum(plan.HasField("starts") for plan in script.plans)
    assert starts > 40 and any(plan.copies for plan in script.plans)
    assert samplings is not PLAIN or not outcome.launched


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drafts", [False, True], ids=["", "drafts"])
@pytest.mark.parametrize("masks", [False, True], ids=["free", "masks"])
def test_rows_of_no_numbers_fail_alone(masks: bool, drafts: bool, seed: int, spoilt: Driver) -> None:
    rng = Random(seed)
    script = run(spoilt, rng, masks, drafts, PLAIN).script
    failed = sum(len(result.errors) for result in script.expected)
    samples = sum(len(sampled(result)) for result in script.expected)
    assert 10 < failed < samples / 2
    assert not compare(script, rng).launched
