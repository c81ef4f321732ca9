"""Attention to a window and to entries, and how entries are made, against loops in double precision over whole sequences."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels import attention, compressed_keys

SIZE, HEADS, WINDOW, RATE = 6, 3, 5, 4
# A token behind 31, one that begins a sequence, one behind 2, and two pieces of a prompt, of which the second is cut in two.
CONTEXTS, COUNTS = [31, 0, 2, 9, 0], [1, 1, 1, 7, 14]
SNAPSHOT = 7


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sequences(numbers: int, seed: int) -> list[Tensor]:
    """(tokens, numbers) of each sequence up to the end of the step."""
    totals = (context + count for context, count in zip(CONTEXTS, COUNTS, strict=True))
    return [random(total, numbers, seed=seed + at) for at, total in enumerate(totals)]


def of_step(whole: list[Tensor]) -> Tensor:
    return torch.cat([x[len(x) - count :] for x, count in zip(whole, COUNTS, strict=True)])


def state(whole: list[Tensor], kept: int) -> Tensor:
    """(places, kept, C) of the sequences before the step, beside places of snapshots; NaN where a sequence has not been."""
    state_PUC = torch.full((SNAPSHOT + 1, kept, whole[0].shape[1]), torch.nan)
    for place, (x, context) in enumerate(zip(whole, CONTEXTS, strict=True)):
        held = min(context, kept)
        state_PUC[place] = 0
        state_PUC[place, kept - held :] = x[context - held : context]
    return state_PUC


def metadata() -> ops.StateMetadata:
    return ops.StateMetadata(
        torch.tensor([0, 1, 2]),
        [ops.Run(3, 10, 3), ops.Run(10, 16, 4, SNAPSHOT), ops.Run(16, 24, 4)],
    )


@pytest.mark.parametrize("kept", [0, 3, 20])
def test_tokens_come_behind_what_their_states_hold(kept: int) -> None:
    whole = sequences(2, 10)
    state_PUC, states = state(whole, kept), metadata()
    past = ops.with_past(of_step(whole), state_PUC, states)
    padded = [torch.cat((torch.zeros(kept, 2), x)) for x in whole]
    for place in range(3):
        assert torch.equal(past.singles_SWC[place], padded[place][-kept - 1 :])
    assert torch.equal(past.runs[0], padded[3][9:])
    assert torch.equal(past.runs[1], padded[4][: kept + 6])
    assert torch.equal(past.runs[2], padded[4][6:])
    for place, x in enumerate(padded):
        assert torch.equal(state_PUC[place], x[len(x) - kept :])
    assert torch.equal(state_PUC[SNAPSHOT], padded[4][6 : 6 + kept])


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("overlaps", [False, True])
def test_entries_are_made_of_the_tokens_of_their_windows(
    overlaps: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    reads = RATE * (1 + overlaps)
    whole = sequences(4, 20)
    past = ops.with_past(of_step(whole), state(whole, reads - 1), metadata())
    # Tokens 3, 7 and so on finish entries: the first of the single ones, two of a run behind 9 tokens, and of one that is cut
    # behind 6 one before the cut and two behind it.
    finished = [(0, 7), (3, 2), (3, 3), (4, 0), (4, 1), (4, 2)]
    starts = [torch.tensor(at) for at in ([0], [2, 6], [3], [1, 5])]
    none = torch.zeros(6, dtype=torch.int64)
    made = ops.CompressionMetadata(ops.AttentionMetadata(), starts, none, none, none > 0)
    windows = list(ops.finished_windows(past, made))
    assert [at for some, _ in windows for at in range(some.start, some.stop)] == list(range(6))
    windows_MVC = torch.cat([some_MVC for _, some_MVC in windows])
    for window_VC, (sequence, entry) in zip(windows_MVC, finished, strict=True):
        last = (entry + 1) * RATE
        held = whole[sequence][max(last - reads, 0) : last]
        assert torch.equal(window_VC[reads - len(held) :], held)


@pytest.mark.parametrize("exact", [False, True])
def test_a_pool_weighs_each_number_by_its_own_gates(exact: bool) -> None:
    kv, gate, bias = random(3, 5, SIZE), random(3, 5, SIZE, seed=1), random(5, SIZE, seed=2)
    unseen = torch.zeros(3, 5, dtype=torch.bool)
    unseen[1, :2] = True
    made = ops.pool(kv, gate, bias, unseen, exact)
    for entry in range(3):
        begin = 2 if entry == 1 else 0
        for number in range(SIZE):
            shares = (gate[entry, begin:, number] + bias[begin:, number]).double().softmax(0)
            wanted = float((shares * kv[entry, begin:, number]).sum())
            assert float(made[entry, number]) == pytest.approx(wanted, abs=1e-6)


def rows_of(place: int, entries: int) -> list[int]:
    return [10 * place + entry for entry in range(entries)]


def groups(keys: int) -> ops.AttentionMetadata:
    """Every query sees the entries whose tokens are all before it or its own."""
    zero = 59
    singles, chunks = [], []
    for place in range(3):
        seen = (CONTEXTS[place] + 1) // RATE
        singles.append(rows_of(place, seen) + [zero] * (keys - seen))
    seen_S1 = torch.tensor([(context + 1) // RATE for context in CONTEXTS[:3]]).unsqueeze(1)
    mask_SL = torch.where(torch.arange(keys) < seen_S1, 0.0, -torch.inf)
    few = ops.FewGroup(0, 3, keys, torch.tensor(singles).flatten(), mask_SL.view(3, 1, 1, keys))
    for run, first in zip(metadata().runs, (9, 0, 6), strict=True):
        seen_Q1 = (torch.arange(first, first + run.end - run.begin) + 1).unsqueeze(1) // RATE
        mask_QL = torch.where(torch.arange(keys) < seen_Q1, 0.0, -torch.inf)
        rows = torch.tensor(rows_of(run.place, keys))
        chunks.append(
            ops.ChunkGroup(
                run.begin, run.end, 1, run.end - run.begin, keys, rows, mask_QL[None, None], False, None, None
            )
        )
    return ops.AttentionMetadata(few=[few], chunks=chunks)


@pytest.mark.parametrize("at_once", [1, 60, 1 << 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [0, 2])
def test_queries_attend_to_their_window_to_entries_and_to_a_sink(
    most: int, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`most`: entries that are chosen; 0: all."""
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(compressed_keys, "SCORES_AT_ONCE", at_once)
    whole = [x.to(dtype) for x in sequences(SIZE, 30)]
    entries = random(60, SIZE + 2, seed=3).to(dtype)
    entries[59] = 0
    queries, sinks = random(24, HEADS, SIZE, seed=4).to(dtype), random(HEADS, seed=5)
    near = ops.with_past(of_step(whole), state(whole, WINDOW - 1).to(dtype), metadata())
    steps = [
        (place, context + at)
        for place, (context, count) in enumerate(zip(CONTEXTS, COUNTS, strict=True))
        for at in range(count)
    ]
    step = groups(8)
    chosen: list[Tensor | None] | None = None
    if most:
        # Ends of what each query sees, or the first where it sees fewer.
        ends = torch.tensor([max((position + 1) // RATE, most) for _, position in steps])
        chosen_TA = torch.stack((ends - 2, ends - 1), 1)
        chosen = [chosen_TA[:3], *(chosen_TA[run.begin : run.end] for run in metadata().runs)]
    out = torch.empty(24, HEADS, SIZE, dtype=dtype)
    positions = torch.tensor([position for _, position in steps])
    ops.compressed_attention(queries, near, entries, step, positions, 0.4, sinks, out, chosen)
    for token, (place, position) in enumerate(steps):
        seen = (position + 1) // RATE
        first = max(seen - most, 0) if most else 0
        far = entries[rows_of(place, seen)[first:], :SIZE]
        keys = torch.cat((whole[place][max(position + 1 - WINDOW, 0) : position + 1], far)).double()
        for head in range(HEADS):
            scores = torch.cat((keys @ queries[token, head].double() * 0.4, sinks[head : head + 1].double()))
            wanted = scores.softmax(0)[:-1] @ keys
            torch.testing.assert_close(
                out[token, head].double(), wanted, atol=1e-5 if dtype == torch.float32 else 3e-2, rtol=1e-2
            )
