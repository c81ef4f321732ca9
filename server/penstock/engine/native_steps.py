"""From plans to what the CPU engine reads: the plan's own columns. Positions and cache rows follow from them in C++. Must not import
torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.engine.columns import F32, I64
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.native_sampling import RepeatedDraws
from penstock.engine.plan import CONTINUE, MASKED, PROMPT_LOGPROBS, Plan
from penstock.engine.slots import SlotTable
from penstock.models.native import NativeModel, NativeStep
from penstock_kernels.cpu_engine import NO_MOVES, NO_SAVES, Decodes


@dataclass(slots=True)
class Repeats:
    """Plans that go on from each other, each in one call: their rows feed what they sampled, and want a token each. Where rows are masked,
    a second call chooses.
    """

    decodes: Decodes
    draws: RepeatedDraws
    indices: LogitsIndices
    masked_rows: I64  # on the rank that chooses
    make_verifying: Callable[[], "Verifying"] | None  # None: drafts take several calls
    _verifying: "Verifying | None" = None

    @property
    def verifying(self) -> "Verifying | None":
        """The same rows with drafts; None: those take several calls. Made when there are some, since rows often change before that."""
        if self._verifying is None and self.make_verifying is not None:
            self._verifying = self.make_verifying()
        return self._verifying

    @classmethod
    def of(
        cls,
        plan: Plan,
        native: NativeModel,
        draws: RepeatedDraws,
        table: SlotTable,
        logits_SV: F32,
        masked_rows: I64,
    ) -> "Repeats":
        """Of the plan and those that go on from it, behind a step that `native` has made."""
        rows = np.arange(len(plan.slots))
        slots = np.ascontiguousarray(plan.slots, np.int64)
        indices = LogitsIndices(rows, rows, plan.positions + 1, np.zeros(0, np.int64))
        encoded = table.encoder_counts if table.limits.has_encoder else None
        where, logits_RV = places_of(slots, table), logits_SV[: len(rows)]
        awaits_masks = len(masked_rows) > 0
        decodes = native.decodes(slots, where, table.pages, logits_RV, draws.draws, encoded, awaits_masks)
        make_verifying = None
        # On every rank the same: what is drawn with masks or counts is told in another way.
        if table.limits.max_step_drafts and not (draws.are_counted or (plan.flags & MASKED).any()):
            logits = logits_SV[: len(rows) + table.limits.max_step_drafts]

            def make_verifying() -> Verifying:
                many = draws.of_samples(len(logits))
                made = native.decodes(slots, where, table.pages, logits, many.draws, encoded)
                return Verifying(made, draws, many)

        return cls(decodes, draws, indices, masked_rows, make_verifying)


@dataclass(slots=True)
class Verifying:
    """Steps of the same rows with chains of drafts, each in one call."""

    decodes: Decodes
    of_rows: RepeatedDraws
    draws: RepeatedDraws  # room for one of every sample

    def run(self, plan: Plan, native: NativeModel, last_R: I64) -> "Chains":
        """One of them, whose rows sampled `last` before."""
        decodes, counts = self.decodes, plan.counts
        rows, tokens = len(counts), len(counts) + len(plan.tokens)
        ids, draws = decodes.ids_T, 0
        decodes.first_R[:], decodes.counts_R[:] = plan.positions, counts
        if rows == 1:
            firsts = NO_ROWS
            ids[0], ids[1:tokens] = last_R[0], plan.tokens
            if self.of_rows.draws is not None:
                draws = tokens
                positions_S = np.arange(plan.positions[0] + 1, plan.positions[0] + 1 + tokens)
                self.draws.take(self.of_rows, np.zeros(tokens, np.int64), NO_ROWS, positions_S)
        else:
            firsts = np.cumsum(counts) - counts
            is_draft_T = np.ones(tokens, np.bool_)
            is_draft_T[firsts] = False
            ids[:tokens][is_draft_T], ids[firsts] = plan.tokens, last_R
            if self.of_rows.draws is not None:
                rows_S = np.repeat(np.arange(rows), counts)
                positions_S = np.arange(1, tokens + 1) + (plan.positions - firsts)[rows_S]
                draws = self.draws.take(self.of_rows, rows_S, firsts, positions_S)
        native.run_tokens(decodes, tokens, draws)
        return Chains.accepted(decodes.summary.tokens_S, ids, counts, tokens)


NO_ROWS: I64 = np.zeros(1, np.int64)


@dataclass(slots=True)
class Chains:
    """What becomes of a step's chains: what `native_sampling.verify` says of drafts that are no trees."""

    accepted_R: I64
    kept_S: I64  # samples that follow accepted drafts, or none
    rows_S: I64  # of those
    lasts_R: I64  # of each row the last of those

    @classmethod
    def accepted(cls, tokens_S: I64, ids_T: I64, counts_R: I64, samples: int) -> "Chains":
        """Where a sample is what was fed behind it the draft was right, and none counts behind one that was wrong."""
        # Of few numbers: what numpy takes to begin is more than to look at each.
        agrees = (tokens_S[: samples - 1] == ids_T[1:samples]).tolist()
        accepted: list[int] = []
        kept: list[int] = []
        rows: list[int] = []
        first = 0
        for row, count in enumerate(counts_R.tolist()):
            right = 0
            while right < count - 1 and agrees[first + right]:
                right += 1
            accepted.append(right)
            kept += range(first, first + right + 1)
            rows += [row] * (right + 1)
            first += count
        accepted_R, firsts_R = np.array(accepted), np.cumsum(counts_R) - counts_R
        return cls(accepted_R, np.array(kept), np.array(rows), firsts_R + accepted_R)


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
        self._last = None if len(plan.drafts) else made
        return made

    def _further(self, plan: Plan, last_sampled: I64) -> tuple[LogitsIndices, NativeStep] | None:
        """From the last step, where the plan goes on from its plan."""
        if not plan.goes_on or self._last is None or len(plan.drafts):
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
            positions_T, moved_M3 = _paths(plan, plan.trees, ends - counts)
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


def _paths(plan: Plan, trees: DraftTrees, begins: I64) -> tuple[I64, I64]:
    """The position of every token, and what tokens of trees read at other places than their positions: see `CpuProgram.step`."""
    of_trees = trees.are_trees_R[trees.rows_D]
    rows_D, numbers_D = trees.rows_D[of_trees], trees.numbers_D[of_trees]
    positions_T = np.repeat(plan.positions - begins, plan.counts) + np.arange(int(plan.counts.sum()))
    positions_T[begins[rows_D] + numbers_D] = plan.positions[rows_D] + trees.depths_D[of_trees]
    rows_M, number_M, depth_M, other_M = trees.moved_M4.T
    first_M = plan.positions[rows_M]
    return positions_T, np.stack((begins[rows_M] + number_M, first_M + depth_M, first_M + other_M), 1)
