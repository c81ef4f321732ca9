"""Attention to a window of the last tokens and, beside it, to entries of the cache that stand for several tokens each.

DeepSeek-AI, "DeepSeek-V4", 2026, section 2.3 (compressed sparse and heavily compressed attention). What a window and an
unfinished entry need of the tokens before is a state of the sequence, as recurrent layers have one; finished entries are in
the paged cache. A key is its value, too, and all query heads read one.

Letters beside those of the package: P places of states, U tokens that a state holds, C numbers of a token in it, W = U + 1
tokens of a window, M entries that a step finishes, V tokens of which an entry is made, R numbers of a row of entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_kernels.attention import (
    SCORES_AT_ONCE,
    AttentionMetadata,
    ChunkGroup,
    FewGroup,
    attend,
    gathered_at_once,
    hidden_keys,
    left_out,
    only_taken,
    scored_in,
)
from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.recurrence import StateMetadata, chunks
from penstock_kernels.score_modifiers import ScoreModifiers


@dataclass(slots=True)
class WithPast:
    """A step's tokens behind the U before them, as `StateMetadata` orders them."""

    singles_SWC: Tensor  # of each single token
    runs: list[Tensor]  # of each run, (U + its tokens, C)


@dataclass(slots=True)
class CompressionMetadata:
    """How a step's tokens attend to the entries of one rate, and which entries they finish."""

    # A key is an entry, and its cache row is one of entries. A chunk group is a run of `StateMetadata`.
    attention: AttentionMetadata
    # Of each finished entry, the first of its V rows among those of `WithPast`: singles seen as (S W, C), then each run.
    starts: list[Tensor]
    rows_M: Tensor  # int64: the row that each is written to
    positions_M: Tensor  # int64: the first of the tokens that it stands for, at which it is rotated
    is_first_M: Tensor  # bool: no entry is before it
    # cos and sin (M, 1, D) at these positions, of each of the model's rotary tables.
    ropes: Sequence[tuple[Tensor, Tensor]] = ()


def with_past(x_TC: Tensor, state_PUC: Tensor, states: StateMetadata) -> WithPast:
    """Puts the tokens (T, C) behind what their states hold, in the states' dtype; the states then hold the last U of both."""
    kept = state_PUC.shape[1]
    x_TC = x_TC.to(state_PUC.dtype)
    singles = len(states.places_S)
    singles_SWC = x_TC.new_empty(singles, kept + 1, x_TC.shape[1])
    for turn in states.in_turns():
        past_SUC = state_PUC.index_select(0, turn.places_S)
        window_SWC = torch.cat((past_SUC, x_TC[turn.tokens].unsqueeze(1)), 1)
        singles_SWC[turn.tokens] = window_SWC
        state_PUC.index_copy_(0, turn.places_S, window_SWC[:, 1:])
        turn.copy(state_PUC)
    runs = []
    for run in states.runs:
        run_LC = torch.cat((state_PUC[run.place], x_TC[run.begin : run.end]))
        state_PUC[run.place] = run_LC[len(run_LC) - kept :]
        if run.save is not None:
            state_PUC[run.save] = state_PUC[run.place]
        runs.append(run_LC)
    return WithPast(singles_SWC, runs)


def finished_windows(past: WithPast, metadata: CompressionMetadata) -> Iterator[tuple[slice, Tensor]]:
    """Of the entries that the step finishes, some at a time, which these are of the M, and the tokens that they are made of:
    (m, V, C). `past` is of a state of U = V - 1.
    """
    size, numbers = past.singles_SWC.shape[1:]
    device = past.singles_SWC.device
    within_V, begin = torch.arange(size, device=device), 0
    for rows, starts_M in zip((past.singles_SWC, *past.runs), metadata.starts, strict=True):
        for some in chunks(slice(0, len(starts_M)), max(gathered_at_once(device) // (size * numbers), 1)):
            places = (starts_M[some].unsqueeze(1) + within_V).view(-1)
            windows_MVC = rows.view(-1, numbers).index_select(0, places).view(-1, size, numbers)
            yield slice(begin + some.start, begin + some.stop), windows_MVC
        begin += len(starts_M)


def pool(kv_MVD: Tensor, gate_MVD: Tensor, bias_VD: Tensor, unseen_MV: Tensor | None, exact: bool) -> Tensor:
    """Each number's sum over V tokens, weighted by softmax(gate + bias) over them: (M, V, D) to (M, D), in fp32.

    bias (V, D) in fp32; `unseen` (M, V) bool: tokens that have no part in it. Summed in fp32 or, where `exact`, in float64.
    """
    long = torch.float64 if exact else torch.float32
    scores_MVD = gate_MVD.to(long) + bias_VD
    if unseen_MV is not None:
        scores_MVD = scores_MVD.masked_fill_(unseen_MV.unsqueeze(-1), -torch.inf)
    return (scores_MVD.softmax(1).mul_(kv_MVD)).sum(1).float()


def compressed_attention(
    q_THD: Tensor,
    near: WithPast,
    entries_NR: Tensor,
    metadata: AttentionMetadata,
    positions_T: Tensor,
    scale: float,
    sinks_H: Tensor,
    out_THD: Tensor,
    chosen: list[Tensor | None] | None = None,
) -> None:
    """softmax(scale q k^T, sink) k of every token over the last W tokens and the entries that `metadata` shows it.

    q (T, H, D) and out (T, H, D), contiguous, in one dtype; near: keys of C = D numbers; entries: the cache as rows of R
    numbers, the first D of which are an entry, this step's among them; positions (T,) int64; sinks (H,) fp32. `chosen`: the
    entries that are attended to (`choose_keys`); None: all. Exact where `paged_attention` is.
    """
    q_THD = q_THD.to(torch.float64 if metadata.is_exact(q_THD) else q_THD.dtype)
    modifiers = ScoreModifiers(sinks_H=sinks_H)
    few = len(metadata.few)
    taken = chosen or [None] * (few + len(metadata.chunks))
    for group, taken_SA in zip(metadata.few, taken[:few], strict=True):
        here = slice(group.begin, group.end)
        left = group if taken_SA is None else only_taken(group, taken_SA)
        near_SWD = near.singles_SWC[here]
        _singles(q_THD[here], near_SWD, entries_NR, left, positions_T[here], scale, modifiers, out_THD[here])
    for run, near_LD, taken_SA in zip(metadata.chunks, near.runs, taken[few:], strict=True):
        here = slice(run.begin, run.end)
        first = positions_T[here][0]
        _run(q_THD[here], near_LD, entries_NR, run, first, scale, modifiers, out_THD[here], taken_SA)


def _singles(
    q_SHD: Tensor,
    near_SWD: Tensor,
    entries_NR: Tensor,
    group: FewGroup,
    positions_S: Tensor,
    scale: float,
    modifiers: ScoreModifiers,
    out_SHD: Tensor,
) -> None:
    sequences, _, size = q_SHD.shape
    window, entries, long = near_SWD.shape[1], group.keys, scored_in(q_SHD)
    # The state of a sequence that has just begun holds what was never there.
    before_SW = torch.arange(window, device=q_SHD.device) < (window - 1 - positions_S).unsqueeze(1)
    hidden_S11W = _hidden(before_SW, long).view(sequences, 1, 1, window)
    at_once = max(gathered_at_once(q_SHD.device) // ((window + entries) * size), 1)
    for some in chunks(slice(0, sequences), at_once):
        rows = group.slot_mapping_SL[some.start * entries : some.stop * entries]
        far_SLD = entries_NR[:, :size].index_select(0, rows).view(some.stop - some.start, entries, size)
        keys_SLD = torch.cat((near_SWD[some], far_SLD), 1)
        hidden = _beside(hidden_S11W[some], hidden_keys(group, some, slice(0, 1)), entries)
        q_S1HD = q_SHD[some].unsqueeze(1).to(long) * scale
        values_SLD = keys_SLD.to(q_SHD.dtype)
        made_S1HD = attend(q_S1HD, keys_SLD.to(long).transpose(1, 2), values_SLD, hidden, modifiers)
        out_SHD[some] = made_S1HD.squeeze(1).to(out_SHD.dtype)


def _run(
    q_QHD: Tensor,
    near_LD: Tensor,
    entries_NR: Tensor,
    group: ChunkGroup,
    first_position: Tensor,
    scale: float,
    modifiers: ScoreModifiers,
    out_QHD: Tensor,
    taken_QA: Tensor | None,
) -> None:
    queries, heads, size = q_QHD.shape
    window, entries, long = len(near_LD) - queries + 1, group.keys, scored_in(q_QHD)
    far_LD = entries_NR[:, :size].index_select(0, group.slot_mapping_SL)
    # A piece of the queries reads as many near keys, and a window.
    at_once = min(max(SCORES_AT_ONCE // (heads * (entries + 2 * window)), 1), max(window, 32))
    for some in chunks(slice(0, queries), at_once):
        count = some.stop - some.start
        keys_1LD = torch.cat((near_LD[some.start : some.stop + window - 1], far_LD)).unsqueeze(0)
        numbers_Y = torch.arange(count + window - 1, device=q_QHD.device)
        behind_QY = numbers_Y - numbers_Y[:count].unsqueeze(1)
        unseen_QY = (behind_QY < 0) | (behind_QY >= window)
        unseen_QY |= numbers_Y < window - 1 - some.start - first_position
        hidden_entries = hidden_keys(group, slice(0, 1), some)
        if taken_QA is not None:
            left_1QL = left_out(taken_QA[some].unsqueeze(0), entries, long).unsqueeze(1)
            hidden_entries = left_1QL if hidden_entries is None else left_1QL + hidden_entries
        hidden = _beside(_hidden(unseen_QY, long)[None, None], hidden_entries, entries)
        q_1QHD = q_QHD[some].unsqueeze(0).to(long) * scale
        values_1LD = keys_1LD.to(q_QHD.dtype)
        made_1QHD = attend(q_1QHD, keys_1LD.to(long).transpose(1, 2), values_1LD, hidden, modifiers)
        out_QHD[some] = made_1QHD.squeeze(0).to(out_QHD.dtype)


def _hidden(unseen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, -torch.inf)


def _beside(near: Tensor, far: Tensor | None, entries: int) -> Tensor:
    """(s, 1, q, L) that is added to the scores of near keys and of entries."""
    if far is None:
        return F.pad(near, (0, entries))
    return torch.cat((near, far.to(near.dtype).expand(*near.shape[:-1], entries)), -1)
