"""From plans to what the CPU engine reads: the plan's own columns. Positions and cache rows follow from them in C++. Must not import
torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.engine.columns import F32, I64, Bools
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.native_sampling import RepeatedDraws
from penstock.engine.plan import CONTINUE, MASKED, PROMPT_LOGPROBS, Plan
from penstock.engine.slots import SlotTable
from penstock.engine.state_places import StatePlaces
from penstock.models.native import NativeModel, NativeStep
from penstock_kernels.cpu_engine import NO_MOVES, NO_SAVES, Decodes


@dataclass(slots=True)
class Repeats:
    """Plans that go on from each other, each in one call: their rows feed what they sampled. Where rows are masked, a second call
    chooses.
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
        # On every rank the same: what is drawn with masks is told in another way.
        if table.limits.max_step_drafts and not (plan.flags & MASKED).any():
            logits = logits_SV[: len(rows) + table.limits.max_step_drafts]

            def make_verifying() -> Verifying:
                many = draws.of_samples(len(logits))
                made = native.decodes(slots, where, table.pages, logits, many.draws, encoded)
                return Verifying(made, draws, many)

        return cls(decodes, draws, indices, masked_rows, make_verifying)

    def begin(self, plan: Plan, last_R: I64, states: StatePlaces | None) -> None:
        """The next step without drafts, whose rows sampled `last` before."""
        decodes = self.decodes
        decodes.ids_T[:], decodes.first_R[:] = last_R, plan.positions
        self.draws.move(plan.positions + 1, decodes.ids_T)
        if states is not None:
            use_states(decodes, plan, states)


def use_states(decodes: Decodes, plan: Plan, states: StatePlaces) -> None:
    """Says where the states of the next step's rows are, and where it copies them to."""
    decodes.places_R[:] = states.of_slots[plan.slots]
    has_copies = len(plan.saves) or len(plan.drafts)
    decodes.save(states.saves(plan) if has_copies else NO_SAVES)


@dataclass(slots=True)
class Verifying:
    """Steps of the same rows with drafts, each in one call."""

    decodes: Decodes
    of_rows: RepeatedDraws
    draws: RepeatedDraws  # room for one of every sample
    drawn: int = 0  # samples of the last step

    def run(self, plan: Plan, native: NativeModel, last_R: I64, states: StatePlaces | None) -> "Paths":
        """One of them, whose rows sampled `last` before."""
        decodes, counts, trees = self.decodes, plan.counts, plan.trees
        rows, tokens = len(counts), len(counts) + len(plan.tokens)
        ids, draws = decodes.ids_T, 0
        decodes.first_R[:], decodes.counts_R[:] = plan.positions, counts
        if rows == 1:
            firsts = NO_ROWS
            ids[0], ids[1:tokens] = last_R[0], plan.tokens
        else:
            firsts = np.cumsum(counts) - counts
            is_draft_T = np.ones(tokens, np.bool_)
            is_draft_T[firsts] = False
            ids[:tokens][is_draft_T], ids[firsts] = plan.tokens, last_R
        positions_T, moved_M3 = (None, NO_MOVES) if trees is None else _paths(plan, trees, firsts)
        decodes.branch(positions_T, moved_M3)
        if self.of_rows.draws is not None:
            rows_S = np.zeros(tokens, np.int64) if rows == 1 else np.repeat(np.arange(rows), counts)
            if positions_T is not None:
                positions_S = positions_T + 1
            else:
                positions_S = np.arange(1, tokens + 1) + (plan.positions - firsts)[rows_S]
            made = self.draws.take(self.of_rows, rows_S, firsts, positions_S, ids[:tokens])
            if trees is not None and self.draws.are_counted:
                self.draws.follow_paths(made, parents_of(trees, firsts, tokens))
            draws = len(made)
        if states is not None:
            use_states(decodes, plan, states)
        native.run_tokens(decodes, tokens, draws)
        self.drawn = draws
        return Paths.accepted(decodes.summary.tokens_S, ids, counts, tokens, trees)

    def possible(self, samples: int) -> Bools | None:
        """Which of the last step's samples had a token left; None: all."""
        possible_D = self.decodes.possible_D
        return self.draws.possible(None if possible_D is None else possible_D[: self.drawn], samples)


NO_ROWS: I64 = np.zeros(1, np.int64)


@dataclass(slots=True)
class Paths:
    """What becomes of a step's drafts: what `native_sampling.verify` says of them."""

    accepted_R: I64
    kept_S: I64  # samples that follow accepted drafts, or none
    rows_S: I64  # of those
    lasts_R: I64  # of each row the last of those
    moved_M3: list[
        tuple[int, int, int]
    ]  # (row, number, depth) of accepted drafts of trees that were fed at another place

    @classmethod
    def accepted(
        cls, tokens_S: I64, ids_T: I64, counts_R: I64, samples: int, trees: DraftTrees | None
    ) -> "Paths":
        """Where a sample is what was fed behind it the draft was right, and none counts behind one that was wrong."""
        # Of few numbers: what numpy takes to begin is more than to look at each.
        agrees = (tokens_S[: samples - 1] == ids_T[1:samples]).tolist()
        accepted: list[int] = []
        kept: list[int] = []
        rows: list[int] = []
        moved: list[tuple[int, int, int]] = []
        first = 0
        path: Sequence[int]
        for row, count in enumerate(counts_R.tolist()):
            if trees is not None and trees.are_trees_R[row]:
                path = _accepted_path(tokens_S, ids_T, first, trees.parents_D[first - row :][: count - 1])
                moved += [(row, number, depth) for depth, number in enumerate(path) if number != depth]
            else:
                right = 0
                while right < count - 1 and agrees[first + right]:
                    right += 1
                path = range(right + 1)
            accepted.append(len(path) - 1)
            kept += [first + number for number in path]
            rows += [row] * len(path)
            first += count
        accepted_R = np.array(accepted)
        kept_S = np.array(kept)
        return cls(accepted_R, kept_S, np.array(rows), kept_S[np.cumsum(accepted_R + 1) - 1], moved)


def _accepted_path(tokens_S: I64, ids_T: I64, first: int, parents: I64) -> list[int]:
    """By their numbers in the row, 0 and what is accepted of its tree. A draft comes behind the one that it follows, and no two behind the
    same one are the same token.
    """
    path = [0]
    for number, parent in enumerate(parents.tolist(), 1):
        if parent == path[-1] and ids_T[first + number] == tokens_S[first + parent]:
            path.append(number)
    return path


def parents_of(trees: DraftTrees, firsts_R: I64, samples: int) -> I64:
    """Of each sample the one in whose place the draft before it was guessed; -1 of a row's first."""
    firsts_D = firsts_R[trees.rows_D]
    parents_S = np.full(samples, -1)
    parents_S[firsts_D + trees.numbers_D] = firsts_D + trees.parents_D
    return parents_S


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
