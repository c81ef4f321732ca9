"""Tokens that the CPU engine chooses, against those of the torch sampler: the same, whatever a row asks for and whatever else there is."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from choosers import SETS, engine
from penstock.engine.slot_sampling import Drafts, Masks
from test_sampling import sampler

pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")

POSITION = 40


def any_row(rng: random.Random, vocabulary: int) -> dict[str, Any]:
    """Parameters of which each is on in every third row or so."""

    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.35 else off

    tokens = rng.sample(range(vocabulary), 6)
    forced = maybe({tokens[0]: math.inf, tokens[1]: math.inf}, {}) if rng.random() < 0.2 else {}
    return {
        "seed": rng.getrandbits(64),
        "temperature": rng.choice([0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.7, 2.5]),
        "top_k": maybe(rng.choice([1, 2, 5, 50, rng.randrange(1, vocabulary + 10)]), 0),
        "top_p": maybe(rng.choice([1e-9, 0.1, 0.9, 0.95, 0.99, 0.9999]), 1.0),
        "min_p": maybe(rng.choice([1e-6, 0.02, 0.1, 0.5, 1.0]), 0.0),
        "typical_p": maybe(rng.choice([1e-6, 0.2, 0.7, 0.95, 0.9999]), 1.0),
        "repetition": maybe(rng.uniform(0.6, 2.0), 1.0),
        "frequency": maybe(rng.uniform(-1, 1), 0.0),
        "presence": maybe(rng.uniform(-1, 1), 0.0),
        "bias": maybe({token: rng.uniform(-5, 5) for token in tokens} | {tokens[2]: -math.inf}, {}) | forced,
        "ends": tokens[3:],
        "first_end": maybe(POSITION + 100, 0),
        "delta": maybe(rng.uniform(0.5, 4), 0.0),
        "greens": rng.randrange(1, vocabulary),
        "history": [rng.randrange(vocabulary) for _ in range(POSITION)],
        "outputs": rng.randrange(1, POSITION),
        "mask": maybe(rng.choice([0.01, 0.7]), 0.0),
    }


def some_logits(rows: int, vocabulary: int, seed: int) -> Tensor:
    """Flat ones, peaks as of a trained model, many ties, and large numbers."""
    logits_SV = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2
    logits_SV[1::5] *= 3
    logits_SV[2::5, 17] += 15
    logits_SV[3::5] = logits_SV[3::5].round()
    logits_SV[4::5] *= 30
    return logits_SV


def masks_of(rows: list[dict[str, Any]], vocabulary: int, lasts: list[int]) -> Masks:
    """Of the rows that have some, of which the sample at `lasts` is masked."""
    random_bits = np.random.default_rng(len(rows))
    masked = [place for place, row in enumerate(rows) if row["mask"]]
    bits = np.zeros((len(masked), -(-vocabulary // 32) * 32), np.uint8)
    for number, place in enumerate(masked):
        bits[number, :vocabulary] = random_bits.random(vocabulary) < rows[place]["mask"]
        bits[number, [5, *rows[place]["bias"]]] = 1
    words = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return Masks(np.array([lasts[place] for place in masked], np.int64), words)


def both(
    name: str, rows: list[dict[str, Any]], logits_SV: Tensor, counts: list[int], threads: int = 2
) -> tuple[Any, Any, Tensor]:
    """Samples of each row, `counts` of them, by torch and by the engine, and the counts that penalties are made of."""
    vocabulary, slots = logits_SV.shape[1], np.repeat(np.arange(len(rows)), counts)
    offsets = np.concatenate([np.arange(count) for count in counts])
    drafts = None
    if max(counts) > 1:
        fed = torch.randint(0, min(vocabulary, 9), (len(slots),), generator=torch.Generator().manual_seed(2))
        drafts = Drafts(np.array(counts), fed)
    masks = masks_of(rows, vocabulary, (np.cumsum(counts) - 1).tolist())
    previous_S = torch.arange(len(slots)) % vocabulary
    found, seen = [], []
    for made in (None, engine(name, threads)):
        one: Any = sampler(*rows, vocabulary=vocabulary, chooser=made)
        one._logprobs_SV = torch.empty(logits_SV.shape)
        asked = (slots, POSITION + offsets, previous_S, masks, drafts)
        found.append(one.sample(logits_SV.clone(), *asked))
        seen.append(torch.as_tensor(one._output_RV))
    assert torch.equal(*seen)
    # In fp32, with AVX2, torch's of 32,003 tokens are off by 3e-5.
    exact_SV = logits_SV.double().log_softmax(-1)
    found[0].logprobs_S = exact_SV.gather(1, found[0].tokens_S.unsqueeze(1)).squeeze(1).float()
    return found[0], found[1], seen[0]


def check(wanted: Any, got: Any, rows: list[dict[str, Any]], slots: Any) -> None:
    differing = (wanted.tokens_S != got.tokens_S).nonzero().flatten().tolist()
    assert not differing, [(place, rows[slots[place]]) for place in differing]
    assert (wanted.possible_S is None) == (got.possible_S is None)
    if wanted.possible_S is not None:
        assert torch.equal(wanted.possible_S, got.possible_S)
    torch.testing.assert_close(wanted.logprobs_S, got.logprobs_S, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("vocabulary", [97, 4099, 32003])
@pytest.mark.parametrize("name", SETS)
def test_every_row_gets_the_token_that_torch_draws(name: str, vocabulary: int) -> None:
    for seed in range(6 if vocabulary < 5000 else 2):
        rng = random.Random(seed * 7 + vocabulary)
        rows = [any_row(rng, vocabulary) for _ in range(60)]
        logits_SV = some_logits(len(rows), vocabulary, seed)
        wanted, got, _ = both(name, rows, logits_SV, [1] * len(rows))
        check(wanted, got, rows, np.arange(len(rows)))
        assert len(set(got.tokens_S.tolist())) > 20


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("vocabulary", [96, 97, 4099])
def test_a_mask_that_forbids_nothing_moves_no_draw(name: str, vocabulary: int) -> None:
    rng = random.Random(vocabulary)
    rows = [any_row(rng, vocabulary) for _ in range(60)]
    logits_SV = some_logits(len(rows), vocabulary, 7)
    without, under = (
        both(name, [row | {"mask": mask} for row in rows], logits_SV, [1] * 60) for mask in (0.0, 1.0)
    )
    for unmasked, masked in zip(without[:2], under[:2], strict=True):
        assert torch.equal(unmasked.tokens_S, masked.tokens_S)
        assert torch.equal(unmasked.logprobs_S, masked.logprobs_S)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("repetition", [1e-38, 3.4e38])
def test_no_penalty_brings_a_token_past_its_mask(name: str, repetition: float) -> None:
    vocabulary = 97
    rng = random.Random(3)
    plain = {"bias": {}, "first_end": 0, "delta": 0.0, "frequency": 0.0, "presence": 0.0, "mask": 0.3}
    plain |= {"history": list(range(vocabulary)), "outputs": 1, "repetition": repetition}
    rows = [any_row(rng, vocabulary) | plain for _ in range(24)]
    for sign in (1, -1):
        logits_SV = sign * some_logits(len(rows), vocabulary, 1).abs()
        wanted, got, _ = both(name, rows, logits_SV, [1] * len(rows))
        masks = masks_of(rows, vocabulary, list(range(len(rows))))
        for found in (wanted, got):
            words = masks.words_MW[np.arange(len(rows)), found.tokens_S.numpy() // 32]
            assert (words >> (found.tokens_S.numpy() % 32) & 1).all()


@pytest.mark.parametrize("name", SETS)
def test_what_is_forbidden_stays_so_behind_penalties(name: str) -> None:
    vocabulary, rng = 97, random.Random(4)
    plain: dict[str, Any] = {"first_end": 0, "delta": 0.0, "frequency": 0.0, "presence": 0.0}
    plain |= {"repetition": 1.2, "outputs": 1}
    plain |= {
        "history": list(range(vocabulary)),
        "bias": dict.fromkeys(range(vocabulary), -math.inf),
        "mask": 0.0,
    }
    rows = [any_row(rng, vocabulary) | plain for _ in range(12)]
    for row in rows[::2]:
        row["bias"] = {token: bias for token, bias in row["bias"].items() if token != 6}
    places = np.arange(len(rows))
    masks = masks_of(rows, vocabulary, places.tolist())
    for made in (None, engine(name, 2)):
        one: Any = sampler(*rows, vocabulary=vocabulary, chooser=made)
        asked = (places, np.full(len(rows), POSITION), torch.arange(len(rows)), masks, None)
        found = one.sample(some_logits(len(rows), vocabulary, 1), *asked)
        assert found.possible_S.tolist() == [True, False] * 6
        assert found.tokens_S[::2].tolist() == [6] * 6


@pytest.mark.parametrize("name", SETS)
def test_samples_behind_drafts_count_them_as_torch_does(name: str) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        rows = [any_row(rng, 199) for _ in range(24)]
        counts = [rng.choice([1, 2, 5, 9, 33]) for _ in rows]
        slots = np.repeat(np.arange(len(rows)), counts)
        wanted, got, _ = both(name, rows, some_logits(len(slots), 199, seed), counts)
        check(wanted, got, rows, slots)
        assert torch.equal(wanted.verified.accepted_R, got.verified.accepted_R)
        assert torch.equal(wanted.verified.last_tokens_R, got.verified.last_tokens_R)


@pytest.mark.parametrize("name", SETS)
def test_a_token_depends_neither_on_other_rows_nor_on_threads(name: str) -> None:
    rng = random.Random(5)
    rows = [any_row(rng, 4099) for _ in range(30)]
    logits_SV = some_logits(len(rows), 4099, 9)
    for row in rows:
        row["mask"] = 0.0
    together, previous = [], torch.arange(len(rows))
    for threads in (1, 3):
        one = sampler(*rows, vocabulary=4099, chooser=engine(name, threads))
        together.append(one.sample(logits_SV, np.arange(30), np.full(30, POSITION), previous).tokens_S)
    assert torch.equal(*together)
    for place in range(len(rows)):
        at = slice(place, place + 1)
        asked = (np.zeros(1, np.int64), np.full(1, POSITION), previous[at])
        alone = sampler(rows[place], vocabulary=4099, chooser=engine(name)).sample(logits_SV[at], *asked)
        assert int(alone.tokens_S[0]) == int(together[0][place]), rows[place]


@pytest.mark.parametrize("name", SETS)
def test_ties_with_the_last_that_is_kept_are_kept(name: str) -> None:
    """All tokens tie, so truncation keeps all of them."""
    for truncation in ({"top_k": 3}, {"top_p": 0.01}, {"min_p": 1.0}, {"typical_p": 0.01}):
        rows = [{"temperature": 1.0, "seed": seed, **truncation} for seed in range(300)]
        one = sampler(*rows, vocabulary=199, chooser=engine(name))
        asked = (np.arange(300), np.full(300, 1), torch.zeros(300, dtype=torch.int64))
        found = one.sample(torch.zeros(300, 199), *asked)
        assert len(set(found.tokens_S.tolist())) > 130, truncation


@pytest.mark.parametrize("name", SETS)
def test_what_is_no_number_gets_a_token_of_the_vocabulary_and_is_told(name: str) -> None:
    rng = random.Random(6)
    rows = [any_row(rng, 199) for _ in range(30)]
    logits_SV = some_logits(len(rows), 199, 1)
    for place, broken in enumerate((math.nan, math.inf, -math.inf)):
        logits_SV[place::4] = broken if place < 2 else logits_SV[place::4]
        logits_SV[place::4, 11 * place] = broken
    one = sampler(*rows, vocabulary=199, chooser=engine(name))
    asked = (np.arange(30), np.full(30, POSITION), torch.zeros(30, dtype=torch.int64))
    found = one.sample(logits_SV, *asked)
    assert ((found.tokens_S >= 0) & (found.tokens_S < 199)).all()
    assert not found.sound_S.view(-1)[0::4].any() and found.sound_S[3::4].all()


def test_rows_for_which_nothing_is_left_are_told() -> None:
    everything = {token: -math.inf for token in range(50)}
    rows: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 1.0, "bias": everything},
        {"bias": everything},
        {"ends": list(range(50)), "first_end": POSITION + 1},
    ]
    for row in rows:
        row["mask"] = 0.0
    for name in SETS:
        wanted, got, _ = both(name, rows, some_logits(4, 50, 1), [1] * 4)
        assert got.possible_S.tolist() == wanted.possible_S.tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", SETS)
def test_draws_of_what_is_not_there_are_refused(name: str) -> None:
    made, logits_SV = engine(name), torch.zeros(1, 64)
    nothing = np.zeros(0, np.int64)
    rows = np.zeros(1, ops.DRAW_ROW)
    rows["temperature"], rows["mask"], rows["typical_p"], rows["top_p"], rows["top_k"] = 1.0, -1, 1.0, 1.0, 64

    def draws(**changes: Any) -> ops.Draws:
        changed = rows.copy()
        for field in ("biases", "ends", "before", "mask"):
            if field in changes:
                changed[field] = changes[field]
        words = np.zeros((1, 1), np.int32)
        token = np.array([64], np.int64)
        return ops.Draws(changed, words, token, np.zeros(1, np.float32), token, token)

    tokens, possible = made.draw(logits_SV, draws())
    assert int(tokens[0]) == 0 and bool(possible[0]) and not len(nothing)
    for field in ("biases", "ends", "before"):
        with pytest.raises(RuntimeError, match="a token that there are no logits of"):
            made.draw(logits_SV, draws(**{field: 1}))
    with pytest.raises(RuntimeError, match="masks of fewer bits"):
        made.draw(logits_SV, draws(mask=0))
    with pytest.raises(RuntimeError, match="more drafts before a sample"):
        made.draw(logits_SV, draws(before=5000))


def test_a_sampler_is_told_of_min_p_as_a_distance() -> None:
    one = sampler({}, {}, vocabulary=50)
    assert one.furthest.tolist() == [math.inf, math.inf]
    assert sampler({"min_p": 1.0}, {"min_p": 0.5}, {}).furthest.tolist() == pytest.approx(
        [0.0, math.log(2), math.inf]
    )
