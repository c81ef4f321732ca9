"""Whose recurrent state each token of a step advances, and where it is copied to on the way. Made once per step on the host."""

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64
from penstock.engine.device_copies import to_device
from penstock.engine.plan import Plan
from penstock.engine.state_places import StatePlaces

# (place, place of the copy) of copies that are made together.
Copies = list[tuple[int, int]]


def make_state_metadata(
    plan: Plan, rows_P: I64, singles: int, states: StatePlaces, exact: bool, device: torch.device
) -> ops.StateMetadata:
    """Of a plan whose rows are computed in these pieces, by their rows in the plan (P,). The first `singles` feed a token each; those
    of one row come in the order of its tokens.
    """

    def on_device(numbers: list[int] | I64) -> Tensor:
        return to_device(np.asarray(numbers, np.int64), device)

    def copies(made: Copies) -> tuple[Tensor | None, Tensor | None]:
        if not made:
            return None, None
        saved, saves = zip(*made, strict=True)
        return on_device(list(saved)), on_device(list(saves))

    saves: dict[int, list[tuple[int, int]]] = {}
    for row, tokens, place in states.saves(plan).tolist():
        saves.setdefault(row, []).append((tokens, place))
    places_R = states.of_slots[plan.slots]
    runs: list[ops.Run] = []
    begin = singles
    for row in rows_P[singles:].tolist():
        place, end = int(places_R[row]), begin + int(plan.counts[row])
        cut = begin
        for tokens, save in saves.get(row, ()):
            runs.append(ops.Run(cut, begin + tokens, place, save))
            cut = begin + tokens
        if cut < end:
            runs.append(ops.Run(cut, end, place))
        begin = end

    def made_behind(rows: I64, tokens: int) -> Copies:
        """Copies that are due when these rows have fed so many tokens."""
        here = rows.tolist() if saves else ()
        return [
            (int(places_R[row]), to) for row in here for after, to in saves.get(row, ()) if after == tokens
        ]

    rows_S = rows_P[:singles]
    metadata = ops.StateMetadata(on_device(places_R[rows_S]), runs, exact=exact)
    turns_S = _turns(rows_S) if len(plan.drafts) else np.zeros(singles, np.int64)
    if not turns_S.any():
        metadata.saved_C, metadata.saves_C = copies(made_behind(rows_S, 1))
        return metadata
    metadata.turns = []
    for turn in range(int(turns_S.max()) + 1):
        at = np.flatnonzero(turns_S == turn)
        made = copies(made_behind(rows_S[at], turn + 1))
        metadata.turns.append(ops.Turn(on_device(at), on_device(places_R[rows_S[at]]), *made))
    return metadata


def _turns(rows_S: I64) -> I64:
    """Of each of these the number of those before it that are equal."""
    order = np.argsort(rows_S, kind="stable")
    firsts = np.flatnonzero(np.diff(rows_S[order], prepend=-1))
    counts = np.diff(np.append(firsts, len(rows_S)))
    turns_S = np.empty(len(rows_S), np.int64)
    turns_S[order] = np.arange(len(rows_S)) - np.repeat(firsts, counts)
    return turns_S
