"""Steps that go on from each other on the CPU engine, each in one call, with drafts and without; where rows are masked a second call
chooses. Must not import torch.

Letters: R rows, T tokens that are fed, S samples, one behind each of those, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import F32, I64, U32
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.native_sampling import NativeSampler, RepeatedDraws
from penstock.engine.native_steps import paths_of, places_of
from penstock.engine.plan import MASKED, OF_WORDS, MaskColumns, Plan
from penstock.engine.slot_sampling import NO_SAMPLES, Masks, Sampled
from penstock.engine.slots import SlotTable
from penstock.engine.threads import KINDS
from penstock.models.native import NativeModel
from penstock_kernels.cpu_engine import NO_MOVES, NO_SAVES, Decodes, address
from penstock_kernels.repeats import MOST_MADE, MOST_NS, CRepeats, Inbox, Pause, samples_of

NO_ROWS: I64 = np.zeros(1, np.int64)
NO_PAGES: U32 = np.zeros(0, np.uint32)


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
        self._flags = np.ascontiguousarray(plan.flags)
        self._made: I64 = np.zeros((MOST_MADE, 4), np.int64)
        self._c: CRepeats | None = None  # made when the engine is first asked
        self._held: list[npt.NDArray[Any]] = []  # what it points to
        # Alternatives are listed in Python.
        self.may_go_on = not (samples and sampler.top_counts[plan.slots].any())
        """Whether the engine may read plans by itself."""
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

    def go_on(self, inbox: Inbox, kinds: list[tuple[int, int]], last_sampled: I64, steps: I64) -> Pause:
        """Has the engine read plans and answer them, as `repeats.go_on` has it. `last_sampled` has the last token of every slot, `steps` (1,) how
        many were begun."""
        c = self._c_repeats(last_sampled, steps)
        states = self._table.states
        if states is not None:
            self._plain.decodes.places_R[:] = states.of_slots[self._slots]
            self._plain.decodes.save(NO_SAVES)
        if self._verifying is not None:
            self._verifying.decodes.branch(None, NO_MOVES)
        pause = self._native.go_on(c, inbox, self._plain.decodes, kinds)
        for variant in (self._plain, self._verifying):
            if variant is not None:
                variant.decodes.forget_masks()
        return pause

    @property
    def made(self) -> list[list[int]]:
        """Of each step that the engine made last: see `Threads.were`."""
        return [] if self._c is None else self._made[: self._c.made_count].tolist()

    def left(self, last: Plan, number: int) -> tuple[Plan, int, int]:
        """The step of which the engine has left something: its plan, which goes on from `last` by way of others, how long it took to read that, and to
        compute it."""
        assert self._c is not None
        tokens, drafts = self._c.tokens, NO_SAMPLES
        has_drafts = tokens > len(self._slots)
        variant = self._verifying if has_drafts and self._verifying is not None else self._plain
        decodes, draws = variant.decodes, variant.draws
        counts, ids = decodes.counts_R.copy(), decodes.ids_T[:tokens]
        self._now, self.rows_S = variant, np.repeat(self._rows_R, counts)
        self._drawn = 0 if draws.draws is None or decodes.c_draws is None else decodes.c_draws.count
        if has_drafts:
            drafts = counts - 1
            ids = np.delete(ids, np.cumsum(counts) - counts)
        else:
            ids = ids[:0]
        plan = replace(
            last,
            number=number,
            positions=decodes.first_R.copy(),
            counts=counts,
            tokens=ids.astype(np.uint32),
            drafts=drafts,
            new_block_counts=np.zeros(len(counts), np.int64),
            new_pages=NO_PAGES,
            draft_parents=NO_SAMPLES,
            trees=None,
            traces=b"",
            goes_on=True,
        )
        return plan, self._c.prepare_ns, self._c.forward_ns

    def _c_repeats(self, last_sampled: I64, steps: I64) -> CRepeats:
        """What the engine is told of these rows."""
        if self._c is not None:
            return self._c
        table, plain, limits = self._table, self._plain, self._table.limits
        if self._may_verify and table.states is None and self._verifying is None:
            self._verifying = self._variant(
                plain.draws.of_samples(len(self._most_logits_SV)), self._most_logits_SV
            )
        draws, rows = plain.draws, len(self._slots)
        furthest = table.bounds(self._slots)
        counted = np.zeros(rows, np.uint64)
        if self._samples and draws.draws is not None:
            counted[draws.rows] = np.where(draws.are_penalized, draws.draws.rows["output_counts"], 0)
        c = CRepeats(rows=rows, columns=limits.vocab_size)
        held: list[npt.NDArray[Any]] = [furthest, counted, self._flags, self._made]
        c.flags, c.slots, c.furthest = address(self._flags), address(self._slots), address(furthest)
        c.plain = samples_of(plain.decodes, None)
        if self._verifying is not None and table.states is None:
            c.verifying = samples_of(self._verifying.decodes, self._verifying.draws.before)
        c.most_drafts, c.most_tokens = limits.max_step_drafts, limits.max_step_tokens
        c.answers, c.awaits_masks = self._samples, self.awaits_masks
        if draws.draws is not None:
            keys, are_penalized = (np.ascontiguousarray(one) for one in (draws.keys, draws.are_penalized))
            held += [keys, are_penalized]
            c.keys, c.are_penalized = address(keys), address(are_penalized)
            if draws.first_ends is not None:
                first_ends = np.ascontiguousarray(draws.first_ends)
                held.append(first_ends)
                c.first_ends, c.end_width = address(first_ends), draws.draws.end_tokens.shape[1]
            c.are_marked, c.may_lack = draws.are_marked, draws.may_lack
        c.counted = address(counted)
        c.filled, c.planned, c.block_counts = map(address, (table.filled, table.planned, table.block_counts))
        c.last_sampled, c.steps = address(last_sampled), address(steps)
        c.tables, c.pages, c.block_size = limits.tables.count, limits.pages, limits.block_size
        c.kinds[:] = KINDS
        c.most_ns, c.made, c.most_made = MOST_NS, address(self._made), len(self._made)
        self._c, self._held = c, held
        return c

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
