"""The memory of recurrent states: of each recurrent layer arrays with a place for every slot, then for every snapshot, and then for
states in front of drafts.

Made by the engine, written and read by the layers. What lies in a place is decided by plans: a sequence begins with zeros or
with a snapshot, and its state is copied to snapshots where a plan says so. Which place is a slot's `state_places` knows.
"""

import numpy as np

from penstock.engine.arrays import Arrays
from penstock.engine.columns import I64, U32
from penstock.engine.plan import NO_SNAPSHOT, START, Plan
from penstock.engine.slots import SlotTable
from penstock.models.recurrent_config import StateShape
from penstock_kernels.program import Array


class StateCache:
    """Arrays (places, ...), numbered as in `StatePlaces`: snapshot i is at slots + i. Behind all is one that nobody reads."""

    def __init__(
        self,
        shapes: list[tuple[StateShape, ...]],
        slots: int,
        snapshots: int,
        drafts: int,
        arrays: Arrays,
    ) -> None:
        """`shapes`: of each of this rank's layers, recurrent or not."""
        self.slots, self._arrays = slots, arrays
        places = slots + snapshots + drafts
        self.spare_place = places
        self.bytes = places * state_bytes(shapes, arrays.itemsize)
        self.layers: list[tuple[Array, ...]] = [
            tuple(arrays.states(places + 1, *state.shape, is_fp32=state.is_fp32) for state in layer)
            for layer in shapes
        ]

    def start(self, places: I64, sources: U32) -> None:
        """Puts zeros, or a snapshot, where the states of slots that begin are."""
        empty = sources == NO_SNAPSHOT
        emptied = self._arrays.of(places[empty])
        copied = self._arrays.of(places[~empty])
        snapshots = self._arrays.of(sources[~empty].astype(np.int64) + self.slots)
        for layer in self.layers:
            for state_P in layer:
                if len(emptied):
                    state_P[emptied] = 0
                if len(copied):
                    state_P[copied] = state_P[snapshots]


def state_bytes(shapes: list[tuple[StateShape, ...]], itemsize: int) -> int:
    """What a sequence's state takes on a rank."""
    return sum(state.bytes(itemsize) for layer in shapes for state in layer)


def starting(plan: Plan, table: SlotTable) -> tuple[I64, U32]:
    """Where the states of sequences are that begin in a plan of a model with states, and with which snapshots."""
    assert plan.starts is not None and table.states is not None, "SlotTable.apply has seen to it"
    return table.states.of_slots[plan.slots[(plan.flags & START) != 0]], plan.starts.state_sources
