"""Where the recurrent state of each slot is, and the states behind the drafts of verify rows.

A state cannot be taken back to before a draft that turns out to be wrong. So a row with drafts leaves a copy of its slot's state in
front of each of them, in places that only drafts have. When it is known how many were accepted, the copy in front of the first that was
not becomes the slot's state, where it is; no number is moved. Asked by `SlotTable`, which says what plans do to slots. Knows
nothing of tensors. Must not import torch.
"""

import numpy as np

from penstock.engine.columns import I64, U32
from penstock.engine.plan import Plan
from penstock.errors import BadPlan


class StatePlaces:
    """Places 0 .. slots - 1 and `drafts` behind those of the snapshots are for slots and drafts, in any roles."""

    def __init__(self, slots: int, snapshots: int, drafts: int) -> None:
        self.first_snapshot = slots
        self._first_draft, self._drafts = slots + snapshots, drafts
        self.of_slots: I64 = np.zeros(slots, np.int64)
        self.clear()

    def clear(self) -> None:
        """Every slot has the place of its number."""
        self.of_slots[:] = np.arange(len(self.of_slots))
        self._free = list(range(self._first_draft, self._first_draft + self._drafts))
        # Of slots whose last row had drafts, while nobody has said how many were accepted: the place of the state in front of each.
        self._before: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Drafts for which there are places."""
        return len(self._free)

    @property
    def are_unsettled(self) -> bool:
        """Whether of some slot's drafts nobody has said how many were accepted."""
        return bool(self._before)

    def forget(self, slots: I64 | U32) -> None:
        """The states of these slots are nobody's: they are released, or start anew."""
        for slot in slots.tolist() if self._before else ():
            self._free += self._before.pop(slot, ())

    def take(self, slots: I64, drafts: I64) -> None:
        """These slots' rows have drafts. Raises BadPlan where there are too few places."""
        needed = int(drafts.sum())
        if needed > len(self._free):
            raise BadPlan(
                f"drafts: {needed}, and {len(self._free)} of {self._drafts} places for the states in front of them are free"
            )
        for slot, count in zip(slots.tolist(), drafts.tolist(), strict=True):
            self._before[slot] = [self._free.pop() for _ in range(count)]

    def can_reject(self, slot: int, rejected: int) -> bool:
        """Whether so many drafts of its last row may turn out to be wrong."""
        return rejected <= len(self._before.get(slot, ()))

    def settle(self, slots: I64, rejected: I64) -> None:
        """So many drafts at the end of these slots' last rows were not accepted. A slot without drafts has nothing to settle."""
        if not self._before:
            return
        for slot, count in zip(slots.tolist(), rejected.tolist(), strict=True):
            before = self._before.pop(slot, [])
            if count:
                at = len(before) - count
                self.of_slots[slot], before[at] = before[at], int(self.of_slots[slot])
            self._free += before

    def saves(self, plan: Plan) -> I64:
        """(row, tokens, place) of every copy that a plan makes, which was accepted: of its snapshots, and in front of drafts;
        ascending by row and tokens.
        """
        saves: I64 = plan.saves.astype(np.int64) + (0, 0, self.first_snapshot)
        if not len(plan.drafts):
            return saves
        rows = np.flatnonzero(plan.drafts)
        counts = plan.drafts[rows]
        numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.repeat(plan.counts[rows] - counts, counts) + numbers
        places = [place for slot in plan.slots[rows].tolist() for place in self._before[slot]]
        before = np.stack((np.repeat(rows, counts), tokens, np.array(places, np.int64)), 1)
        both: I64 = np.concatenate((saves, before))
        return np.ascontiguousarray(both[np.lexsort((both[:, 1], both[:, 0]))])
