"""Drafts that are a tree: the accepted path gives the tokens and numbers of one-by-one steps, and leaves the cache as they do."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import checkpoints
import penstock_kernels as ops
from client import DEVICE, make_plan, row, sampled, u32
from driver import Driver
from penstock import tiny
from penstock.engine.slot_sampling import Drafts
from penstock.errors import BadPlan, UnusableModel
from penstock.models.config import Window
from test_sampling import VOCABULARY, sampler
from test_verify import (
    CHI_SQUARE,
    CHI_SQUARE_UNMASKED,
    PROMPT,
    SAMPLINGS,
    TOKENS,
    Beside,
    Guess,
    Text,
    accepted,
    chain,
    one_by_one,
    with_drafts,
)
from windowed import windowed


def random_tree(rng: Random, expected: list[int], most: int) -> Guess:
    """Of at most so many drafts."""
    drafts: list[int] = []
    parents: list[int] = []
    depths, are_right, following = [0], [True], [set[int]()]
    right = 0
    for _ in range(rng.randrange(most + 1)):
        parent = rng.randrange(len(depths))
        depth = depths[parent]
        wanted = expected[depth] if are_right[parent] and depth < len(expected) else None
        token = rng.randrange(199)
        if wanted is not None and wanted not in following[parent] and rng.random() < 0.6:
            token = wanted
        while token in following[parent]:
            token = rng.randrange(199)
        drafts.append(token)
        parents.append(parent)
        depths.append(depth + 1)
        are_right.append(token == wanted)
        following[parent].add(token)
        following.append(set())
        right = max(right, depth + 1 if token == wanted else 0)
    return Guess(drafts, right, parents)


def with_trees(
    driver: Driver, start: dict[str, Any], expected: list[int], exact: bool, seed: int = 0, most: int = 9
) -> Text:
    """A text whose rows bring trees."""
    made: list[Guess] = []

    def tree(rng: Random, rest: list[int]) -> Guess:
        made.append(random_tree(rng, rest, most))
        return made[-1]

    text = with_drafts(driver, start, expected, exact, seed, tree)
    moved = [guess for guess in made if guess.trees is not None and guess.right > 0]
    assert len(moved) > 5, "most accepted paths were of trees"
    return text


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config()))


@pytest.mark.few(8)
@pytest.mark.parametrize("exact", [True, False], ids=["positions", "bounds"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_text_is_the_same_with_trees_to_the_last_bit(name: str, exact: bool, driver: Driver) -> None:
    if DEVICE != "cpu":
        pytest.skip("sums depend on the batch there")
    expected = one_by_one(driver, SAMPLINGS[name])
    found = with_trees(driver, SAMPLINGS[name], expected.tokens, exact, seed=len(name))
    assert found.first(TOKENS) == expected.first(TOKENS)


@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_trees_in_one_call_give_what_several_calls_give(cache_dtype: str) -> None:
    """Beside chains, of every way to sample."""
    both = Beside(lambda: Driver(tiny.MODEL, torch.bfloat16, blocks=200, cache_dtype=cache_dtype))
    if both.drivers[0].engine.native is None:
        pytest.skip("there is no CPU engine here")

    def tree(rng: Random, rest: list[int]) -> Guess:
        return random_tree(rng, rest, 9) if rng.random() < 0.8 else chain(rng, rest)

    for seed, kinds in enumerate(
        (
            ["greedy", "greedy"],
            ["penalties", "greedy penalty", "temperature"],
            ["bias, ends and watermark", "greedy with alternatives", "top-p"],
        )
    ):
        both.go_on({slot: SAMPLINGS[name] for slot, name in enumerate(kinds)}, 30, tree, seed)
    assert both.verified > 60 and sum(both.seen) > both.verified


def test_greedy_tokens_are_the_same_with_trees_on_any_device(driver: Driver) -> None:
    expected = one_by_one(driver, {}).tokens
    assert with_trees(driver, {}, expected, exact=False).tokens[:TOKENS] == expected


@pytest.mark.skipif(DEVICE != "cpu", reason="to the last bit, and sums depend on the batch there")
@pytest.mark.parametrize(
    "windows", [(Window(20),), (None, Window(5)), (Window(24, chunked=True), None)], ids=str
)
def test_a_window_sees_the_path_and_nothing_beside_it(
    windows: tuple[Window | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = windowed(windows, tmp_path, monkeypatch)
    expected = one_by_one(driver, {})
    assert with_trees(driver, {}, expected.tokens, exact=False, most=14).first(TOKENS) == expected.first(
        TOKENS
    )


def test_trees_and_chains_verify_beside_each_other(driver: Driver) -> None:
    """A tree whose longest path is wrong, a chain, a row without drafts, and one whose prompt ends in drafts."""
    expected = one_by_one(driver, {}).tokens
    other = one_by_one(driver, SAMPLINGS["penalties"]).tokens
    driver.begin()
    driver.step(
        [
            row(0, PROMPT, 0, [0, 1], start={}),
            row(1, PROMPT, 0, [2, 3], start=SAMPLINGS["penalties"]),
            row(3, PROMPT, 0, [6, 7], start={}),
        ]
    )
    at = len(PROMPT)
    wrong = (expected[1] + 1) % 199
    tree = row(0, None, at, drafts=[wrong, 3, 4, expected[1], 9, expected[2]], parents=[0, 1, 2, 0, 4, 4])
    result = driver.step(
        [
            tree,
            row(1, None, at, drafts=other[1:3]),
            row(3, None, at),
            row(2, PROMPT, 0, [4, 5], start={}, drafts=expected[:3]),
        ]
    )
    assert accepted(result) == [2, 2, 3]
    assert sampled(result) == [*expected[1:4], *other[1:4], expected[1], *expected[:4]]
    following = driver.step([row(0, None, at + 4), row(1, None, at + 3), row(2, None, at + 3)])
    assert sampled(following) == [expected[4], other[4], expected[4]]


def test_who_shares_a_block_finds_the_path_in_it_though_its_owner_is_gone(driver: Driver) -> None:
    """The router knows the path with the result: the next plan may release the slot, and start another behind the block."""
    expected = one_by_one(driver, {}).tokens
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    at = len(PROMPT)
    right = expected[1:10]
    # Wrong ones between, so that the whole path is out of its place.
    drafts = [token for pair in zip(right, [198] * len(right), strict=True) for token in reversed(pair)]
    parents = [2 * (number // 2) for number in range(len(drafts))]
    result = driver.step([row(0, None, at, drafts=drafts, parents=parents)])
    assert accepted(result) == [len(right)]
    whole = [*PROMPT, *expected]
    following = driver.step([row(1, whole[16:17], 16, [0, 2], start={})], released=[0])
    assert sampled(following) == [whole[17]]


BAD: dict[str, tuple[list[int], dict[str, list[int] | bytes], str]] = {
    "a parent behind its draft": ([0, 3, 0], {}, "follows draft 3, which does not come before it"),
    "its own parent": ([1, 1, 0], {}, "draft 1 of row 0 follows draft 1"),
    "no draft": ([0, 1, 2**32 - 1], {}, "draft 3 of row 0 follows draft 4294967295"),
    "too few": ([0, 0], {}, "2 entries, but the rows have 3 drafts"),
    "twice the same": ([0, 0, 0], {"tokens": [5, 6, 5]}, "two drafts of row 0 are the same token"),
    "masked": ([0, 0, 1], {"flags": bytes([2 + 4 + 16])}, "a row with MASKED or OWN_DRAFTS"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_tree_is_refused_by_field(name: str, driver: Driver) -> None:
    parents, changes, why = BAD[name]
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    plan = make_plan([row(0, None, len(PROMPT), drafts=[5, 6, 7])], None, driver.tables)
    plan.draft_parents = u32(parents)
    for column, values in changes.items():
        setattr(plan, column, values if isinstance(values, bytes) else u32(values))
    with pytest.raises(BadPlan, match=rf"^draft_parents: .*{why}"):
        driver.execute(driver.numbering.stamp(plan))


def test_a_tree_behind_more_than_one_token_is_refused(driver: Driver) -> None:
    driver.begin()
    with pytest.raises(BadPlan, match=r"^draft_parents: .* more than one token before them"):
        driver.step([row(0, PROMPT, 0, [0, 1], start={}, drafts=[5, 6], parents=[0, 0])])


def test_a_path_that_is_too_long_is_refused(driver: Driver) -> None:
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start={})])
    limits = driver.engine.slots.limits
    driver.engine.slots.limits = replace(limits, max_step_drafts=80)
    drafts = [9, *range(70, 135)]
    with pytest.raises(
        BadPlan, match=r"^draft_parents: a path of 65 drafts in a tree, and the longest is 64"
    ):
        driver.step([row(0, None, len(PROMPT), drafts=drafts, parents=[0, 0, *range(2, 66)])])
    driver.engine.slots.limits = limits


def test_parents_without_drafts_and_trees_for_a_worker_that_knows_chains_are_refused(driver: Driver) -> None:
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    plan = make_plan([row(0, None, len(PROMPT))], None, driver.tables)
    plan.draft_parents = u32([0])
    with pytest.raises(BadPlan, match=r"^draft"):
        driver.execute(driver.numbering.stamp(plan))
    driver.begin()
    limits = driver.engine.slots.limits
    driver.engine.slots.limits = replace(limits, draft_trees=False)
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    with pytest.raises(BadPlan, match=r"^draft_parents: this worker verifies no drafts but chains"):
        driver.step([row(0, None, len(PROMPT), drafts=[5, 6], parents=[0, 0])])
    driver.engine.slots.limits = limits


@pytest.mark.parametrize(
    ("implementation", "cache"), [("generic", "auto"), ("", "auto"), ("", "int8"), ("", "fp8_e5m2")]
)
def test_the_cpu_engine_verifies_trees_as_it_decodes(
    implementation: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if implementation:
        monkeypatch.setenv("PENSTOCK_CPU_ISA", implementation)
    try:
        driver = Driver(tiny.MODEL, torch.bfloat16, cache_dtype=cache)
    except UnusableModel:
        pytest.skip("there is no CPU engine here")
    if driver.engine.native is None:
        pytest.skip("there is no CPU engine here")
    for seed, name in enumerate(("greedy with alternatives", "temperature", "penalties")):
        expected = one_by_one(driver, SAMPLINGS[name])
        found = with_trees(driver, SAMPLINGS[name], expected.tokens, exact=seed == 0, seed=seed, most=14)
        assert found.first(TOKENS) == expected.first(TOKENS)


def test_a_path_is_accepted_as_far_as_it_agrees() -> None:
    # Two rows: a tree of which the second child of the second child is right, and a chain whose first draft is wrong.
    sampled_S = torch.tensor([7, 1, 8, 2, 9, 3, 4, 5])
    fed_S = torch.tensor([0, 6, 7, 3, 8, 0, 2, 4])
    parents_S = torch.tensor([-1, 0, 0, 2, 2, -1, 5, 6])
    kept = [True, False, True, False, True, True, False, False]
    assert ops.accept_draft_trees(sampled_S, fed_S, parents_S, 2).tolist() == kept


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHI_SQUARE_UNMASKED)
def test_trees_do_not_change_what_is_drawn(name: str) -> None:
    """100,000 draws before two drafts of one token: behind either, and where neither was right, the target's distribution."""
    vocabulary, rows, rounds = 12, 500, 200
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(3))
    settings = CHI_SQUARE[name]
    history = {"history": [1, 2, 3], "outputs": 1} if "repetition" in settings else {}
    first, second = 4, 10
    counts = np.zeros((3, vocabulary))
    expected = None
    slots, positions = np.repeat(np.arange(rows), 3), np.tile([7, 8, 8], rows)
    parents = (np.array([-1, 0, 0]) + 3 * np.arange(rows)[:, None]).reshape(-1)
    parents[::3] = -1
    previous_S = torch.zeros(3 * rows, dtype=torch.int64)
    for at in range(rounds):
        made = sampler(
            *({"seed": at * rows + seed, **settings, **history} for seed in range(rows)),
            vocabulary=vocabulary,
        )
        made._logprobs_SV = torch.empty((3 * rows, vocabulary))
        drafts = Drafts(np.full(rows, 3), torch.tensor([first, second, 0]).repeat(rows), parents)
        logits_SV = logits.repeat(rows, 1)
        if expected is None:
            scores_SV, _ = made.process(logits_SV, slots, positions, previous_S, None, drafts)
            expected = scores_SV[:3].double().softmax(-1).numpy()
        found = made.sample(logits_SV, slots, positions, previous_S, None, drafts)
        assert found.verified is not None and found.verified.kept_S is not None
        tokens = found.tokens_S.view(rows, 3).numpy()
        kept = found.verified.kept_S.view(rows, 3).numpy()
        assert kept[:, 0].all()
        assert (kept[:, 1] == (tokens[:, 0] == first)).all() and (
            kept[:, 2] == (tokens[:, 0] == second)
        ).all()
        assert (found.verified.accepted_R.numpy() == kept[:, 1:].any(1)).all()
        last = np.where(kept[:, 1], tokens[:, 1], np.where(kept[:, 2], tokens[:, 2], tokens[:, 0]))
        assert (found.verified.last_tokens_R.numpy() == last).all()
        counts[0] += np.bincount(tokens[:, 0], minlength=vocabulary)
        for place in (1, 2):
            counts[place] += np.bincount(tokens[kept[:, place], place], minlength=vocabulary)
    assert expected is not None and counts[1:].sum() > 2000
    for seen, wanted in zip(counts, expected, strict=True):
        possible = wanted > 0
        assert (seen[~possible] == 0).all()
        wanted = wanted[possible] * seen.sum()
        if seen.sum():
            # Of 11 degrees of freedom one in a million is above 49.
            assert float(((seen[possible] - wanted) ** 2 / wanted).sum()) < 49


def test_penalties_count_the_path_and_no_other_draft() -> None:
    made = sampler({"repetition": 1.5, "history": [1, 2], "outputs": 0})
    made._logprobs_SV = torch.empty((4, VOCABULARY))
    logits_SV = torch.zeros(4, VOCABULARY)
    for place, token in enumerate([11, 30, 12, 13]):
        logits_SV[place, token] = 5.0
    # Behind the first token 10 or 11, and 12 behind 11.
    drafts = Drafts(np.array([4]), torch.tensor([10, 11, 12, 0]), np.array([-1, 0, 0, 2]))
    places, before = drafts.before(np.arange(4))
    pairs = sorted(zip(places.tolist(), drafts.drafts_S[torch.from_numpy(before)].tolist(), strict=True))
    assert pairs == [(1, 10), (2, 11), (3, 11), (3, 12)]
    found = made.sample(
        logits_SV,
        np.zeros(4, np.int64),
        np.array([4, 5, 5, 6]),
        torch.zeros(4, dtype=torch.int64),
        None,
        drafts,
    )
    assert found.verified is not None
    assert found.verified.accepted_R.tolist() == [2] and found.verified.last_tokens_R.tolist() == [13]
    counted = made._output_RV[made.count_rows[0]].nonzero().flatten().tolist()
    assert counted == [11, 12, 13]
