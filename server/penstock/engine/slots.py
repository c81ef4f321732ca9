"""The table of slots: what a sequence's block table is and how far its cache is filled.

The engine applies every plan to it before anything runs, and it refuses plans that contradict
themselves, the limits or what the slots hold. Knows nothing of tensors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import I64, U32, Bools
from penstock.engine.draft_trees import LONGEST_PATH, draft_trees
from penstock.engine.plan import (
    CONTINUE,
    KNOWN_FLAGS,
    MASKED,
    NO_PAGE,
    NO_SNAPSHOT,
    NO_TARGET,
    OWN_DRAFTS,
    PROMPT_LOGPROBS,
    SAMPLE,
    START,
    START_COLUMNS,
    Plan,
    Starts,
)
from penstock.engine.state_places import StatePlaces
from penstock.engine.tables import ONE_TABLE, Tables
from penstock.errors import BadPlan

MAX_TOP_TOKENS = 32

# A row that feeds the token that its slot sampled last. It may be masked.
DECODE = CONTINUE | SAMPLE

NO_COUNTS: I64 = np.zeros(0, np.int64)

# Room of slots without blocks.
ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Limits:
    """What a plan may name, as agreed in Prepare."""

    max_slots: int
    max_step_tokens: int
    max_sequence_tokens: int
    pages: int
    block_size: int
    vocab_size: int
    has_encoder: bool = False  # every sequence begins with what an encoder reads
    max_side_positions: int = 0  # of its encoder's tokens, and of its decoder's; 0: no limit
    max_step_drafts: int = 0
    has_drafter: bool = False  # rows may have drafts that the worker makes
    draft_trees: bool = False  # drafts may be a tree
    has_state: bool = False  # the model has recurrent layers: every slot has a state
    snapshots: int = 0  # places for copies of states
    draft_states: int = 0  # places for states in front of drafts
    adapters: int = 0  # of the model
    tables: Tables = ONE_TABLE


@dataclass(slots=True)
class _Decodes:
    """A plan that fed the last token of each row, drafts and nothing else, and how far those that went on from it are."""

    plan: Plan
    counts: I64  # of the last plan without drafts, if there was one
    ends: I64  # to which the rows' slots are filled
    planned: I64  # and may be, as far as the router knows; the same array where it knows
    rooms: I64  # and may be, with the blocks that they have: see `SlotTable._rooms`


class SlotTable:
    """State of every slot, as columns indexed by slot."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # One block more than the longest sequence has: a row in flight may run one token past it.
        self.width = -(-(limits.max_sequence_tokens + 1) // limits.block_size)
        self.alive: Bools = np.zeros(limits.max_slots, np.bool_)
        self.has_sampled: Bools = np.zeros(limits.max_slots, np.bool_)
        self.filled: I64 = np.zeros(limits.max_slots, np.int64)  # tokens in the cache
        # What the router may think is in it at most: as if all drafts of the last rows had been accepted.
        self.planned: I64 = np.zeros(limits.max_slots, np.int64)
        self.block_counts: I64 = np.zeros(limits.max_slots, np.int64)
        self.encoder_counts: I64 = np.zeros(limits.max_slots, np.int64)  # tokens that its encoder reads
        # Which of the model's, counted from 1; 0: none.
        self.adapters: npt.NDArray[np.int32] = np.zeros(limits.max_slots, np.int32)
        # Page of each block, by table: (tables, slots, width). Of blocks behind the window that of zeros.
        shape = (limits.tables.count, limits.max_slots, self.width)
        self.pages: npt.NDArray[np.int64] = np.zeros(shape, np.int64)
        self.states: StatePlaces | None = None
        if limits.has_state:
            self.states = StatePlaces(limits.max_slots, limits.snapshots, limits.draft_states)
        self._last: _Decodes | None = None

    def clear(self) -> None:
        """Forgets all slots."""
        self.alive[:] = False
        self._last = None
        if self.states is not None:
            self.states.clear()

    def apply(self, plan: Plan) -> None:
        """Takes the plan's releases, starts, blocks and positions over. Raises BadPlan.

        Positions of the plan that are bounds become what they are; `settle` is told of the step before.
        """
        if self._last is not None and self._go_on(plan, self._last):
            return
        self._last = None
        limits = self.limits
        slots, flags, counts, positions = plan.slots, plan.flags, plan.counts, plan.positions
        rows = len(slots)
        for name, column in (
            ("flags", flags),
            ("positions", positions),
            ("counts", counts),
            ("new_block_counts", plan.new_block_counts),
        ):
            if len(column) != rows:
                raise BadPlan(f"{name}: {len(column)} entries for {rows} rows")
        if len(plan.released):
            _below("released", plan.released, limits.max_slots, "slots")
            self.alive[plan.released] = False
            if self.states is not None:
                self.states.forget(plan.released)
        if rows == 0:
            if len(plan.copies):
                raise BadPlan("copies: some, in a plan without rows")
            return
        if rows > limits.max_slots:
            raise BadPlan(f"slots: {rows} rows, but max_slots is {limits.max_slots}")
        _below("slots", slots, limits.max_slots, "slots")
        if rows > 1 and len(np.unique(slots)) != rows:
            raise BadPlan("slots: a slot is named twice")

        if int(np.bitwise_or.reduce(flags)) & ~KNOWN_FLAGS:
            raise BadPlan("flags: a row has an unknown flag")
        starting = (flags & START) != 0
        continuing = (flags & CONTINUE) != 0
        starts = slots[starting]
        if (starting & continuing).any():
            raise BadPlan("flags: a row has both START and CONTINUE")
        if (((flags & MASKED) != 0) & ((flags & SAMPLE) == 0)).any():
            raise BadPlan("flags: a row has MASKED without SAMPLE")
        own = (flags & OWN_DRAFTS) != 0
        if len(plan.drafts) or own.any() or len(plan.draft_parents):
            self._check_drafts(plan)
        _check_starts(plan.starts, len(starts), limits)
        if len(starts):
            self.alive[starts] = True
            self.has_sampled[starts] = False
            self.filled[starts] = self.planned[starts] = positions[starting]
            self.block_counts[starts] = 0
            self._start_encoders(plan, starts)
            self._check_sources(plan, positions[starting])
            self._take_adapters(plan, starts)
            if self.states is not None:
                self.states.forget(starts)
        if not self.alive[slots].all():
            slot = slots[~self.alive[slots]][0]
            raise BadPlan(f"slots: slot {slot} holds no sequence, and its row does not start one")
        if not self.has_sampled[slots[continuing]].all():
            raise BadPlan("flags: a CONTINUE row's slot has sampled nothing")

        if int(counts.min()) < 1:
            raise BadPlan("counts: a row feeds no token")
        drafts = plan.drafts[continuing] if len(plan.drafts) else 0
        if (counts[continuing] != 1 + drafts).any():
            raise BadPlan("counts: a CONTINUE row feeds other than one token and its drafts")
        if len(plan.saves):
            self._check_saves(plan)
        total = int(counts.sum())
        if total > limits.max_step_tokens:
            raise BadPlan(f"counts: {total} tokens, but max_step_tokens is {limits.max_step_tokens}")
        given = total - int(np.count_nonzero(continuing))
        if own.any():
            given -= int(plan.drafts[own].sum())
        if len(plan.tokens) != given:
            raise BadPlan(f"tokens: {len(plan.tokens)} entries, but the rows feed {given}")
        _below("tokens", plan.tokens, limits.vocab_size, "tokens in the vocabulary")
        if len(plan.draft_parents):
            self._read_trees(plan)
        wanted = int(counts[(flags & PROMPT_LOGPROBS) != 0].sum())
        if len(plan.prompt_targets) != wanted:
            raise BadPlan(
                f"prompt_targets: {len(plan.prompt_targets)} entries, but the rows ask for {wanted}"
            )
        if wanted:
            known = plan.prompt_targets[plan.prompt_targets != NO_TARGET]
            _below("prompt_targets", known, limits.vocab_size, "tokens in the vocabulary")

        if len(plan.new_pages) or plan.new_block_counts.any():
            self._append_pages(plan)
        if len(plan.copies):
            self._check_copies(plan)
        ahead = positions > np.where(continuing, self.planned[slots], self.filled[slots])
        if ahead.any():
            row = int(np.argmax(ahead))
            raise BadPlan(
                f"positions: row {row} begins at {positions[row]}, but slot {slots[row]} "
                f"is filled to {self.filled[slots[row]]}"
            )
        if self.states is not None:
            self._settle_states(plan, self.states, continuing)
        bounds = positions + counts
        if plan.trees is not None:
            bounds += plan.trees.deepest_R - plan.drafts
        if continuing.any():
            positions = plan.positions = np.where(
                continuing, np.minimum(positions, self.filled[slots]), positions
            )
        ends = positions + counts
        short = (ends > self.block_counts[slots] * limits.block_size) & (limits.tables.count > 0)
        if short.any():
            row = int(np.argmax(short))
            raise BadPlan(
                f"new_pages: row {row} ends at {ends[row]}, but slot {slots[row]} has "
                f"{self.block_counts[slots[row]]} blocks of {limits.block_size} tokens"
            )
        self._check_whole(plan, ends)
        if self.states is not None and len(plan.drafts):
            verifying = plan.drafts > 0
            self.states.take(slots[verifying], plan.drafts[verifying])
        self.filled[slots], self.planned[slots] = ends, bounds
        self.has_sampled[slots[(flags & SAMPLE) != 0]] = True
        if plan.has_rows_alone and (flags | MASKED == DECODE | MASKED).all():
            rooms = self._rooms(slots, self.block_counts[slots])
            counted = NO_COUNTS if len(plan.drafts) else counts
            planned = ends if (bounds == ends).all() else bounds
            self._last = _Decodes(plan, counted, ends, planned, rooms)

    def _rooms(self, slots: I64, block_counts: I64) -> I64:
        """How far these slots may be filled with so many blocks."""
        limits = self.limits
        if not limits.tables.count:
            return np.full(len(slots), ENDLESS)
        rooms: I64 = block_counts * limits.block_size
        if limits.max_side_positions:
            read = -(-self.encoder_counts[slots] // limits.block_size) * limits.block_size
            rooms = np.minimum(rooms, read + limits.max_side_positions)
        return rooms

    def _go_on(self, plan: Plan, last: _Decodes) -> bool:
        """Whether the rows are those of the last plan, each with the token behind its last one and drafts or none, for which there is room;
        then it is taken over. Most plans are such, and nothing else of them but drafts, pages and copies of states has to be looked at.
        `PlanReader` makes arrays anew only where they differ. Raises BadPlan.
        """
        before, rows = last.plan, len(last.ends)
        if not (
            plan.slots is before.slots
            and plan.flags is before.flags
            and plan.has_rows_alone
            and len(plan.new_block_counts) == rows
            and len(plan.positions) == rows
            and (plan.counts is last.counts or self._are_drafts(plan, rows))
            and not (len(plan.tokens) and plan.counts is last.counts)
            and (self.states is None or not self.states.are_unsettled)
            and not (self.states is None and len(plan.saves))
        ):
            return False
        positions = plan.positions
        if last.planned is last.ends:
            if (positions != last.ends).any():
                return False
        elif ((positions < last.ends) | (positions > last.planned)).any():
            return False
        ends, rooms = last.ends + plan.counts, last.rooms
        gets_pages = len(plan.new_pages) > 0 or bool(plan.new_block_counts.any())
        if gets_pages:
            rooms = self._rooms(plan.slots, self.block_counts[plan.slots] + plan.new_block_counts)
        if (ends > rooms).any():
            return False
        if len(plan.saves):
            self._check_saves(plan)
        if len(plan.draft_parents):
            self._read_trees(plan)
        if gets_pages:
            self._append_pages(plan)
        planned = ends
        if last.planned is not last.ends or plan.trees is not None:
            planned = positions + plan.counts
            if plan.trees is not None:
                planned += plan.trees.deepest_R - plan.drafts
            plan.positions = last.ends
            if (planned == ends).all():
                planned = ends
        if self.states is not None and len(plan.drafts):
            verifying = plan.drafts > 0
            self.states.take(plan.slots[verifying], plan.drafts[verifying])
        if len(plan.drafts) == 0:
            last.counts = plan.counts
        last.rooms, last.ends, last.planned = rooms, ends, planned
        self.filled[plan.slots], self.planned[plan.slots] = ends, planned
        plan.goes_on = True
        return True

    def _are_drafts(self, plan: Plan, rows: int) -> bool:
        """Whether each of the rows, which go on, feeds a token and drafts or none, within the limits. Others are looked at more closely;
        so are trees, by `_read_trees`.
        """
        drafts, counts, limits = plan.drafts, plan.counts, self.limits
        if len(counts) != rows:
            return False
        if len(drafts) == 0:
            return len(plan.tokens) + len(plan.draft_parents) == 0 and bool((counts == 1).all())
        total = len(plan.tokens)
        return (
            len(drafts) == rows
            and bool((counts == drafts + 1).all())
            and 0 < total == int(drafts.sum())
            and total <= limits.max_step_drafts
            and (self.states is None or total <= self.states.free)
            and rows + total <= limits.max_step_tokens
            and int(plan.tokens.max()) < limits.vocab_size
        )

    def went_on(self) -> None:
        """Plans were taken over by somebody else, who has written what these columns are now."""
        self._last = None

    def settle(self, slots: I64, rejected: I64) -> None:
        """Of the last step: so many drafts of these slots' rows were not accepted."""
        self.filled[slots] -= rejected
        last = self._last
        if last is not None:
            if last.planned is last.ends:
                last.planned = last.ends.copy()
            last.ends = self.filled[last.plan.slots]
        if self.states is not None:
            self.states.settle(slots, rejected)

    def _settle_states(self, plan: Plan, states: StatePlaces, continuing: Bools) -> None:
        """Where the router knows better than this worker how many drafts of a row were accepted, as in the stages before the last, the
        position of the next row says it. Raises BadPlan where a row would need another state than its slot can have.
        """
        rejected = self.filled[plan.slots] - plan.positions
        for row in np.flatnonzero(np.where(continuing, rejected > 0, rejected != 0)).tolist():
            slot = int(plan.slots[row])
            if not (continuing[row] and states.can_reject(slot, int(rejected[row]))):
                raise BadPlan(
                    f"positions: row {row} begins at {plan.positions[row]}, but slot {slot} has fed {self.filled[slot]} tokens, and "
                    "its recurrent state cannot be rewound"
                )
        states.settle(plan.slots, np.maximum(rejected, 0))
        self.filled[plan.slots] -= np.maximum(rejected, 0)

    def _check_drafts(self, plan: Plan) -> None:
        drafts, flags = plan.drafts, plan.flags
        if len(drafts) != len(plan.slots):
            raise BadPlan(f"drafts: {len(drafts)} entries for {len(plan.slots)} rows")
        if (drafts >= plan.counts).any():
            row = int(np.argmax(drafts >= plan.counts))
            raise BadPlan(f"drafts: row {row} feeds {plan.counts[row]} tokens, {drafts[row]} of them drafts")
        total = int(drafts.sum())
        if total > self.limits.max_step_drafts:
            raise BadPlan(f"drafts: {total}, but max_step_drafts is {self.limits.max_step_drafts}")
        verifying = drafts > 0
        own = (flags & OWN_DRAFTS) != 0
        if own.any() and not self.limits.has_drafter:
            raise BadPlan("flags: a row has OWN_DRAFTS, and this worker has no draft model")
        if (own & (((flags & CONTINUE) == 0) | ((flags & MASKED) != 0) | ~verifying)).any():
            raise BadPlan("flags: a row has OWN_DRAFTS without CONTINUE or drafts, or with MASKED")
        if (verifying & ((flags & SAMPLE) == 0)).any():
            raise BadPlan("drafts: a row that does not sample has some")
        if (verifying & ((flags & PROMPT_LOGPROBS) != 0)).any():
            raise BadPlan("drafts: a row with PROMPT_LOGPROBS has some")
        if self.limits.has_state and (plan.counts > drafts + 1)[verifying].any():
            raise BadPlan(
                "drafts: a row of a model with recurrent state feeds more than one token before them"
            )

    def _read_trees(self, plan: Plan) -> None:
        """Which rows have drafts that are no chain. Raises BadPlan where they cannot be verified."""
        parents, drafts, flags = plan.draft_parents, plan.drafts, plan.flags
        if not self.limits.draft_trees:
            raise BadPlan("draft_parents: this worker verifies no drafts but chains")
        if len(parents) != int(drafts.sum()):
            raise BadPlan(f"draft_parents: {len(parents)} entries, but the rows have {drafts.sum()} drafts")
        rows = np.repeat(np.arange(len(drafts)), drafts)
        numbers = np.arange(len(rows)) - (np.cumsum(drafts) - drafts)[rows] + 1
        if (parents >= numbers).any():
            at = int(np.argmax(parents >= numbers))
            raise BadPlan(
                f"draft_parents: draft {numbers[at]} of row {rows[at]} follows draft {parents[at]}, which does not come before it"
            )
        plan.trees = draft_trees(drafts, parents)
        if plan.trees is None:
            return
        trees = plan.trees.are_trees_R
        longest = int(plan.trees.deepest_R[trees].max())
        if longest > LONGEST_PATH:
            raise BadPlan(
                f"draft_parents: a path of {longest} drafts in a tree, and the longest is {LONGEST_PATH}"
            )
        if (plan.counts[trees] != 1 + drafts[trees]).any():
            raise BadPlan(
                "draft_parents: a row whose drafts are a tree feeds more than one token before them"
            )
        if (flags[trees] & (MASKED | OWN_DRAFTS)).any():
            raise BadPlan("draft_parents: a row with MASKED or OWN_DRAFTS has drafts that are a tree")
        given = plan.counts - ((flags & CONTINUE) != 0) - np.where((flags & OWN_DRAFTS) != 0, drafts, 0)
        ends = np.cumsum(given)
        for row in np.flatnonzero(trees).tolist():
            tokens = plan.tokens[ends[row] - drafts[row] : ends[row]].tolist()
            guesses = set(zip(parents[rows == row].tolist(), tokens, strict=True))
            if len(guesses) < len(tokens):
                raise BadPlan(
                    f"draft_parents: two drafts of row {row} are the same token behind the same one"
                )

    def _start_encoders(self, plan: Plan, starts: I64) -> None:
        counts = plan.starts.encoder_counts if plan.starts is not None else ()
        wanted = len(starts) if self.limits.has_encoder else 0
        if len(counts) != wanted:
            what = "an encoder-decoder" if self.limits.has_encoder else "a decoder"
            raise BadPlan(
                f"starts.encoder_counts: {len(counts)} entries, but {len(starts)} rows of {what} start"
            )
        self.encoder_counts[starts] = counts if wanted else 0
        if wanted and int(self.encoder_counts[starts].min()) < 1:
            raise BadPlan("starts.encoder_counts: an encoder reads no token")

    def _check_sources(self, plan: Plan, positions: I64) -> None:
        """With which snapshots the states of starting rows begin, at these positions."""
        sources = plan.starts.state_sources if plan.starts is not None else np.zeros(0, np.uint32)
        wanted = len(positions) if self.limits.has_state else 0
        if len(sources) != wanted:
            what = "a recurrent state" if self.limits.has_state else "no recurrent state"
            raise BadPlan(
                f"starts.state_sources: {len(sources)} entries, but {len(positions)} rows of a model with {what} start"
            )
        if not wanted:
            return
        given = sources != NO_SNAPSHOT
        _below("starts.state_sources", sources[given], self.limits.snapshots, "snapshots")
        if (given != (positions > 0)).any():
            at = int(positions[given != (positions > 0)][0])
            why = "without a snapshot" if at else "with a snapshot, which is of a later one"
            raise BadPlan(f"starts.state_sources: a row starts at position {at} {why}")

    def _take_adapters(self, plan: Plan, starts: I64) -> None:
        """With which adapters starting rows are computed."""
        given = plan.starts.adapters if plan.starts is not None else np.zeros(0, np.uint32)
        most = self.limits.adapters
        if len(given) != (len(starts) if most else 0):
            what = "some adapters" if most else "no adapter"
            raise BadPlan(
                f"starts.adapters: {len(given)} entries, but {len(starts)} rows of a model with {what} start"
            )
        if most:
            _below("starts.adapters", given, most + 1, "adapters, with none")
            self.adapters[starts] = given

    def _check_saves(self, plan: Plan) -> None:
        """Where copies of states are kept."""
        if not self.limits.has_state:
            raise BadPlan(f"saves: {len(plan.saves)} of a model without a recurrent state")
        rows, tokens, snapshots = plan.saves.T
        _below("saves", rows, len(plan.slots), "rows")
        _below("saves", snapshots, self.limits.snapshots, "snapshots")
        if len(np.unique(snapshots)) != len(snapshots):
            raise BadPlan("saves: a snapshot is written twice")
        if int(tokens.min()) < 1 or (tokens > plan.counts[rows]).any():
            at = int(np.argmax((tokens < 1) | (tokens > plan.counts[rows])))
            raise BadPlan(
                f"saves: row {rows[at]} feeds {plan.counts[rows[at]]} tokens, and its state is to be copied behind "
                f"{tokens[at]}"
            )
        falls = (np.diff(rows) < 0) | ((np.diff(rows) == 0) & (np.diff(tokens) <= 0))
        if falls.any():
            raise BadPlan("saves: not ascending by row and tokens")

    def _check_whole(self, plan: Plan, ends: I64) -> None:
        """What an encoder reads, and its padding, is fed by one row."""
        if not self.limits.has_encoder:
            return
        size, slots = self.limits.block_size, plan.slots
        needed = -(-self.encoder_counts[slots] // size) * size
        cut = (plan.positions < needed) & ((plan.positions > 0) | (ends < needed))
        if cut.any():
            row = int(np.argmax(cut))
            raise BadPlan(
                f"positions: row {row} feeds {plan.positions[row]} to {ends[row]}, a part of the "
                f"{needed[row]} positions that its encoder reads at once"
            )
        most = self.limits.max_side_positions
        if most and (int(self.encoder_counts[slots].max()) > most or int((ends - needed).max()) > most):
            raise BadPlan(f"positions: a row ends behind the {most} of encoder or decoder")
        if (plan.flags & PROMPT_LOGPROBS).any():
            raise BadPlan("flags: an encoder-decoder answers no PROMPT_LOGPROBS")
        said = ends - np.maximum(plan.positions, needed)
        before = said - plan.drafts if len(plan.drafts) else said
        silent = ((plan.flags & SAMPLE) != 0) & (before < 1)
        if silent.any():
            row = int(np.argmax(silent))
            raise BadPlan(
                f"flags: row {row} samples, and feeds no token of its decoder but drafts: {max(said[row], 0)} in all"
            )

    def _append_pages(self, plan: Plan) -> None:
        added, slots, tables = plan.new_block_counts, plan.slots, self.limits.tables
        if len(plan.new_pages) != int(added.sum()) * tables.count:
            raise BadPlan(
                f"new_pages: {len(plan.new_pages)} entries, but new_block_counts add up to {added.sum()}, each with "
                f"{tables.count}"
            )
        before = self.block_counts[slots]
        if (before + added > self.width).any():
            slot = int(slots[np.argmax(before + added > self.width)])
            raise BadPlan(
                f"new_pages: slot {slot} gets more than {self.width} blocks, which hold the longest sequence "
                f"of {self.limits.max_sequence_tokens} tokens"
            )
        self.block_counts[slots] = before + added
        if tables.count == 0:
            return
        offsets = np.arange(int(added.sum())) - np.repeat(np.cumsum(added) - added, added)
        pages, blocks = plan.new_pages.reshape(-1, tables.count), np.repeat(before, added) + offsets
        absent = pages == NO_PAGE
        if absent.any():
            self._check_absent(plan, absent, blocks)
            pages = np.where(absent, self.limits.pages, pages)
        _below("new_pages", plan.new_pages[~absent.reshape(-1)], self.limits.pages, "pages")
        self.pages[:, np.repeat(slots, added), blocks] = pages.T

    def _check_copies(self, plan: Plan) -> None:
        _below("copies", plan.copies.reshape(-1), self.limits.pages, "pages")
        starting = np.repeat((plan.flags & START) != 0, plan.new_block_counts * self.limits.tables.count)
        targets = plan.copies[:, 1]
        is_given = np.isin(targets, plan.new_pages[starting])
        if not is_given.all():
            page = int(targets[~is_given][0])
            raise BadPlan(f"copies: page {page} is written, and the plan gives it to no row that starts")

    def _check_absent(self, plan: Plan, absent: Bools, blocks: I64) -> None:
        """`absent` (blocks, tables), and the number of each block in its sequence."""
        tables = self.limits.tables
        is_wrong = absent[:, : tables.full].any()
        for group in tables.windows:
            first = [group.first_read(int(at)) for at in plan.positions]
            is_read = blocks >= np.repeat(first, plan.new_block_counts) // self.limits.block_size
            is_wrong |= absent[is_read, group.first : group.first + group.count].any()
        if is_wrong:
            raise BadPlan("new_pages: a block that is read has no page")


def _below(name: str, column: U32 | I64, bound: int, what: str) -> None:
    if len(column) and int(column.max()) >= bound:
        raise BadPlan(f"{name}: {int(column.max())}, but there are {bound} {what}")


def _check_starts(starts: Starts | None, rows: int, limits: Limits) -> None:
    if starts is None:
        if rows:
            raise BadPlan(f"starts: absent, but {rows} rows start")
        return
    for column in START_COLUMNS:
        entries = len(getattr(starts, column.name))
        if column.ragged_by:
            wanted = int(getattr(starts, column.ragged_by).sum(dtype=np.int64))
            if entries != wanted:
                raise BadPlan(
                    f"starts.{column.name}: {entries} entries, but {column.ragged_by} add up to {wanted}"
                )
        elif entries != rows and not (column.optional and entries == 0):
            raise BadPlan(f"starts.{column.name}: {entries} entries, but {rows} rows start")
    for name, least in (
        ("temperatures", 0.0),
        ("top_ps", 0.0),
        ("typical_ps", 0.0),
        ("min_ps", 0.0),
        ("repetition_penalties", 0.0),
        ("frequency_penalties", -np.inf),
        ("presence_penalties", -np.inf),
        ("watermark_deltas", 0.0),
    ):
        column = getattr(starts, name)
        if not (np.isfinite(column) & (column >= least)).all():
            raise BadPlan(f"starts.{name}: an entry is not a number, infinite or under {least}")
    if (starts.repetition_penalties == 0).any():
        raise BadPlan("starts.repetition_penalties: an entry is 0")
    if rows and int(starts.top_tokens.max()) > MAX_TOP_TOKENS:
        raise BadPlan(f"starts.top_tokens: {int(starts.top_tokens.max())}, but the most is {MAX_TOP_TOKENS}")
    if (starts.history_outputs > starts.history_counts).any():
        raise BadPlan("starts.history_outputs: more than history_counts")
    _below("starts.history", starts.history, limits.vocab_size, "tokens in the vocabulary")
    _below("starts.bias_tokens", starts.bias_tokens, limits.vocab_size, "tokens in the vocabulary")
    if np.isnan(starts.biases).any():
        raise BadPlan("starts.biases: an entry is not a number")
    if ((starts.first_ends == 0) != (starts.end_counts == 0)).any():
        raise BadPlan("starts.end_counts: tokens without first_ends, or first_ends without tokens")
    _below("starts.end_tokens", starts.end_tokens, limits.vocab_size, "tokens in the vocabulary")
    marked = starts.watermark_greens[starts.watermark_deltas > 0]
    if ((marked == 0) | (marked >= limits.vocab_size)).any():
        raise BadPlan(f"starts.watermark_greens: an entry is not between 0 and {limits.vocab_size}")
