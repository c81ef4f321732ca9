"""From plans to what the CPU engine reads: the plan's own columns. Positions and cache rows follow from them in C++. Must not import
torch.
"""

from dataclasses import replace

import numpy as np

from penstock.engine.columns import I64
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.plan import CONTINUE, PROMPT_LOGPROBS, Plan
from penstock.engine.slots import SlotTable
from penstock.models.native import NativeStep
from penstock_kernels.cpu_engine import NO_MOVES, NO_SAVES


class NativeSteps:
    """Makes the steps of one model from plans that `SlotTable.apply` has accepted."""

    def __init__(self, slots: SlotTable, narrows: bool) -> None:
        """`narrows`: whether the model can leave out tokens whose hidden states nobody reads."""
        self.slots, self.narrows = slots, narrows
        self._last: tuple[LogitsIndices, NativeStep] | None = None

    def clear(self) -> None:
        """Forgets the last step."""
        self._last = None

    def make(self, plan: Plan, last_sampled: I64) -> tuple[LogitsIndices, NativeStep]:
        """`last_sampled` has the last token of every slot."""
        made = self._further(plan, last_sampled) or self._anew(plan, last_sampled)
        self._last = None if len(plan.drafts) or len(plan.saves) else made
        return made

    def _further(self, plan: Plan, last_sampled: I64) -> tuple[LogitsIndices, NativeStep] | None:
        """From the last step, where the plan goes on from its plan."""
        if not plan.goes_on or self._last is None or len(plan.drafts) or len(plan.saves):
            return None
        indices, step = self._last
        indices = replace(indices, sample_positions=plan.positions + 1)
        return indices, replace(step, ids_T=last_sampled[plan.slots], first_R=plan.positions)

    def _anew(self, plan: Plan, last_sampled: I64) -> tuple[LogitsIndices, NativeStep]:
        counts, flags = plan.counts, plan.flags
        continuing = (flags & CONTINUE) != 0
        ends = np.cumsum(counts)
        if len(plan.tokens) == 0:
            ids = last_sampled[plan.slots]
        else:
            is_given_T = np.ones(int(ends[-1]), np.bool_)
            is_given_T[(ends - counts)[continuing]] = False
            ids = np.empty(len(is_given_T), np.int64)
            ids[is_given_T] = plan.tokens
            ids[~is_given_T] = last_sampled[plan.slots[continuing]]
        sample_rows, behind = sampled_positions(plan)
        sample_tokens = ends[sample_rows] - 1 - behind
        sample_positions = plan.positions[sample_rows] + counts[sample_rows] - behind
        positions_T, moved_M3 = None, NO_MOVES
        if plan.trees is not None:
            positions_T, moved_M3 = paths_of(plan, plan.trees, ends - counts)
            sample_positions = positions_T[sample_tokens] + 1
        asked_T = np.repeat((flags & PROMPT_LOGPROBS) != 0, counts)
        indices = LogitsIndices(
            sample_rows=sample_rows,
            sample_tokens=sample_tokens,
            sample_positions=sample_positions,
            prompt_tokens=np.flatnonzero(asked_T),
        )
        states, saves = self.slots.states, NO_SAVES
        if states is not None and (len(plan.saves) or len(plan.drafts)):
            saves = states.saves(plan)
        slots = np.ascontiguousarray(plan.slots, np.int64)
        return indices, NativeStep(
            ids_T=ids,
            slots_R=slots,
            places_R=places_of(slots, self.slots),
            first_R=np.ascontiguousarray(plan.positions, np.int64),
            counts_R=np.ascontiguousarray(counts, np.int64),
            pages=self.slots.pages,
            saves_C3=saves,
            positions_T=positions_T,
            moved_M3=moved_M3,
            wanted_R=wanted_of(plan, sample_rows, behind) if self.narrows else None,
        )


def wanted_of(plan: Plan, sample_rows: I64, behind: I64) -> I64 | None:
    """Of how many of each row's last tokens logits are made; None: of all."""
    counts = plan.counts
    wanted_R = np.where(plan.flags & PROMPT_LOGPROBS, counts, 0).astype(np.int64)
    np.maximum.at(wanted_R, sample_rows, behind + 1)
    return None if np.array_equal(wanted_R, counts) else wanted_R


def places_of(slots_R: I64, table: SlotTable) -> I64:
    """Where the states of rows are; of a model without any, anywhere."""
    return slots_R if table.states is None else table.states.of_slots[slots_R]


def paths_of(plan: Plan, trees: DraftTrees, begins: I64) -> tuple[I64, I64]:
    """The position of every token, and what tokens of trees read at other places than their positions: see `CpuProgram.step`."""
    of_trees = trees.are_trees_R[trees.rows_D]
    rows_D, numbers_D = trees.rows_D[of_trees], trees.numbers_D[of_trees]
    positions_T = np.repeat(plan.positions - begins, plan.counts) + np.arange(int(plan.counts.sum()))
    positions_T[begins[rows_D] + numbers_D] = plan.positions[rows_D] + trees.depths_D[of_trees]
    rows_M, number_M, depth_M, other_M = trees.moved_M4.T
    first_M = plan.positions[rows_M]
    return positions_T, np.stack((begins[rows_M] + number_M, first_M + depth_M, first_M + other_M), 1)
