"""Verify rows of models with recurrent layers: the state behind a row is that of its accepted drafts, whatever the others were."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from client import DEVICE, row, sampled
from driver import Driver
from penstock.engine.plan import CONTINUE, SAMPLE
from penstock.engine.state_places import StatePlaces
from penstock.errors import BadPlan
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from test_recurrent import ATTENTION, BEGIN, CONV, FRESH, plan, slots, write
from test_verify import PROMPT, SAMPLINGS, TOKENS, Beside, Guess, accepted, chain, one_by_one, with_drafts

ENGINES = ("torch", "the CPU engine")
KINDS = {"hybrid": (CONV, ATTENTION, CONV), "recurrent": (CONV, CONV)}
VOCABULARY = 99


def driver_of(folder: Path, engine: str, kinds: str = "hybrid", **limits: Any) -> Driver:
    write(folder, KINDS[kinds])
    if engine == "torch":
        return Driver(folder, **limits)
    try:
        cpu_engine.instruction_sets()
    except NoCpuEngine as error:
        pytest.skip(str(error))
    driver = Driver(folder, torch.bfloat16, **limits)
    assert driver.engine.native is not None
    return driver


@pytest.fixture(
    scope="module", params=[(engine, kinds) for engine in ENGINES for kinds in KINDS], ids=" ".join
)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if DEVICE != "cpu":
        pytest.skip("sums depend on the batch there")
    return driver_of(tmp_path_factory.mktemp("model"), *request.param)


def sampling(name: str) -> dict[str, Any]:
    """Of the smaller vocabulary."""
    return {**SAMPLINGS[name], **({"watermark_greens": 40} if "watermark" in name else {})}


def guess(rng: Random, expected: list[int]) -> Guess:
    """As `chain`, of the smaller vocabulary."""
    made = chain(rng, expected)
    return Guess([token % VOCABULARY for token in made.drafts], made.right)


@pytest.mark.few(14)
@pytest.mark.parametrize("exact", [True, False], ids=["positions", "bounds"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_text_is_the_same_with_drafts_to_the_last_bit(name: str, exact: bool, driver: Driver) -> None:
    expected = one_by_one(driver, sampling(name))
    found = with_drafts(driver, sampling(name), expected.tokens, exact, seed=len(name), guess=guess)
    assert found.first(TOKENS) == expected.first(TOKENS)


@pytest.mark.parametrize("kinds", KINDS)
def test_states_in_one_call_are_those_of_several_calls(kinds: str, tmp_path: Path) -> None:
    """Of rows beside each other with drafts and without; now and then a state is copied."""
    both = Beside(lambda: driver_of(tmp_path, "the CPU engine", kinds, blocks=200))
    names = ("greedy", "penalties", "temperature")
    both.go_on({slot: sampling(name) for slot, name in enumerate(names)}, 40, guess)
    both.go_on({slot: sampling(name) for slot, name in enumerate(names[:2])}, 20, guess, saved=3)
    assert both.verified > 30 and both.repeated > 5 and sum(both.seen) > both.verified
    ours, theirs = (driver.engine for driver in both.drivers)
    assert ours.states is not None and theirs.states is not None
    assert ours.slots.states is not None and theirs.slots.states is not None
    theirs._settle()
    here, there = (
        [*one.of_slots[:2].tolist(), one.first_snapshot] for one in (ours.slots.states, theirs.slots.states)
    )
    for layer, other in zip(ours.states.layers, theirs.states.layers, strict=True):
        for one, two in zip(layer, other, strict=True):
            assert (np.asarray(one)[here] == np.asarray(two)[there]).all()


def test_every_number_of_accepted_drafts_leaves_the_state_behind_them(driver: Driver) -> None:
    expected = one_by_one(driver, {}).tokens
    for right in range(6):
        driver.begin()
        driver.step([row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start={})])
        wrong = [(token + 1) % VOCABULARY for token in expected[1:6]]
        drafts = expected[1 : 1 + right] + wrong[right:]
        result = driver.step([row(0, None, len(PROMPT), drafts=drafts)])
        assert accepted(result) == [right] and sampled(result) == expected[1 : right + 2]
        following = len(PROMPT) + right + 1
        assert sampled(driver.step([row(0, None, following)])) == [expected[right + 2]]
        assert sampled(driver.step([row(0, None, following + 1)])) == [expected[right + 3]]


def test_a_copy_may_be_kept_behind_any_token_of_a_row(driver: Driver) -> None:
    """Behind what is no draft, behind drafts that are right, behind the last one; behind a wrong one it is nobody's."""
    expected = one_by_one(driver, {}).tokens
    blocks = [0, 1, 2, 3, 4, 5]
    for tokens in (1, 3, 5):
        driver.begin()
        driver.step([row(0, PROMPT, 0, blocks, start={})])
        saves = [(tokens, 2), (6, 0)]
        drafts = [*expected[1:5], (expected[5] + 1) % VOCABULARY]
        driver.step([row(0, None, len(PROMPT), drafts=drafts, saves=saves)])
        at = len(PROMPT) + tokens
        again = row(1, [expected[tokens]], at, blocks[:1], start={"state_source": 2})
        assert sampled(driver.step([again])) == [expected[tokens + 1]]
        assert sampled(driver.step([row(0, None, len(PROMPT) + 5)])) == [expected[6]]


class Sequence:
    """One of several beside each other: how far it is, and what it will say."""

    def __init__(self, slot: int, text: list[int]) -> None:
        self.slot, self.text, self.at = slot, text, 0  # tokens fed
        self.bound = 0


def test_sequences_beside_each_other_keep_their_states_apart(driver: Driver) -> None:
    """Chunks of prompts, decodes and verify rows in any mixture; slots are released in between, verified or not."""
    driver.begin()
    rng = Random(7)
    prompts = [[3 + (7 * number + 5 * at) % 90 for at in range(5 + 9 * number)] for number in range(4)]
    texts = []
    for prompt in prompts:
        text = list(prompt)
        rows = [row(0, prompt, 0, [0, 1, 2, 3, 4, 5], start={})]
        for _ in range(40):
            text += sampled(driver.step(rows))
            rows = [row(0, None, len(text) - 1)]
        texts.append(text)
    driver.begin()
    live: dict[int, Sequence] = {}
    released: list[int] = []
    begun = verified = 0
    for _ in range(400):
        for slot in list(live):
            sequence = live[slot]
            if sequence.at >= len(sequence.text) - 8 or rng.random() < 0.02:
                released.append(slot)
                del live[slot]
        rows, checked = [], []
        for slot in range(4):
            number = slot
            if slot not in live:
                if rng.random() < 0.5:
                    continue
                live[slot] = Sequence(slot, texts[number])
                begun += 1
            sequence, prompt = live[slot], prompts[number]
            if rng.random() < 0.2 and sequence.at > 0:
                continue
            if sequence.at < len(prompt):
                end = min(sequence.at + rng.randrange(1, 20), len(prompt))
                blocks = [6 * slot + at for at in range(6)] if sequence.at == 0 else []
                chunk = prompt[sequence.at : end]
                start: dict[str, Any] | None = {} if sequence.at == 0 else None
                rows.append(row(slot, chunk, sequence.at, blocks, start=start, sample=end == len(prompt)))
                drafts, right, told = [], 0, end == len(prompt)
                sequence.at = end
            else:
                following = sequence.text[sequence.at + 1 : sequence.at + 1 + rng.randrange(6)]
                drafts = list(following)
                right = len(drafts)
                if drafts and rng.random() < 0.6:
                    right = rng.randrange(len(drafts))
                    drafts[right] = (drafts[right] + 1) % VOCABULARY
                verified += len(drafts)
                position = rng.choice((sequence.at, sequence.bound)) if sequence.bound else sequence.at
                rows.append(row(slot, None, position, drafts=drafts))
                sequence.at += right + 1
                told = True
                sequence.bound = position + 1 + len(drafts)
            if told:
                checked += sequence.text[sequence.at - right : sequence.at + 1]
        if rows:
            assert sampled(driver.step(rows, released=released)) == checked
            released = []
    assert begun > 20 and verified > 200


def test_what_a_grammar_forces_advances_the_state(driver: Driver) -> None:
    prompt = row(0, PROMPT, 0, [0, 1, 2, 3], start={}, masked=True)
    forced, allowed = [17, 8, 33], list(range(40, 90))
    driver.begin()
    first = sampled(driver.step([prompt], masks=[allowed]))
    for at, mask in enumerate([*([token] for token in forced), allowed]):
        first += sampled(driver.step([row(0, None, len(PROMPT) + at, masked=True)], masks=[mask]))
    first += sampled(driver.step([row(0, None, len(PROMPT) + 4)]))
    driver.begin()
    found = sampled(driver.step([prompt], masks=[allowed]))
    masks = [*([token] for token in forced), allowed]
    found += sampled(driver.step([row(0, None, len(PROMPT), drafts=forced, masked=True)], masks=masks))
    found += sampled(driver.step([row(0, None, len(PROMPT) + 4)]))
    assert found == first


def test_places_change_roles_and_none_is_lost() -> None:
    places = StatePlaces(3, 2, 4)
    slots_S = np.array([0, 2])
    places.take(slots_S, np.array([3, 1]))
    with pytest.raises(BadPlan, match="drafts: 1, and 0 of 4"):
        places.take(np.array([1]), np.array([1]))
    # Of the first slot one is accepted, of the other all.
    places.settle(slots_S, np.array([2, 0]))
    assert places.of_slots[1:].tolist() == [1, 2] and places.of_slots[0] > 4
    places.take(np.array([0]), np.array([4]))
    places.forget(np.array([0, 1]))
    places.take(np.array([1]), np.array([4]))
    places.clear()
    assert places.of_slots.tolist() == [0, 1, 2]
    places.take(np.array([1]), np.array([4]))


def test_copies_of_a_row_come_in_the_order_of_its_tokens() -> None:
    table = slots(draft_states=4)
    made = plan(BEGIN * 2, [0, 0], [3, 8], FRESH * 2, [(0, 2, 1), (1, 8, 0)], [2, 0])
    table.apply(made)
    assert table.states is not None
    saves = table.states.saves(made)
    assert saves[:, :2].tolist() == [[0, 1], [0, 2], [0, 2], [1, 8]]
    assert set(saves[:, 2].tolist()) >= {4 + 1, 4 + 0}


@pytest.mark.parametrize(("rejected", "is_good"), [(0, True), (1, True), (2, True), (3, False)])
def test_where_nobody_says_what_was_accepted_the_next_position_does(rejected: int, is_good: bool) -> None:
    """As in the stages of a pipeline before the last."""
    table = slots()
    table.apply(plan(BEGIN, [0], [8], FRESH))
    table.apply(plan([CONTINUE | SAMPLE], [8], [3], drafts=[2]))
    following = plan([CONTINUE | SAMPLE], [11 - rejected], [1])
    if not is_good:
        with pytest.raises(BadPlan, match=r"^positions: row 0 begins at 8, but slot 0 .*rewound"):
            table.apply(following)
        return
    table.apply(following)
    assert table.filled[0] == 12 - rejected
    assert table.states is not None
    assert (table.states.of_slots[0] == 0) == (rejected == 0)
    with pytest.raises(BadPlan, match=r"^positions"):
        table.apply(plan([CONTINUE | SAMPLE], [11 - rejected], [1]))


def test_a_slot_that_starts_anew_gives_its_places_back(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, "torch", max_step_drafts=4)
    for _ in range(5):
        driver.step([row(0, PROMPT, 0, [0, 1], start={})])
        driver.step([row(0, None, len(PROMPT), drafts=[1, 2, 3, 4])])
    driver.step([row(0, PROMPT, 0, [0, 1], start={})], released=[0])
    driver.step([row(0, None, len(PROMPT), drafts=[1, 2, 3, 4])])
