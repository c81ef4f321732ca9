"""Sampling against naive references, one row at a time in plain Python, and its statistics."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import choosers
import penstock_kernels as ops
from choosers import chooser
from penstock.engine.plan import Starts
from penstock.engine.slot_sampling import Sampled, SlotSampling
from penstock_kernels.cpu_engine import CpuProgram

__all__ = ["chooser"]
pytestmark = pytest.mark.usefixtures("chooser")

VOCABULARY = 97


def starts(*rows: dict[str, Any]) -> Starts:
    """Columns of these rows."""

    def f32(name: str, default: float) -> Any:
        return np.array([row.get(name, default) for row in rows], np.float32)

    histories = [row.get("history", []) for row in rows]
    biases = [row.get("bias", {}) for row in rows]
    ends = [row.get("ends", []) for row in rows]
    return Starts(
        seeds=np.array([row.get("seed", 0) for row in rows], np.uint64),
        temperatures=f32("temperature", 0),
        top_ks=np.array([row.get("top_k", 0) for row in rows], np.uint32),
        top_ps=f32("top_p", 1),
        typical_ps=f32("typical_p", 1),
        min_ps=f32("min_p", 0),
        repetition_penalties=f32("repetition", 1),
        frequency_penalties=f32("frequency", 0),
        presence_penalties=f32("presence", 0),
        top_tokens=np.array([row.get("top", 0) for row in rows], np.uint32),
        history_counts=np.array([len(h) for h in histories], np.uint32),
        history_outputs=np.array([row.get("outputs", 0) for row in rows], np.uint32),
        history=np.array([t for h in histories for t in h], np.uint32),
        bias_counts=np.array([len(b) for b in biases], np.uint32),
        bias_tokens=np.array([t for b in biases for t in b], np.uint32),
        biases=np.array([v for b in biases for v in b.values()], np.float32),
        first_ends=np.array([row.get("first_end", 0) for row in rows], np.uint32),
        end_counts=np.array([len(e) for e in ends], np.uint32),
        end_tokens=np.array([t for e in ends for t in e], np.uint32),
        watermark_deltas=f32("delta", 0),
        watermark_greens=np.array([row.get("greens", VOCABULARY // 2) for row in rows], np.uint32),
        encoder_counts=np.zeros(0, np.uint32),
        state_sources=np.zeros(0, np.uint32),
        adapters=np.zeros(0, np.uint32),
    )


def sampler(*rows: dict[str, Any], vocabulary: int = VOCABULARY, chooser: CpuProgram | None = None) -> Any:
    """A sampler whose slots 0, 1, ... have started so."""
    made = choosers.make(max(len(rows), 1), vocabulary, chooser)
    made.start(np.arange(len(rows)), starts(*rows))
    return made


def sample(made: SlotSampling, logits_SV: Tensor, slots: Any, positions: Any, previous: int = 0) -> Sampled:
    """One token for each row, all of which follow the same token."""
    return made.sample(logits_SV, slots, positions, torch.full((len(slots),), previous))


def draw(logits_SV: Tensor, rows: list[dict[str, Any]], position: int = 5) -> list[int]:
    """One token for each row."""
    made = sampler(*rows, vocabulary=logits_SV.shape[1])
    found = sample(made, logits_SV.clone(), np.arange(len(rows)), np.full(len(rows), position))
    return [int(t) for t in found.tokens_S]


def naive_kept(logits: list[float], row: dict[str, Any]) -> dict[int, float]:
    """Tokens and probabilities that may be drawn: the definitions, in double precision."""
    counts = list(range(len(logits)))
    history, outputs = row.get("history", []), row.get("outputs", 0)
    output = history[len(history) - outputs :]
    x = list(map(float, logits))
    for token, bias in row.get("bias", {}).items():
        x[token] += bias
    for token in set(history):
        x[token] = (
            x[token] / row.get("repetition", 1) if x[token] > 0 else x[token] * row.get("repetition", 1)
        )
    for token in set(output):
        x[token] -= output.count(token) * row.get("frequency", 0) + row.get("presence", 0)
    for token in row.get("ends", []) if row.get("first_end", 0) > 500 else []:
        x[token] = -math.inf
    x = [value / row["temperature"] for value in x]

    def distribution(kept: list[int]) -> dict[int, float]:
        largest = max(x[t] for t in kept)
        weights = {t: math.exp(x[t] - largest) for t in kept}
        total = sum(weights.values())
        return {t: w / total for t, w in weights.items()}

    kept = sorted((t for t in counts if x[t] > -math.inf), key=lambda t: -x[t])
    if row.get("top_k"):
        kept = kept[: row["top_k"]]
    if row.get("top_p", 1) < 1:
        p, mass = distribution(kept), 0.0
        short: list[int] = []
        for token in kept:
            if mass >= row["top_p"] and short:
                break
            short.append(token)
            mass += p[token]
        kept = short
    if row.get("min_p", 0) > 0:
        p = distribution(kept)
        kept = [t for t in kept if p[t] >= row["min_p"] * max(p.values())]
    if row.get("typical_p", 1) < 1:
        p = distribution(kept)
        entropy = -sum(q * math.log(q) for q in p.values() if q > 0)
        by_distance = sorted(kept, key=lambda t: abs(-math.log(p[t]) - entropy))
        mass, short = 0.0, []
        for token in by_distance:
            short.append(token)
            mass += p[token]
            if mass >= row["typical_p"]:
                break
        kept = short
    if row.get("delta"):
        green = ops.green_tokens(torch.tensor([0]), len(logits), row.get("greens", VOCABULARY // 2))[0]
        for token in kept:
            x[token] += row["delta"] * bool(green[token])
    return distribution(kept)


CASES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_k over the vocabulary": {"temperature": 1.0, "top_k": 5000},
    "top_p": {"temperature": 1.0, "top_p": 0.6},
    "top_p of nothing": {"temperature": 1.0, "top_p": 1e-9},
    "top_k and top_p": {"temperature": 1.3, "top_k": 9, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    "typical_p": {"temperature": 1.0, "typical_p": 0.5},
    "top_p and typical_p": {"temperature": 1.2, "top_p": 0.9, "typical_p": 0.7},
    "all": {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
    "repetition": {
        "temperature": 1.0,
        "top_k": 4,
        "repetition": 1.8,
        "history": list(range(60)),
        "outputs": 0,
    },
    "frequency": {"temperature": 1.0, "frequency": 0.4, "history": [3, 3, 3, 8, 9, 9], "outputs": 5},
    "presence": {"temperature": 1.0, "presence": 1.5, "history": [3, 3, 3, 8, 9, 9], "outputs": 2},
    "bias": {"temperature": 1.0, "bias": {4: 3.0, 5: -100.0, 6: -math.inf}},
    "bias and penalties": {
        "temperature": 1.0,
        "bias": {3: 4.0, 8: -3.0},
        "repetition": 1.7,
        "frequency": 0.4,
        "history": [3, 3, 8, 9],
        "outputs": 2,
    },
    "no end yet": {"temperature": 1.0, "ends": [2, 9], "first_end": 1000},
    "an end at last": {"temperature": 1.0, "ends": [2, 9], "first_end": 1},
    "watermark": {"temperature": 1.0, "delta": 2.0, "greens": 30},
    "watermark, temperature and truncation": {
        "temperature": 0.4,
        "top_k": 12,
        "top_p": 0.95,
        "delta": 2.0,
        "greens": 30,
    },
    "watermark and penalty": {
        "temperature": 1.0,
        "delta": 1.0,
        "frequency": 0.4,
        "history": [3, 3],
        "outputs": 2,
    },
}


@pytest.mark.few(10)
@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_naive_distribution(name: str) -> None:
    row = CASES[name]
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3)) * 2
    wanted = naive_kept(logits.tolist(), row)
    draws = 20_000
    rows = [{**row, "seed": seed} for seed in range(100)]
    counts = np.zeros(VOCABULARY)
    made = sampler(*rows)
    for position in range(1, draws // 100 + 1):
        slots = np.arange(100)
        if made.count_rows.max() >= 0 and position > 1:  # penalties must not see what was drawn before
            made.start(slots, starts(*rows))
        found = sample(made, logits.repeat(100, 1), slots, np.full(100, position))
        counts += np.bincount(found.tokens_S.numpy(), minlength=VOCABULARY)
    assert set(np.flatnonzero(counts)) <= set(wanted)
    # Chi-squared over what is likely enough to count; six standard deviations above its mean.
    expected = {t: draws * p for t, p in wanted.items() if draws * p >= 5}
    distance = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    freedom = max(len(expected) - 1, 1)
    assert distance < freedom + 6 * math.sqrt(2 * freedom) + 6


@pytest.mark.parametrize("name", CASES)
def test_a_draw_does_not_depend_on_batch_mates(name: str) -> None:
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(8)) * 3
    row = {**CASES[name], "seed": 99}
    others: list[dict[str, Any]] = [
        {"temperature": 2.0, "top_p": 0.999},
        {},
        {"temperature": 1.0, "top_k": 2000},
        {"top": 5},
        CASES["all"],
    ]
    alone = draw(logits[:1], [row])
    together = draw(torch.cat((logits[1:], logits[:1])), [*others, row])
    assert together[-1] == alone[0]


def test_ties_at_a_threshold_are_kept_whatever_the_batch() -> None:
    logits = torch.zeros(2, 3000)
    logits[1] = torch.arange(3000) * 1e-3
    row = {"temperature": 1.0, "top_k": 10, "seed": 4}
    alone = draw(logits[:1], [row])
    assert draw(logits, [row, {"temperature": 1.0, "top_p": 0.9999}])[0] == alone[0]


def test_the_same_key_gives_the_same_token_and_another_position_another() -> None:
    logits = torch.zeros(1, 5000)
    row = {"temperature": 1.0, "seed": 2**64 - 1}
    assert draw(logits, [row], 7) == draw(logits, [row], 7)
    assert len({draw(logits, [row], position)[0] for position in range(50)}) > 45
    assert len({draw(logits, [{**row, "seed": seed}])[0] for seed in range(50)}) > 45


def test_greedy_ignores_truncation_and_takes_the_lowest_of_ties() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [50, 20]] = 3.0
    assert draw(logits, [{"top_k": 1, "top_p": 0.1, "typical_p": 0.1, "min_p": 0.9}]) == [20]
    large = torch.zeros(1, 32000)
    large[0, [31999, 17000, 16999]] = 2.0
    assert draw(large, [{}]) == [16999]


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 50
    assert draw(logits, [{"temperature": 1e-30}] * 3) == logits.argmax(-1).tolist()


def test_log_probabilities_are_the_models_own() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(5))
    rows: list[dict[str, Any]] = [
        {"temperature": 0.3, "top_k": 2, "top": 7, "bias": {3: 50.0}},
        {"repetition": 1.9, "history": list(range(VOCABULARY)), "top": 3},
    ]
    found = sample(sampler(*rows), logits.clone(), np.arange(2), np.full(2, 9))
    own = logits.log_softmax(-1)
    assert int(found.tokens_S[0]) == 3
    for row in range(2):
        assert float(found.logprobs_S[row]) == pytest.approx(float(own[row, found.tokens_S[row]]), abs=1e-5)
        order = own[row].argsort(descending=True)[: rows[row]["top"]].tolist()
        assert found.top_tokens_SN is not None and found.top_logprobs_SN is not None
        assert found.top_tokens_SN[row, : len(order)].tolist() == order
        assert found.top_logprobs_SN[row, : len(order)].tolist() == pytest.approx(
            own[row, order].tolist(), abs=1e-5
        )


def test_alternatives_that_tie_come_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(1, VOCABULARY)
    found = sample(sampler({"top": 4}), logits, np.arange(1), np.zeros(1, np.int64))
    assert found.top_tokens_SN is not None and found.top_tokens_SN.tolist() == [[0, 1, 2, 3]]
    assert found.tokens_S.tolist() == [0]


def test_forced_and_forbidden_tokens() -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(2))
    best = int(logits.argmax())
    assert draw(logits, [{"bias": {best: -math.inf}}]) != [best]
    for temperature in (0.0, 1.0):
        assert draw(logits, [{"temperature": temperature, "bias": {11: math.inf}}]) == [11]
    forced = {
        draw(logits, [{"temperature": 1.0, "seed": s, "bias": {11: math.inf, 12: math.inf}}])[0]
        for s in range(40)
    }
    assert forced == {11, 12}
    everything = {token: -math.inf for token in range(VOCABULARY)}
    found = sample(
        sampler({"bias": everything}, {}), logits.repeat(2, 1), np.arange(2), np.zeros(2, np.int64)
    )
    assert found.possible_S is not None and found.possible_S.tolist() == [False, True]
    assert found.sound_S.tolist() == [True, True]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_are_told_by_row(broken: float) -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(6))
    clean = logits.clone()
    logits[1, 40] = broken
    rows = [{"temperature": 1.0, "top_p": 0.9}] * 3
    found = sample(sampler(*rows), logits, np.arange(3), np.full(3, 5))
    assert found.sound_S.tolist() == [True, False, True]
    expected = draw(clean, rows)
    assert [int(found.tokens_S[row]) for row in (0, 2)] == [expected[0], expected[2]]


def test_penalties_see_what_is_sampled_and_a_new_sequence_forgets_it() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, :4] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    row = {"presence": 10.0, "history": [9], "outputs": 0}
    made = sampler(row, row)
    slots = np.array([0])
    tokens = [int(sample(made, logits.clone(), slots, np.array([p])).tokens_S[0]) for p in range(4)]
    assert tokens == [0, 1, 2, 3]
    assert int(sample(made, logits.clone(), np.array([1]), np.array([0])).tokens_S[0]) == 0
    made.start(slots, starts(row))
    assert int(sample(made, logits.clone(), slots, np.array([0])).tokens_S[0]) == 0
    made.release(np.array([0, 1]))
    assert made.count_rows.max() == -1


def test_a_restart_with_history_continues_as_if_undisturbed() -> None:
    """What a recovered sequence is given: its tokens so far, outputs at the end."""
    logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(12))
    row: dict[str, Any] = {
        "temperature": 1.1,
        "seed": 77,
        "frequency": 0.9,
        "repetition": 1.2,
        "history": [5, 6],
        "outputs": 0,
    }
    made = sampler(row)
    tokens = []
    for step in range(8):
        tokens.append(
            int(
                sample(made, logits[step : step + 1].clone(), np.array([0]), np.array([2 + step])).tokens_S[0]
            )
        )
    again = sampler({**row, "history": [5, 6, *tokens[:5]], "outputs": 5})
    for step in range(5, 8):
        found = sample(again, logits[step : step + 1].clone(), np.array([0]), np.array([2 + step]))
        assert int(found.tokens_S[0]) == tokens[step]


def test_what_ends_a_sequence_is_not_sampled_before_its_position() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[:, [7, 8, 9]] = torch.tensor([9.0, 8.0, 7.0])
    rows: list[dict[str, Any]] = [
        {"ends": [7], "first_end": 12},
        {"ends": [8, 7], "first_end": 13, "temperature": 1e-3, "seed": 3},
        {},
    ]
    made = sampler(*rows)
    slots = np.arange(3)

    def tokens(position: int) -> list[int]:
        found = sample(made, logits.clone(), slots, np.full(3, position))
        # Whatever is held back, what is told is the model's own.
        own = logits.log_softmax(-1).gather(1, found.tokens_S.unsqueeze(1)).squeeze(1)
        assert found.logprobs_S.tolist() == pytest.approx(own.tolist(), abs=1e-5)
        return [int(token) for token in found.tokens_S]

    assert [tokens(position) for position in (10, 11, 12, 13)] == [[8, 9, 7]] * 2 + [[7, 9, 7], [7, 7, 7]]
    made.start(slots[:2], starts({}, {"ends": [7], "first_end": 99}))
    assert tokens(5) == [7, 8, 7]
    forced = sampler({"ends": [11], "first_end": 9, "bias": {11: math.inf}}, {})
    found = sample(forced, logits[:2].clone(), slots[:2], np.full(2, 8))
    assert found.possible_S is not None and found.possible_S.tolist() == [False, True]


def z_score(green: int, tokens: int, share: float) -> float:
    """By how many standard deviations more tokens are green than chance makes (equation 3 of the paper)."""
    return (green - share * tokens) / math.sqrt(tokens * share * (1 - share))


@pytest.mark.parametrize(("greens", "delta"), [(VOCABULARY // 2, 2.0), (VOCABULARY // 4, 2.0), (70, 4.0)])
def test_a_watermark_is_found_where_it_is_and_nowhere_else(greens: int, delta: float) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(4))
    rows: list[dict[str, Any]] = [{"temperature": 1.0, "seed": seed} for seed in range(16)]
    marked = [{**row, "delta": delta, "greens": greens} for row in rows]

    def score(rows: list[dict[str, Any]]) -> float:
        made, slots = sampler(*rows), np.arange(len(rows))
        previous, found = torch.arange(len(rows)), 0
        for position in range(40):
            tokens = made.sample(
                logits.repeat(len(rows), 1), slots, np.full(len(rows), position), previous
            ).tokens_S
            green = ops.green_tokens(previous, VOCABULARY, greens)
            found += int(green.gather(1, tokens.unsqueeze(1)).sum())
            previous = tokens
        return z_score(found, 40 * len(rows), greens / VOCABULARY)

    assert score(marked) > 10
    assert abs(score(rows)) < 4


def test_a_watermark_does_not_depend_on_batch_mates_and_leaves_them_alone() -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(9)).repeat(4, 1)
    rows: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 1, "delta": 2.0, "greens": 20},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "seed": 1, "delta": 9.0, "greens": 60},
        {"delta": 2.0, "greens": 20},
    ]
    previous = torch.tensor([5, 6, 7, 8])
    together = sampler(*rows).sample(logits.clone(), np.arange(4), np.full(4, 3), previous)
    for place, row in enumerate(rows):
        alone = sampler(row).sample(
            logits[:1].clone(), np.arange(1), np.full(1, 3), previous[place : place + 1]
        )
        assert int(together.tokens_S[place]) == int(alone.tokens_S[0])
        own = logits[0].log_softmax(-1)[alone.tokens_S[0]]
        assert float(together.logprobs_S[place]) == pytest.approx(float(own), abs=1e-5)
