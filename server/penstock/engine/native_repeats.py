"""Steps that go on from each other on the CPU engine, each in one call, with drafts and without; where rows are masked a second call
chooses. Must not import torch.

Letters: R rows, T tokens that are fed, S samples, one behind each of those, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine.columns import F32, I64
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.native_sampling import NativeSampler, RepeatedDraws
from penstock.engine.native_steps import paths_of, places_of
from penstock.engine.plan import MASKED, OF_WORDS, MaskColumns, Plan
from penstock.engine.slot_sampling import NO_SAMPLES, Masks, Sampled
from penstock.engine.slots import SlotTable
from penstock.models.native import NativeModel
from penstock_kernels.cpu_engine import NO_MOVES, NO_SAVES, Decodes

NO_ROWS: I64 = np.zeros(1, np.int64)


@dataclass(slots=True)
class Taken:
    """What rows have sampled."""

    last_tokens_R: I64
    rows_S: I64  # of the samples that count, those behind accepted drafts or none
    sampled: Sampled | None  # those; on the rank that samples
    paths: "Paths | None"  # None: no row had drafts


class Repeats:
    """Plans that go on from each other, of which `serves` tells: each is begun, run, and taken, with its masks where some are awaited."""

    def __init__(
        self,
        plan: Plan,
        native: NativeModel,
        sampler: NativeSampler,
        table: SlotTable,
        logits_SV: F32,
        samples: bool,
    ) -> None:
        """Of this plan and those that go on from it, behind a step that `native` has made. `samples`: this rank does."""
        self._native, self._sampler, self._table = native, sampler, table
        self._samples, self._slots = samples, np.ascontiguousarray(plan.slots, np.int64)
        rows, most = len(plan.slots), table.limits.max_step_drafts
        self._masked_R = np.flatnonzero(plan.flags & MASKED)
        self._only_words = np.full(len(self._masked_R), OF_WORDS, np.uint32).tobytes()
        is_masked = len(self._masked_R) > 0
        self.awaits_masks = is_masked and samples
        # Other ranks are told what was sampled, and not which drafts have no mask behind them.
        self._may_verify = most > 0 and not (is_masked and native.group.size > 1)
        self._rows_R = np.arange(rows)
        self._most_logits_SV = logits_SV[: rows + most]
        self._plain = self._variant(sampler.repeated(plan.slots, plan.positions + 1), logits_SV[:rows])
        self._verifying: _Variant | None = None  # made with the first drafts, since rows often change before
        self._now, self._drawn = self._plain, 0
        self.rows_S = self._rows_R
        """The row of each sample of the step that was begun."""

    def _variant(self, draws: RepeatedDraws, logits_SV: F32) -> "_Variant":
        slots, table = self._slots, self._table
        encoded = table.encoder_counts if table.limits.has_encoder else None
        where, awaits_masks = places_of(slots, table), self.awaits_masks
        made = self._native.decodes(slots, where, table.pages, logits_SV, draws.draws, encoded, awaits_masks)
        return _Variant(made, draws)

    @property
    def logits_SV(self) -> F32:
        """Of the step that was run last."""
        return self._now.decodes.logits_RV[: len(self.rows_S)]

    def serves(self, plan: Plan) -> bool:
        """Whether this plan, which goes on, is such a step."""
        return self._may_verify or not len(plan.drafts)

    def begin(self, plan: Plan, last_R: I64) -> None:
        """The next one, whose rows sampled `last` before."""
        if len(plan.drafts):
            self._begin_verifying(plan, last_R)
        else:
            self._now, self.rows_S = self._plain, self._rows_R
            decodes, draws = self._plain.decodes, self._plain.draws
            decodes.ids_T[:], decodes.first_R[:] = last_R, plan.positions
            draws.move(plan.positions + 1, decodes.ids_T)
            self._drawn = len(draws.rows)
        states = self._table.states
        if states is not None:
            decodes = self._now.decodes
            decodes.places_R[:] = states.of_slots[plan.slots]
            has_copies = len(plan.saves) or len(plan.drafts)
            decodes.save(states.saves(plan) if has_copies else NO_SAVES)

    def _begin_verifying(self, plan: Plan, last_R: I64) -> None:
        of_rows = self._plain.draws
        if self._verifying is None:
            logits_SV = self._most_logits_SV
            self._verifying = self._variant(of_rows.of_samples(len(logits_SV)), logits_SV)
        now = self._now = self._verifying
        decodes, counts, trees = now.decodes, plan.counts, plan.trees
        rows, tokens = len(counts), len(counts) + len(plan.tokens)
        ids = decodes.ids_T
        decodes.first_R[:], decodes.counts_R[:] = plan.positions, counts
        if rows == 1:
            firsts, self.rows_S = NO_ROWS, np.zeros(tokens, np.int64)
            ids[0], ids[1:tokens] = last_R[0], plan.tokens
        else:
            firsts, self.rows_S = np.cumsum(counts) - counts, np.repeat(self._rows_R, counts)
            is_draft_T = np.ones(tokens, np.bool_)
            is_draft_T[firsts] = False
            ids[:tokens][is_draft_T], ids[firsts] = plan.tokens, last_R
        positions_T, moved_M3 = (None, NO_MOVES) if trees is None else paths_of(plan, trees, firsts)
        decodes.branch(positions_T, moved_M3)
        self._drawn = 0
        if of_rows.draws is not None:
            rows_S = self.rows_S
            if positions_T is not None:
                positions_S = positions_T + 1
            else:
                positions_S = np.arange(1, tokens + 1) + (plan.positions - firsts)[rows_S]
            made = now.draws.take(of_rows, rows_S, firsts, positions_S, ids[:tokens])
            if trees is not None and now.draws.are_counted:
                now.draws.follow_paths(made, parents_of(trees, firsts, tokens))
            self._drawn = len(made)

    def run(self) -> None:
        """The step that was begun, but for the choice where masks are awaited."""
        self._native.run_decodes(self._now.decodes, len(self.rows_S), self._drawn)

    def masks(self, plan: Plan, columns: MaskColumns) -> Masks:
        """Of the step that was run. Raises BadPlan for columns that are not its masks."""
        vocabulary, masked_R = self._table.limits.vocab_size, self._masked_R
        # Mostly rows have no drafts, and each a mask. Behind a pass little of what numpy needs is in a cache, and every call counts.
        are_words = not len(plan.drafts) and columns.only.tobytes() == self._only_words
        if are_words and len(columns.words) == len(masked_R) * -(-vocabulary // 32):
            words_MW = columns.words.view(np.int32).reshape(len(masked_R), -1)
            if words_MW.any(axis=1).all():
                return Masks(masked_R, words_MW)
        return Masks.of_plan(plan, self.rows_S, columns, vocabulary)

    def take(self, plan: Plan, masks: Masks | None) -> Taken:
        """What was sampled, or is with these masks."""
        decodes, draws, rows_S = self._now.decodes, self._now.draws, self.rows_S
        tokens_S, skipped = decodes.summary.tokens_S, NO_SAMPLES
        if masks is not None:
            self._native.choose(decodes, masks)
            samples, only = masks.only
            if len(samples):
                tokens_S[samples] = only
            skipped = masks.skipped
        paths = kept_S = None
        last_tokens_R = tokens_S
        if len(plan.drafts):
            is_behind_draft = (skipped > 0) & (rows_S[skipped] == rows_S[skipped - 1])
            closed, count = skipped[is_behind_draft], len(rows_S)
            paths = Paths.accepted(tokens_S, decodes.ids_T, plan.counts, count, plan.trees, closed)
            rows_S, kept_S, last_tokens_R = paths.rows_S, paths.kept_S, tokens_S[paths.lasts_R]
            if len(skipped):
                skipped = np.flatnonzero(np.isin(kept_S, skipped))
        sampled = None
        if self._samples:
            possible_D, possible_S = decodes.possible_D, None
            if possible_D is not None:
                possible_S = draws.possible(possible_D[: self._drawn], len(self.rows_S))
            if possible_S is not None and kept_S is not None:
                possible_S = possible_S[kept_S]
            slots = plan.slots[rows_S]
            sampled = self._sampler.taken(
                decodes.logits_RV, decodes.summary, slots, draws.are_counted, skipped, possible_S, kept_S
            )
        return Taken(last_tokens_R, rows_S, sampled, paths)


@dataclass(slots=True)
class _Variant:
    """Their steps without drafts, or with."""

    decodes: Decodes
    draws: RepeatedDraws  # with drafts: room for one of every sample


@dataclass(slots=True)
class Paths:
    """What becomes of a step's drafts: what `native_sampling.verify` says of them."""

    accepted_R: I64
    kept_S: I64  # samples that follow accepted drafts, or none
    rows_S: I64  # of those
    lasts_R: I64  # of each row the last of those
    # (row, number, depth) of accepted drafts of trees that were fed at another place
    moved_M3: list[tuple[int, int, int]]

    @classmethod
    def accepted(
        cls,
        tokens_S: I64,
        ids_T: I64,
        counts_R: I64,
        samples: int,
        trees: DraftTrees | None,
        closed: I64 = NO_SAMPLES,
    ) -> "Paths":
        """Where a sample is what was fed behind it the draft was right, and none counts behind one that was wrong. `closed`: samples of chains
        behind drafts that are wrong, whatever was sampled.
        """
        # Of few numbers: what numpy takes to begin is more than to look at each.
        agrees_S = tokens_S[: samples - 1] == ids_T[1:samples]
        if len(closed):
            agrees_S[closed - 1] = False
        agrees = agrees_S.tolist()
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
