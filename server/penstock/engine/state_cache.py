"""The memory of recurrent states: of each recurrent layer tensors with a place for every slot, and then for every snapshot.

Made by the engine, written and read by the layers. What lies in a place is decided by plans: a sequence begins with zeros or
with a snapshot, and its state is copied to snapshots where a plan says so.
"""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.attention_metadata import to_device
from penstock.engine.plan import I64, NO_SNAPSHOT, START, U32, Plan
from penstock.models.recurrent_config import StateShape


class StateCache:
    """Tensors (places, ...): places 0 .. slots - 1 are the slots' own, and snapshot i is at slots + i."""

    def __init__(
        self,
        shapes: list[tuple[StateShape, ...]],
        slots: int,
        snapshots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`shapes`: of each of this rank's layers, recurrent or not."""
        self.slots, self.device = slots, device
        places = slots + snapshots
        self.bytes = places * state_bytes(shapes, dtype)
        self.layers: list[tuple[Tensor, ...]] = [
            tuple(
                torch.zeros((places, *state.shape), dtype=state.dtype or dtype, device=device)
                for state in layer
            )
            for layer in shapes
        ]

    def start(self, slots: I64, sources: U32) -> None:
        """Puts zeros, or a snapshot, where these slots' states begin."""
        empty = sources == NO_SNAPSHOT
        emptied = to_device(slots[empty], self.device)
        copied = to_device(slots[~empty], self.device)
        snapshots = to_device(sources[~empty].astype(np.int64) + self.slots, self.device)
        for layer in self.layers:
            for state_P in layer:
                if len(emptied):
                    state_P.index_fill_(0, emptied, 0)
                if len(copied):
                    state_P.index_copy_(0, copied, state_P.index_select(0, snapshots))


def state_bytes(shapes: list[tuple[StateShape, ...]], dtype: torch.dtype) -> int:
    """What a sequence's state takes on a rank."""
    return sum(state.bytes(dtype) for layer in shapes for state in layer)


def starting(plan: Plan) -> tuple[I64, U32]:
    """The slots whose sequences begin in a plan of a model with states, and with which snapshots."""
    assert plan.starts is not None, "SlotTable.apply has seen to it"
    return plan.slots[(plan.flags & START) != 0], plan.starts.state_sources
