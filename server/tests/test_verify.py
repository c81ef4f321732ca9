"""Verify rows: with drafts, good or bad, a sequence gets the tokens and numbers that it gets one by one."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import checkpoints
import penstock_kernels as ops
from choosers import SETS, engine
from client import DEVICE, make_plan, row, sampled, u32
from driver import Driver
from penstock import tiny
from penstock.engine.draft_trees import DraftTrees, draft_trees
from penstock.engine.engine import NOTHING_LEFT
from penstock.engine.plan import OF_WORDS, MaskColumns, Plan
from penstock.engine.slot_sampling import Drafts, Masks
from penstock.errors import BadPlan
from penstock.models.config import Window
from penstock.proto import penstock_pb2 as pb
from test_sampling import VOCABULARY, sampler
from windowed import windowed

PROMPT = [5, 6, 7, 8, 9, 10, 11]
TOKENS = 60

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy with alternatives": {"top_tokens": 3},
    "temperature": {"temperatures": 0.9, "seeds": 7, "top_tokens": 1},
    "top-k": {"temperatures": 1.2, "seeds": 8, "top_ks": 12},
    "top-p": {"temperatures": 1.2, "seeds": 9, "top_ps": 0.7},
    "typical-p": {"temperatures": 1.1, "seeds": 10, "typical_ps": 0.6},
    "min-p": {"temperatures": 1.1, "seeds": 11, "min_ps": 0.05},
    "penalties": {
        "temperatures": 1.0,
        "seeds": 12,
        "repetition_penalties": 1.3,
        "frequency_penalties": 0.5,
        "presence_penalties": 0.4,
        "history": PROMPT,
    },
    "greedy penalty": {"repetition_penalties": 1.2, "history": PROMPT},
    "bias, ends and watermark": {
        "bias": {3: 2.0, 9: -3.0},
        "first_ends": len(PROMPT) + 20,
        "ends": [3, 4],
        "watermark_deltas": 1.5,
        "watermark_greens": 90,
    },
}


class Text:
    """What a sequence was given: tokens, log probabilities and alternatives, as bytes."""

    def __init__(self, result: pb.StepResult) -> None:
        self.tokens, self.logprobs = sampled(result), result.logprobs
        self.tops, self.top_logprobs = result.top_tokens, result.top_logprobs

    def add(self, result: pb.StepResult) -> None:
        self.tokens += sampled(result)
        self.logprobs += result.logprobs
        self.tops += result.top_tokens
        self.top_logprobs += result.top_logprobs

    def first(self, count: int) -> tuple[list[int], bytes, bytes, bytes]:
        top = len(self.tops) // len(self.tokens)
        return (
            self.tokens[:count],
            self.logprobs[: 4 * count],
            self.tops[: top * count],
            self.top_logprobs[: top * count],
        )


def one_by_one(driver: Driver, start: dict[str, Any], tokens: int = TOKENS) -> Text:
    driver.begin()
    text = Text(driver.step([row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start=start)]))
    for position in range(len(PROMPT), len(PROMPT) + tokens - 1):
        text.add(driver.step([row(0, None, position)]))
    return text


def accepted(result: pb.StepResult) -> list[int]:
    return [int(count) for count in np.frombuffer(result.accepted, "<u4")]


@dataclass(frozen=True)
class Guess:
    """Drafts of a row, and how many of them are right. `parents`: of a tree; none: they are a chain."""

    drafts: list[int]
    right: int
    parents: list[int] = field(default_factory=list)

    @property
    def trees(self) -> DraftTrees | None:
        """What a worker makes of the parents."""
        return draft_trees(np.array([len(self.parents)]), np.array(self.parents, np.int64))

    @property
    def deepest(self) -> int:
        """How many of the drafts can be right."""
        return len(self.drafts) if self.trees is None else int(self.trees.deepest_R[0])


def chain(rng: Random, expected: list[int]) -> Guess:
    """Of what is expected, half the time with one that is wrong."""
    drafts = expected[: rng.randrange(6)]
    right = len(drafts)
    if drafts and rng.random() < 0.5:
        right = rng.randrange(len(drafts))
        drafts[right] = (drafts[right] + 1) % 199
    return Guess(drafts, right)


def with_drafts(
    driver: Driver,
    start: dict[str, Any],
    expected: list[int],
    exact: bool,
    seed: int = 0,
    guess: Callable[[Random, list[int]], Guess] = chain,
) -> Text:
    """The same with drafts of which some are right. `exact`: plans know each position; else they have its bound."""
    rng = Random(seed)
    driver.begin()
    text = Text(driver.step([row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start=start)]))
    bound = len(PROMPT)
    while len(text.tokens) < len(expected):
        known = len(text.tokens)
        guessed = guess(rng, expected[known:])
        position = len(PROMPT) + known - 1 if exact else bound
        result = driver.step([row(0, None, position, drafts=guessed.drafts, parents=guessed.parents or None)])
        assert accepted(result) == ([guessed.right] if guessed.drafts else [])
        assert len(sampled(result)) == guessed.right + 1
        bound = position + 1 + guessed.deepest
        text.add(result)
    return text


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config()))


@pytest.mark.parametrize("exact", [True, False], ids=["positions", "bounds"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_text_is_the_same_with_drafts_to_the_last_bit(name: str, exact: bool, driver: Driver) -> None:
    if DEVICE != "cpu":
        pytest.skip("sums depend on the batch there")
    expected = one_by_one(driver, SAMPLINGS[name])
    found = with_drafts(driver, SAMPLINGS[name], expected.tokens, exact, seed=len(name))
    assert found.first(TOKENS) == expected.first(TOKENS)


@pytest.mark.skipif(DEVICE != "cpu", reason="to the last bit, and sums depend on the batch there")
@pytest.mark.parametrize(
    "windows", [(Window(20),), (None, Window(16)), (Window(24, chunked=True), None)], ids=str
)
def test_a_window_sees_no_rejected_draft(
    windows: tuple[Window | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = windowed(windows, tmp_path, monkeypatch)
    expected = one_by_one(driver, {})
    assert with_drafts(driver, {}, expected.tokens, exact=False).first(TOKENS) == expected.first(TOKENS)


def test_rows_beside_each_other_verify_apart(driver: Driver) -> None:
    """One with drafts, one without, one whose prompt ends in drafts, one that only feeds a chunk."""
    expected = one_by_one(driver, {}).tokens
    sampled_text = one_by_one(driver, SAMPLINGS["penalties"]).tokens
    driver.begin()
    driver.step(
        [
            row(0, PROMPT, 0, [0, 1], start={}),
            row(1, PROMPT, 0, [2, 3], start=SAMPLINGS["penalties"]),
        ]
    )
    at = len(PROMPT)
    result = driver.step(
        [
            row(3, PROMPT, 0, [6], start={}, sample=False),
            row(0, None, at, drafts=[*expected[1:3], expected[3] + 1, 1]),
            row(2, PROMPT, 0, [4, 5], start={}, drafts=expected[:4]),
            row(1, None, at),
        ]
    )
    assert accepted(result) == [2, 4]
    assert sampled(result) == [*expected[1:4], *expected[:5], sampled_text[1]]
    following = driver.step(
        [row(0, None, at + 5), row(1, None, at + 1, drafts=sampled_text[2:5]), row(2, None, at + 4)]
    )
    assert sampled(following) == [expected[4], *sampled_text[2:6], expected[5]]


def test_what_a_rejected_draft_computed_is_no_error(driver: Driver) -> None:
    """Only what follows accepted drafts has to be numbers."""
    expected = one_by_one(driver, {}).tokens
    compute = driver.engine.model.logits
    for spoiled, fails in ((1, True), (3, False)):
        driver.begin()
        driver.step([row(0, PROMPT, 0, [0, 1], start={})])

        def spoil(hidden_SE: Any, out_SV: Any, at: int = spoiled) -> Any:
            logits_SV = compute(hidden_SE, out_SV)
            logits_SV[at] = torch.nan
            return logits_SV

        driver.engine.model.logits = spoil  # type: ignore[method-assign]
        drafts = [expected[1], (expected[2] + 1) % 199, expected[3]]
        result = driver.step([row(0, None, len(PROMPT), drafts=drafts)])
        driver.engine.model.logits = compute  # type: ignore[method-assign]
        assert accepted(result) == [1]
        assert [error.row for error in result.errors] == ([0] if fails else [])


BAD = {
    "more drafts than tokens": ([row(0, [3], 7, drafts=[1])], {"drafts": [2]}, "drafts"),
    "too many entries": ([row(0, None, 7, drafts=[1])], {"drafts": [1, 1]}, "drafts"),
    "a draft over the vocabulary": ([row(0, None, 7, drafts=[199])], {}, "tokens"),
    "too many drafts in a step": ([row(0, None, 7, drafts=[1] * 33)], {}, "drafts"),
    "no room": ([row(0, None, 7, drafts=[1] * 30)], {}, "new_pages"),
    "a row that does not sample": ([row(0, None, 7, drafts=[1], sample=False)], {}, "drafts"),
    "log probabilities of a prompt": (
        [row(0, [3, 4], 7, targets=[4, 5], drafts=[])],
        {"drafts": [1]},
        "drafts",
    ),
    "behind the bound": ([row(0, None, 8, drafts=[1])], {}, "positions"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_verify_row_is_refused_by_field(name: str, driver: Driver) -> None:
    rows, changes, field = BAD[name]
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0], start={})])
    plan = make_plan(rows, None, driver.tables)
    for column, values in changes.items():
        setattr(plan, column, u32(values))
    with pytest.raises(BadPlan, match=f"^{field}"):
        driver.execute(driver.numbering.stamp(plan))


def test_a_bound_holds_until_it_is_used_up(driver: Driver) -> None:
    """Two rows behind a verify row may have its bound; none may be beyond it."""
    expected = one_by_one(driver, {}).tokens
    driver.begin()
    at = len(PROMPT)
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    driver.step([row(0, None, at, drafts=[(expected[1] + 1) % 199] * 4)])
    assert sampled(driver.step([row(0, None, at + 5)])) == [expected[2]]
    assert sampled(driver.step([row(0, None, at + 2)])) == [expected[3]]
    with pytest.raises(BadPlan, match=r"^positions"):
        driver.step([row(0, None, at + 9)])


FORCED = [17, 8, 99]


def forced_one_by_one(driver: Driver, start: dict[str, Any]) -> Text:
    """A masked token, three of which there is only one each, a masked one, and one more."""
    driver.begin()
    allowed = list(range(50, 120))
    prompt = row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start=start, masked=True)
    text = Text(driver.step([prompt], masks=[allowed]))
    for at, mask in enumerate([*([token] for token in FORCED), allowed]):
        text.add(driver.step([row(0, None, len(PROMPT) + at, masked=True)], masks=[mask]))
    text.add(driver.step([row(0, None, len(PROMPT) + 4)]))
    return text


def forced_at_once(driver: Driver, start: dict[str, Any]) -> Text:
    """The same, beside a row whose drafts are guesses, and one that is masked and has none."""
    driver.begin()
    allowed = list(range(50, 120))
    prompts = [row(slot, PROMPT, 0, [6 * slot + at for at in range(6)], start={}) for slot in (1, 2)]
    prompt = row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start=start, masked=True)
    result = driver.step([prompt], masks=[allowed])
    text = Text(result)
    driver.step(prompts)
    others = [row(1, None, len(PROMPT), drafts=[199 - 1, 5]), row(2, None, len(PROMPT), masked=True)]
    rows = [others[0], row(0, None, len(PROMPT), drafts=FORCED, masked=True), others[1]]
    result = driver.step(rows, masks=[*([token] for token in FORCED), allowed, [7]])
    guessed, forced = accepted(result)
    assert forced == len(FORCED) and guessed < 2
    tokens, logprobs = sampled(result), np.frombuffer(result.logprobs, "<f4")
    mine = slice(guessed + 1, guessed + 1 + len(FORCED) + 1)
    assert tokens[mine][:-1] == FORCED and tokens[-1] == 7
    text.tokens += tokens[mine]
    text.logprobs += logprobs[mine].tobytes()
    text.tops += result.top_tokens
    text.top_logprobs += result.top_logprobs
    text.add(driver.step([row(0, None, len(PROMPT) + 4)]))
    return text


@pytest.mark.skipif(DEVICE != "cpu", reason="to the last bit, and sums depend on the batch there")
@pytest.mark.parametrize("name", SAMPLINGS)
def test_what_a_grammar_forces_is_taken_as_it_is_and_told_as_if_it_were_sampled(
    name: str, driver: Driver
) -> None:
    expected = forced_one_by_one(driver, SAMPLINGS[name])
    found = forced_at_once(driver, SAMPLINGS[name])
    assert found.tokens == expected.tokens and expected.tokens[1:4] == FORCED
    assert found.first(6) == expected.first(6)


def test_where_no_mask_is_there_in_time_a_row_has_no_more_drafts_or_samples_nothing(driver: Driver) -> None:
    expected = one_by_one(driver, {}).tokens
    at = len(PROMPT)
    for known in range(len(FORCED) + 1):
        driver.begin()
        pages = ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
        driver.step([row(slot, PROMPT, 0, pages[slot], start={}) for slot in range(2)])
        rows = [row(0, None, at, drafts=FORCED, masked=True), row(1, None, at)]
        masks = [[token] for token in FORCED[:known]] + [[]] * (len(FORCED) + 1 - known)
        result = driver.step(rows, masks=masks)
        assert accepted(result) == [max(known - 1, 0)] and not result.errors
        assert known == 0 or sampled(result)[:-1] == FORCED[:known]
        assert sampled(result)[-1] == expected[1]
        # The next row goes on behind them, whatever its position was planned to be.
        if known:
            further = driver.step([row(0, None, at + len(FORCED) + 1), row(1, None, at + 1)])
            assert sampled(further)[1] == expected[2]
            driver.begin()
            before = [*PROMPT, expected[0], *FORCED[:known]]
            alone = driver.step([row(0, before, 0, pages[0], start={})])
            assert sampled(alone)[0] == sampled(further)[0]


def choices(at: int) -> list[int]:
    """What may be sampled at this place of a masked text: now and then one token."""
    return [30 + at] if at % 5 == 3 else list(range(at % 3, 199, 2 + at % 4))


@pytest.mark.skipif(DEVICE != "cpu", reason="to the last bit, and sums depend on the batch there")
@pytest.mark.parametrize("name", SAMPLINGS)
def test_guesses_under_masks_give_the_text_that_masks_give_one_by_one(name: str, driver: Driver) -> None:
    start, at, count = SAMPLINGS[name], len(PROMPT), 24
    driver.begin()
    prompt = row(0, PROMPT, 0, [0, 1, 2, 3, 4, 5], start=start, masked=True)
    expected = Text(driver.step([prompt], masks=[choices(0)]))
    for place in range(1, count):
        expected.add(driver.step([row(0, None, at + place - 1, masked=True)], masks=[choices(place)]))
    rng = np.random.default_rng(7)
    driver.begin()
    found = Text(driver.step([prompt], masks=[choices(0)]))
    verified = 0
    while (known := len(found.tokens)) < count:
        guesses = expected.tokens[known : min(known + int(rng.integers(1, 5)), count - 1)]
        masks = [choices(known + place) for place in range(len(guesses) + 1)]
        fate = int(rng.integers(4))
        if fate == 0 and guesses:
            wrong = int(rng.integers(len(guesses)))
            # Behind a draft that is not allowed nobody computes a mask.
            guesses[wrong] = next(token for token in range(199) if token not in choices(known + wrong))
            masks[wrong + 1 :] = [[]] * (len(guesses) - wrong)
        elif fate == 1 and guesses:
            guesses[0] = choices(known)[-1]
        elif fate == 2 and guesses:
            late = int(rng.integers(1, len(guesses) + 1))
            masks[late:] = [[]] * (len(guesses) + 1 - late)
        result = driver.step([row(0, None, at + known - 1, drafts=guesses or None, masked=True)], masks=masks)
        verified += sum(accepted(result))
        found.add(result)
    assert verified > 4
    assert found.tokens == expected.tokens and found.first(count) == expected.first(count)


def test_drafts_are_accepted_as_far_as_they_agree() -> None:
    sampled_S = torch.tensor([4, 5, 6, 7, 1, 2, 9])
    drafts_S = torch.tensor([4, 5, 0, 99, 8, 2, 99])
    # Four samples, one, and two: the first row's third draft is wrong, the last row's only one is right.
    firsts, counts = torch.tensor([0, 4, 5]), torch.tensor([4, 1, 2])
    assert ops.accept_drafts(sampled_S, drafts_S, firsts, counts, 4).tolist() == [2, 0, 1]
    late = torch.tensor([0, 5, 6, 99, 8, 0, 99])
    assert ops.accept_drafts(sampled_S, late, firsts, counts, 4).tolist() == [0, 0, 0]


CHI_SQUARE: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "typical-p": {"temperature": 1.0, "typical_p": 0.7},
    "penalties": {"temperature": 1.0, "repetition": 1.4, "frequency": 0.3, "presence": 0.2},
    # The draft as well as the sample behind it.
    "masks": {"temperature": 1.0, "top_k": 5, "allowed": [0, 2, 3, 4, 5, 7, 9, 11]},
}


# Of rows that are never masked: those with trees, or with drafts of a model.
CHI_SQUARE_UNMASKED = [name for name in CHI_SQUARE if name != "masks"]


@pytest.mark.few(7)
@pytest.mark.parametrize("chooser", ["torch", *SETS[:1]])
@pytest.mark.parametrize("name", CHI_SQUARE)
def test_drafts_do_not_change_what_is_drawn(name: str, chooser: str) -> None:
    """100,000 draws behind a draft: of those that are accepted as of those that are not, the target's distribution, as torch has it.
    Of the CPU engine by one instruction set: with the others it draws the same tokens (`test_draws`).
    """
    native = None if chooser == "torch" else engine(chooser)
    vocabulary, rows, rounds = 12, 500, 200
    logits = torch.randn(2, vocabulary, generator=torch.Generator().manual_seed(3))
    settings = dict(CHI_SQUARE[name])
    allowed = settings.pop("allowed", None)
    masks = None
    if allowed is not None:
        words_SW = np.full((2 * rows, 1), sum(1 << token for token in allowed), np.int32)
        masks = Masks(np.arange(2 * rows), words_SW)
    previous_S = torch.zeros(2 * rows, dtype=torch.int64)
    is_penalized = "repetition" in settings
    history = {"history": [1, 2, 3], "outputs": 1} if is_penalized else {}
    draft = 4
    counts = np.zeros((2, vocabulary))
    expected = None
    for at in range(rounds):
        asked = [{"seed": at * rows + seed, **settings, **history} for seed in range(rows)]
        made = sampler(*asked, vocabulary=vocabulary, chooser=native)
        made._logprobs_SV = torch.empty((2 * rows, vocabulary))
        slots, positions = np.repeat(np.arange(rows), 2), np.tile([7, 8], rows)
        drafts = Drafts(np.full(rows, 2), torch.full((2 * rows,), draft))
        logits_SV = logits.repeat(rows, 1)
        if expected is None:
            in_torch = sampler(*asked, vocabulary=vocabulary)
            scores_SV, _ = in_torch.process(logits_SV, slots, positions, previous_S, masks, drafts)
            expected = scores_SV[:2].double().softmax(-1).numpy()
        found = made.sample(logits_SV, slots, positions, previous_S, masks, drafts)
        assert found.verified is not None
        tokens = found.tokens_S.view(rows, 2).numpy()
        accepted_R = found.verified.accepted_R.numpy()
        assert (accepted_R == (tokens[:, 0] == draft)).all()
        counts[0] += np.bincount(tokens[:, 0], minlength=vocabulary)
        counts[1] += np.bincount(tokens[accepted_R == 1, 1], minlength=vocabulary)
    assert expected is not None and counts[1].sum() > 2000
    if allowed:
        assert all(set(np.flatnonzero(scores)) < set(allowed) for scores in expected)
    for seen, wanted in zip(counts, expected, strict=True):
        possible = wanted > 0
        assert (seen[~possible] == 0).all()
        wanted = wanted[possible] * seen.sum()
        # Of 11 degrees of freedom one in a million is above 49.
        assert float(((seen[possible] - wanted) ** 2 / wanted).sum()) < 49


def test_penalties_count_accepted_drafts_and_no_others() -> None:
    made = sampler({"repetition": 1.5, "history": [1, 2], "outputs": 0})
    made._logprobs_SV = torch.empty((4, VOCABULARY))
    logits_SV = torch.zeros(4, VOCABULARY)
    for place, token in enumerate([10, 11, 12, 13]):
        logits_SV[place, token] = 5.0
    drafts = Drafts(np.array([4]), torch.tensor([10, 11, 50, 0]))
    found = made.sample(
        logits_SV, np.zeros(4, np.int64), np.arange(4), torch.zeros(4, dtype=torch.int64), None, drafts
    )
    assert found.verified is not None
    assert found.verified.accepted_R.tolist() == [2] and found.verified.last_tokens_R.tolist() == [12]
    counted = made._output_RV[made.count_rows[0]].nonzero().flatten().tolist()
    assert counted == [10, 11, 12]


def test_the_cpu_engine_verifies_as_it_decodes() -> None:
    driver = Driver(tiny.MODEL, torch.bfloat16)
    if driver.engine.native is None:
        pytest.skip("there is no CPU engine here")
    for name in ("greedy with alternatives", "penalties"):
        expected = one_by_one(driver, SAMPLINGS[name])
        found = with_drafts(driver, SAMPLINGS[name], expected.tokens, exact=False)
        assert found.first(TOKENS) == expected.first(TOKENS)


class Beside:
    """Two engines of one model: the first takes as few calls for a step as it can, the second several for each. Every result is compared."""

    def __init__(self, make: Callable[[], Driver], threads: int = 1) -> None:
        self.drivers = [make(), make()]
        for driver in self.drivers:
            driver.engine._set_threads(threads)
        ours, theirs = (driver.engine for driver in self.drivers)
        theirs._repeats_of = lambda plan: None  # type: ignore[method-assign]
        self.verified = self.repeated = 0  # steps in one call, with drafts and without
        self.seen: list[int] = []  # drafts accepted, of each row that had some
        repeat = ours._repeat

        def count(plan: Plan, *given: Any) -> Any:
            self.verified += len(plan.drafts) > 0
            self.repeated += not len(plan.drafts)
            return repeat(plan, *given)

        ours._repeat = count  # type: ignore[method-assign, assignment]

    def step(self, rows: list[dict[str, Any]], **more: Any) -> pb.StepResult:
        results = [driver.step(rows, **more) for driver in self.drivers]
        for result in results:
            for name in ("prepare_ns", "forward_ns", "sample_ns"):
                result.ClearField(name)
        assert results[0] == results[1]
        ours, theirs = (driver.engine.last_sampled for driver in self.drivers)
        assert (ours == theirs).all()
        self.seen += accepted(results[0])
        return results[0]

    def go_on(
        self,
        starts: dict[int, dict[str, Any]],
        turns: int,
        guess: Callable[[Random, list[int]], Guess] = chain,
        seed: int = 5,
        masked: Container[int] = (),
        saved: int = 0,
    ) -> None:
        """So many steps of rows in these slots, with guesses in most; all in one call but for the first. Positions are known or bounds. `masked`:
        rows that are, by masks of every kind. `saved`: behind how many steps the first row's state is copied.
        """
        expected = {}
        for slot, start in starts.items():
            expected[slot] = one_by_one(self.drivers[1], start).tokens
        for driver in self.drivers:
            driver.begin()
        rng, texts, bounds = Random(seed), {}, {}
        for slot, start in starts.items():
            blocks = list(range(16 * slot, 16 * slot + 16))
            texts[slot] = sampled(self.step([row(slot, PROMPT, 0, blocks, start=start)]))
            bounds[slot] = len(PROMPT)
        for turn in range(turns):
            rows: list[dict[str, Any]] = []
            guesses = {}
            for slot, text in texts.items():
                guesses[slot] = one = guess(rng, expected[slot][len(text) :]) if turn % 5 else Guess([], 0)
                position = len(PROMPT) - 1 + len(text) if rng.random() < 0.5 else bounds[slot]
                bounds[slot] = position + 1 + one.deepest
                saves = [(1, 0)] if saved and turn % saved == saved - 1 and not rows else []
                rows.append(
                    row(
                        slot,
                        None,
                        position,
                        drafts=one.drafts,
                        parents=one.parents or None,
                        masked=slot in masked,
                        saves=saves,
                    )
                )
            before = self.verified, self.repeated
            of_rows = [masks_behind(rng, guesses[slot].drafts) for slot in starts if slot in masked]
            result = self.step(rows, masks=[mask for masks in of_rows for mask in masks] or None)
            wanted = any(one.drafts for one in guesses.values())
            now = self.verified - before[0], self.repeated - before[1]
            assert now == (turn > 0 and wanted, turn > 0 and not wanted), turn
            tokens, lengths = sampled(result), iter(accepted(result))
            for slot, text in texts.items():
                taken = (next(lengths) if guesses[slot].drafts else 0) + 1
                text += tokens[:taken]
                tokens = tokens[taken:]
            assert not tokens
        if not masked:
            for slot, text in texts.items():
                assert text[:TOKENS] == expected[slot][: len(text)]


def masks_behind(rng: Random, drafts: list[int]) -> list[list[int]]:
    """What may be sampled in place of each draft, and behind them: the draft alone, another token alone, some with the draft or perhaps without,
    or from one sample on nothing.
    """
    masks = []
    for draft in [*drafts, 7]:
        others = rng.sample(range(199), 20)
        masks.append(rng.choice([[draft], [draft], [*others, draft], others, others[:1]]))
    known = rng.randrange(len(masks) + 1) if rng.random() < 0.3 else len(masks)
    return masks[:known] + [[]] * (len(masks) - known)


def tiny_beside(threads: int) -> Beside:
    both = Beside(lambda: Driver(tiny.MODEL, torch.bfloat16, blocks=200), threads)
    if both.drivers[0].engine.native is None:
        pytest.skip("there is no CPU engine here")
    return both


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_with_drafts_in_one_call_give_what_several_calls_give(threads: int) -> None:
    """Rows beside each other, of every way to sample, masked and not."""
    both = tiny_beside(threads)
    for kinds in (
        ["greedy"],
        ["temperature"],
        ["greedy", "top-p", "greedy", "min-p"],
        ["greedy", "penalties", "greedy penalty"],
        ["greedy with alternatives", "top-k"],
        ["bias, ends and watermark"],
        ["penalties", "bias, ends and watermark", "temperature", "typical-p"],
    ):
        both.go_on({slot: SAMPLINGS[name] for slot, name in enumerate(kinds)}, 24, seed=len(kinds))
    assert both.verified > 80 and both.repeated > 20
    assert sum(both.seen) > 2 * both.verified and 0 in both.seen
    both.verified, both.seen = 0, []
    for kinds, masked in (
        (["greedy"], [0]),
        (["greedy", "greedy", "greedy"], [0, 2]),
        (["greedy", "top-p", "penalties"], [1]),
        (["penalties", "temperature", "greedy with alternatives"], [0, 1, 2]),
        (["bias, ends and watermark", "greedy penalty", "top-k"], [0, 2]),
    ):
        both.go_on({slot: SAMPLINGS[name] for slot, name in enumerate(kinds)}, 24, seed=9, masked=masked)
    assert sum(both.seen) > both.verified > 60 and 0 in both.seen


@pytest.mark.parametrize(
    ("only", "words", "drafts", "message"),
    [
        ([OF_WORDS], [0] * 128, 0, "a mask without a token"),
        ([OF_WORDS], [1] * 127, 0, "127 words, but 1 masks have 128 each"),
        ([OF_WORDS] * 2, [1] * 256, 0, "2 entries, but the masked rows sample 1 tokens"),
        ([4096], [], 0, "token 4096 of 4096"),
        ([5, OF_WORDS], [0] * 128, 1, "a mask without a token"),
        ([5], [], 1, "1 entries, but the masked rows sample 2 tokens"),
    ],
)
def test_masks_that_are_not_a_steps_are_refused_when_it_is_one_call(
    only: list[int], words: list[int], drafts: int, message: str
) -> None:
    driver = Driver(tiny.MODEL, torch.bfloat16)
    if driver.engine.native is None:
        pytest.skip("there is no CPU engine here")
    driver.step([row(0, PROMPT, 0, [0, 1], start={}, masked=True)], masks=[[5, 6]])
    driver.step([row(0, None, len(PROMPT), masked=True)], masks=[[5, 6]])
    plan = make_plan([row(0, None, len(PROMPT) + 1, drafts=[5] * drafts, masked=True)])
    launched = driver.engine.launch(driver.reader.read(driver.numbering.stamp(plan)))
    assert driver.engine.repeats is not None and driver.engine.awaits_masks(launched)
    with pytest.raises(BadPlan, match=message):
        driver.engine.choose(launched, MaskColumns(np.array(only, np.uint32), np.array(words, np.uint32)))


def test_a_row_in_one_call_that_nothing_is_left_for_fails() -> None:
    """What its bias forbids is everything."""
    both = tiny_beside(1)
    vocabulary = both.drivers[0].engine.limits.vocab_size
    forbidden = {"bias": {token: -np.inf for token in range(vocabulary)}, "temperatures": 1.0}
    starts = {0: {}, 1: forbidden}
    for slot, start in starts.items():
        both.step([row(slot, PROMPT, 0, list(range(8 * slot, 8 * slot + 8)), start=start)])
    for turn in range(3):
        at = len(PROMPT) + turn
        drafts = [[], [5, 6]] if turn == 2 else [[], []]
        rows = [row(slot, None, at, drafts=drafts[slot]) for slot in starts]
        result = both.step(rows)
        assert [(error.row, error.message) for error in result.errors] == [(1, NOTHING_LEFT)]
    assert both.verified == 1 and both.repeated == 1


def test_a_row_in_one_call_whose_draft_leads_to_no_numbers_fails_only_where_it_is_accepted() -> None:
    driver = Driver(tiny.MODEL, torch.bfloat16)
    native = driver.engine.native
    if native is None:
        pytest.skip("there is no CPU engine here")
    expected = one_by_one(driver, {}, 8).tokens
    run = native.run_decodes
    for spoiled, fails in ((1, True), (2, False)):
        driver.begin()
        driver.step([row(0, PROMPT, 0, [0, 1], start={})])
        driver.step([row(0, None, len(PROMPT))])

        def spoil(decodes: Any, tokens: int, draws: int, at: int = spoiled) -> None:
            run(decodes, tokens, draws)
            decodes.summary.totals_S[at] = np.nan

        native.run_decodes = spoil  # type: ignore[method-assign]
        drafts = [expected[2], (expected[3] + 1) % 199]
        result = driver.step([row(0, None, len(PROMPT) + 1, drafts=drafts)])
        native.run_decodes = run  # type: ignore[method-assign]
        assert accepted(result) == [1] and sampled(result) == expected[2:4]
        assert [error.row for error in result.errors] == ([0] if fails else [])
