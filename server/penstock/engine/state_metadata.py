"""Whose recurrent state each token of a step advances, and where it is copied to on the way. Made once per step on the host."""

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64
from penstock.engine.plan import Plan


def make_state_metadata(
    plan: Plan, order: I64, singles: int, slots: int, exact: bool, device: torch.device
) -> ops.StateMetadata:
    """Of a plan whose rows are computed in this `order`, the first `singles` of which feed one token each. Snapshot i is at
    place `slots` + i.
    """

    def on_device(numbers: list[int] | I64) -> Tensor:
        return torch.from_numpy(np.asarray(numbers, np.int64)).to(device)

    saves: dict[int, list[tuple[int, int]]] = {}
    for row, tokens, snapshot in plan.saves.tolist():
        saves.setdefault(row, []).append((tokens, slots + snapshot))
    runs: list[ops.Run] = []
    saved: list[int] = []
    to: list[int] = []
    for row in order[:singles].tolist() if saves else ():
        for _, place in saves.get(row, ()):
            saved.append(int(plan.slots[row]))
            to.append(place)
    begin = singles
    for row in order[singles:].tolist():
        place, end = int(plan.slots[row]), begin + int(plan.counts[row])
        cut = begin
        for tokens, save in saves.get(row, ()):
            runs.append(ops.Run(cut, begin + tokens, place, save))
            cut = begin + tokens
        if cut < end:
            runs.append(ops.Run(cut, end, place))
        begin = end
    return ops.StateMetadata(
        places_S=on_device(plan.slots[order[:singles]]),
        runs=runs,
        saved_C=on_device(saved) if saved else None,
        saves_C=on_device(to) if saved else None,
        exact=exact,
    )
