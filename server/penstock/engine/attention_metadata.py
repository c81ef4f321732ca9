"""Where each token of a step goes: the order of the flat batch, cache rows, attention groups.

Made once per step on the host, from the plan and the slots; the forward pass then only follows it.
Rows that attend alike are neighbours, so that attention works on rectangles with little padding. Where a kernel
for GPUs attends (`device_pages`), it needs no rectangles: decodes come first, then pieces of prompts as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64, Bools
from penstock.engine.compression_metadata import EntryRows, make_compression_metadata
from penstock.engine.device_copies import rounded, to_device
from penstock.engine.device_pages import HostPieces, host_pieces
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.plan import CONTINUE, PROMPT_LOGPROBS, Plan
from penstock.engine.slots import SlotTable
from penstock.engine.state_metadata import make_state_metadata
from penstock.models.config import Window
from penstock.models.recurrent_config import Compression

# A rectangle may hold this many times the score entries that its rows need, and this many more.
WASTE_FACTOR = 1.5
WASTE_FREE = 4096

# Numbers of keys, over all heads of a rectangle, up to which decodes are attended to by one fused call.
FEW_NUMBERS = 1 << 17

# Queries of a prompt from which torch's own attention is faster on a GPU than one kernel for all.
LONG_PROMPT = 2048

NOTHING_MOVED: I64 = np.zeros((0, 3), np.int64)

# Entries of the masks of a window's chunks that are kept for all layers. Others are made piece by piece by each layer.
KEPT_MASKS = 1 << 22


@dataclass(slots=True)
class StepMetadata:
    """Columns of one step in the order in which the tokens are computed."""

    sources_T: I64  # index into the plan's tokens, followed by the last sampled token of every slot
    slots_T: I64
    positions_T: I64
    slot_mappings: list[I64]  # by table: the cache row (T,) of each token
    # By window and table; None where no layer has both.
    attentions: list[list[ops.AttentionMetadata | None]]
    logits_indices: LogitsIndices
    states: ops.StateMetadata | None = None  # of a model with recurrent layers
    compressions: list[ops.CompressionMetadata] = field(default_factory=list)  # without rotary tables
    # Those of `attentions`, by window and table.
    views: dict[tuple[Window | None, int], ops.AttentionMetadata] = field(default_factory=dict)
    pieces: HostPieces | None = None  # what a kernel for GPUs attends to, in every view


@dataclass(slots=True)
class Pieces:
    """The rows of a plan as attention sees them. A verify row is as many pieces as it has tokens: each attends as the decode
    would that fed it alone, and to the last bit with the same result.
    """

    slots: I64
    positions: I64
    places: I64  # where the cache of its slot has the first token: at its position, but for drafts that are a tree
    counts: I64
    rows: I64  # of the plan
    lasts: I64  # of each row of the plan, its last piece
    # (piece, position, place): what a piece reads for that position, where the cache has it at another place.
    moved: I64


@dataclass(frozen=True)
class Geometry:
    """Of the cache and its device."""

    block_size: int
    zero_row: int  # a cache row that holds zeros
    heads: int  # J: key heads and value heads
    # The model's windows, as in DecoderConfig; None in place of one that no sequence outgrows.
    windows: tuple[Window | None, ...]
    views: tuple[tuple[int, int], ...]  # (window, table) of the model's layers, sorted
    tables: int
    has_state: bool  # some layers are recurrent
    compressions: tuple[Compression | None, ...]  # of the model
    simple: bool  # DecoderConfig.simple_attention: decodes may be DecodeGroups
    exact: bool  # see `ops.paged_attention`
    head_dim: int
    dtype: torch.dtype
    device: torch.device


def make_step_metadata(
    plan: Plan, slots: SlotTable, geometry: Geometry, for_kernel: bool = False, long_prompts: bool = True
) -> StepMetadata:
    """The layout of a plan that `SlotTable.apply` has accepted. `for_kernel`: one for GPUs attends, to all or, with `long_prompts`, to
    what is no long prompt.
    """
    block_size = geometry.block_size
    pieces = _pieces(plan)
    counts, contexts = pieces.counts, pieces.positions + pieces.counts
    make = _Maker(pieces, slots, geometry)
    single = counts == 1
    decodes = np.flatnonzero(single)
    prompts = np.flatnonzero(~single)
    # Keys that drafts of trees read are not all at their positions.
    for_kernel = for_kernel and not len(pieces.moved)
    alone: I64 = prompts[:0]  # prompts that are a group each beside the kernel
    if for_kernel:
        if geometry.simple and long_prompts:
            is_long = (pieces.positions[prompts] == 0) & (counts[prompts] >= LONG_PROMPT)
            prompts, alone = prompts[~is_long], prompts[is_long]
        singles, chunks = [decodes], [prompts, *(alone[i : i + 1] for i in range(len(alone)))]
    else:
        # Tokens of a row stay in their order, in which they advance its state.
        lengths = contexts[pieces.lasts[pieces.rows]] if geometry.has_state else contexts
        singles = list(_decode_rectangles(decodes, lengths[decodes]))
        chunks = list(_chunk_rectangles(prompts, counts, contexts))
    orders = singles + chunks
    order = orders[0] if len(orders) == 1 else np.concatenate(orders)
    longest = int(contexts.max())
    made: dict[tuple[Window | None, int], ops.AttentionMetadata] = {}

    in_pieces = order[: len(decodes) + len(prompts)] if for_kernel else order[:0]
    for window, table in geometry.views:
        # A window that nobody's context has outgrown hides nothing.
        size = geometry.windows[window]
        seen = size if size is not None and longest > size.size else None
        if (seen, table) in made:
            continue
        make.begin(seen, table)
        attention = ops.AttentionMetadata(geometry.exact)
        if for_kernel:
            made[seen, table] = attention
            make.skip(int(counts[in_pieces].sum()))
            attention.chunks = [make.chunk_group(alone[i : i + 1]) for i in range(len(alone))]
            continue
        for rows in singles:
            keys = make.keys(rows)
            numbers = len(rows) * keys * geometry.head_dim * geometry.heads // 2
            if not geometry.simple or numbers <= FEW_NUMBERS:
                attention.few.append(make.few_group(rows, keys))
            else:
                attention.decodes.append(make.decode_group(rows, keys))
        attention.chunks = [make.chunk_group(rows) for rows in chunks]
        made[seen, table] = attention
    attentions: list[list[ops.AttentionMetadata | None]] = [
        [
            made.get((size if size is not None and longest > size.size else None, table))
            for table in range(geometry.tables)
        ]
        for size in geometry.windows
    ]
    counts_in_order = counts[order]
    ends = np.cumsum(counts_in_order)
    rows_T = np.repeat(order, counts_in_order)
    offsets_T = np.arange(int(ends[-1])) - np.repeat(ends - counts_in_order, counts_in_order)
    positions_T, places_T = pieces.positions[rows_T] + offsets_T, pieces.places[rows_T] + offsets_T
    pages = slots.pages[:, pieces.slots[rows_T], places_T // block_size]

    continuing = (plan.flags & CONTINUE) != 0
    # The first token of a row that continues is its slot's, and what follows it are its drafts.
    fed = plan.counts - continuing
    firsts = np.cumsum(fed) - fed - continuing
    plan_rows_T = pieces.rows[rows_T]
    within_T = places_T - plan.positions[plan_rows_T]
    is_sampled_T = continuing[plan_rows_T] & (within_T == 0)
    sources_T = np.where(
        is_sampled_T, len(plan.tokens) + plan.slots[plan_rows_T], firsts[plan_rows_T] + within_T
    )

    last = np.empty(len(order), np.int64)
    last[order] = ends - 1
    sample_rows, behind = sampled_positions(plan)
    last_pieces = pieces.lasts[sample_rows]
    is_split = pieces.counts[last_pieces] < plan.counts[sample_rows]
    sample_tokens = np.where(is_split, last[last_pieces - behind * is_split], last[last_pieces] - behind)
    states = None
    compressions: list[ops.CompressionMetadata] = []
    if geometry.has_state:
        assert slots.states is not None, "they are made for the same model"
        rows_P = pieces.rows[order]
        states = make_state_metadata(
            plan, rows_P, len(decodes), slots.states, geometry.exact, geometry.device
        )
        if geometry.compressions:
            entries = EntryRows(
                slots.pages,
                geometry.block_size,
                geometry.zero_row,
                geometry.exact,
                geometry.dtype,
                geometry.device,
            )
            slots_T = pieces.slots[rows_T]
            compressions = [
                make_compression_metadata(
                    one, [len(rows) for rows in singles], slots_T, states, positions_T, entries
                )
                for one in geometry.compressions
            ]
    prompt_rows = np.flatnonzero(plan.flags & PROMPT_LOGPROBS)
    prompt_counts = plan.counts[prompt_rows]
    first = last[pieces.lasts[prompt_rows]] - prompt_counts + 1
    prompt_offsets = np.arange(int(prompt_counts.sum())) - np.repeat(
        np.cumsum(prompt_counts) - prompt_counts, prompt_counts
    )
    return StepMetadata(
        sources_T=sources_T,
        slots_T=pieces.slots[rows_T],
        positions_T=positions_T,
        slot_mappings=list(pages * block_size + places_T % block_size),
        attentions=attentions,
        logits_indices=LogitsIndices(
            sample_rows=sample_rows,
            sample_tokens=sample_tokens,
            sample_positions=positions_T[sample_tokens] + 1,
            prompt_tokens=np.repeat(first, prompt_counts) + prompt_offsets,
        ),
        states=states,
        compressions=compressions,
        views=made,
        pieces=host_pieces(
            pieces.slots[in_pieces], pieces.positions[in_pieces], counts[in_pieces], len(decodes)
        )
        if len(in_pieces)
        else None,
    )


def _pieces(plan: Plan) -> Pieces:
    every = np.arange(len(plan.slots))
    split = (
        (plan.counts <= plan.drafts + 1) & (plan.drafts > 0) if len(plan.drafts) else np.zeros(0, np.bool_)
    )
    if not split.any():
        return Pieces(plan.slots, plan.positions, plan.positions, plan.counts, every, every, NOTHING_MOVED)
    numbers = np.where(split, plan.counts, 1)
    ends = np.cumsum(numbers)
    rows = np.repeat(every, numbers)
    offsets = np.arange(len(rows)) - np.repeat(ends - numbers, numbers)
    counts = np.where(split, 1, plan.counts)[rows]
    positions = places = plan.positions[rows] + offsets
    moved, trees = NOTHING_MOVED, plan.trees
    if trees is not None:
        firsts = ends - numbers
        are_split = split[trees.rows_D]
        drafts = (firsts[trees.rows_D] + trees.numbers_D)[are_split]
        positions = places.copy()
        positions[drafts] = plan.positions[rows[drafts]] + trees.depths_D[are_split]
        tree_rows, number, depth, other = trees.moved_M4.T
        begins = plan.positions[tree_rows]
        moved = np.stack((firsts[tree_rows] + number, begins + depth, begins + other), 1)
    return Pieces(plan.slots[rows], positions, places, counts, rows, ends - 1, moved)


def continued(last: StepMetadata, last_plan: Plan, plan: Plan, slots: SlotTable, geometry: Geometry) -> bool:
    """Turns the layout of the last step into that of this one, where only one token was added to each row.

    Both plans are steady, and the last step is over: its metadata is changed in place. Returns whether this
    is possible: the same rows in one rectangle that has room for one key more.
    """
    attention = last.attentions[0][0] if geometry.windows == (None,) else None
    if attention is None or len(attention.few) + len(attention.decodes) != 1:
        return False
    group = attention.few[0] if attention.few else attention.decodes[0]
    positions = plan.positions
    if (
        int(positions.max()) >= group.keys
        or not np.array_equal(plan.slots, last_plan.slots)
        or not np.array_equal(positions, last_plan.positions + 1)
    ):
        return False
    rows = np.arange(len(positions))
    pages = slots.pages[0, plan.slots, positions // geometry.block_size]
    slot_mapping = pages * geometry.block_size + positions % geometry.block_size
    group.slot_mapping_SL.numpy().reshape(-1, group.keys)[rows, positions] = slot_mapping
    if isinstance(group, ops.DecodeGroup) and group.heads_JSL is not None:
        heads_JSL = group.heads_JSL.numpy().reshape(geometry.heads, -1, group.keys)
        heads_JSL[:, rows, positions] = slot_mapping * geometry.heads + np.arange(geometry.heads)[:, None]
    mask = group.mask_S11L if isinstance(group, ops.FewGroup) else group.mask_S1L
    if mask is not None:
        mask.view(len(rows), group.keys)[torch.from_numpy(rows), torch.from_numpy(positions)] = 0
    last.positions_T, last.slot_mappings = positions, [slot_mapping]
    last.logits_indices.sample_positions = positions + 1
    return True


def _decode_rectangles(rows: I64, contexts: I64) -> Iterator[I64]:
    if len(rows) == 0:
        return
    if int(contexts.max()) <= 2 * int(contexts.min()) + 64:
        yield rows
        return
    order = np.argsort(-contexts, kind="stable")
    rows, contexts = rows[order], contexts[order]
    begin = 0
    while begin < len(rows):
        # Contexts fall along the rows; the rectangle ends where less than half of it would be used.
        end = int(np.searchsorted(-contexts, -(contexts[begin] - 64) / 2, side="right"))
        end = max(end, begin + 1)
        yield rows[begin:end]
        begin = end


def _chunk_rectangles(rows: I64, counts: I64, contexts: I64) -> Iterator[I64]:
    if len(rows) == 0:
        return
    rows = rows[np.lexsort((-contexts[rows], -counts[rows]))]
    begin, needed, keys = 0, 0, 0
    for end, row in enumerate(rows):
        area = int(counts[row] * contexts[row])
        longest = max(keys, int(contexts[row]))
        padded = int(counts[rows[begin]]) * longest * (end - begin + 1)
        if end > begin and padded > WASTE_FACTOR * (needed + area) + WASTE_FREE:
            yield rows[begin:end]
            begin, needed, longest = end, 0, int(contexts[row])
        needed, keys = needed + area, longest
    yield rows[begin:]


class _Maker:
    """Makes the groups of one window and table after another, in the order of the tokens. Rows are pieces here."""

    def __init__(self, pieces: Pieces, slots: SlotTable, geometry: Geometry) -> None:
        self.pieces = pieces
        self.slots = slots
        self.block_size = geometry.block_size
        self.zero_row = geometry.zero_row
        self.heads = geometry.heads
        self.dtype = geometry.dtype
        self.device = geometry.device
        self.head_keys = ops.gathered_at_once(geometry.device) // max(geometry.head_dim, 1)
        self.window: Window | None = None
        # Of the window's groups, by their first token: the same in every table.
        self.masks: dict[int, Tensor | None] = {}
        self.kept = 0  # entries of the masks of chunks among them

    def begin(self, window: Window | None, table: int) -> None:
        """What follows is for this window, in this table."""
        if window != self.window:
            self.masks.clear()
            self.kept = 0
        self.window = window
        self.pages = self.slots.pages[table]
        self.tokens = 0

    def skip(self, tokens: int) -> None:
        """These tokens are in no group."""
        self.tokens += tokens

    def keys(self, rows: I64) -> int:
        """Keys that decodes of these rows read, rounded up."""
        positions = self.pieces.positions[rows]
        return rounded(int((positions + 1 - self._first(positions)).max()))

    def decode_group(self, rows: I64, keys: int) -> ops.DecodeGroup:
        mask_SL, slot_mapping_SL = self._single(rows, keys)
        heads_JSL = None
        if len(rows) * keys * (self.heads // 2) <= self.head_keys:
            heads_J1 = torch.arange(self.heads, device=self.device).unsqueeze(1)
            heads_JSL = (slot_mapping_SL * self.heads + heads_J1).view(-1)
        return ops.DecodeGroup(
            begin=self._advance(len(rows)),
            end=self.tokens,
            keys=keys,
            slot_mapping_SL=slot_mapping_SL,
            mask_S1L=None if mask_SL is None else mask_SL.view(len(rows), 1, keys),
            heads_JSL=heads_JSL,
        )

    def few_group(self, rows: I64, keys: int) -> ops.FewGroup:
        mask_SL, slot_mapping_SL = self._single(rows, keys)
        return ops.FewGroup(
            begin=self._advance(len(rows)),
            end=self.tokens,
            keys=keys,
            slot_mapping_SL=slot_mapping_SL,
            mask_S11L=None if mask_SL is None else mask_SL.view(len(rows), 1, 1, keys),
        )

    def chunk_group(self, rows: I64) -> ops.ChunkGroup:
        counts, positions = self.pieces.counts[rows], self.pieces.positions[rows]
        contexts = positions + counts
        first = self._first(positions)
        queries, keys = int(counts.max()), int((contexts - first).max())
        spread = gather = None
        causal = (
            self.window is None and queries == keys and bool((contexts == keys).all()) and not positions.any()
        )
        numbers_SL = first[:, None] + np.arange(keys)
        make_mask = None
        if not causal:
            make_mask = partial(self._chunk_mask, rows, numbers_SL, self.window)
        if self.tokens not in self.masks:
            entries = len(rows) * queries * keys
            mask = None
            if make_mask is not None and self.kept + entries <= KEPT_MASKS:
                self.kept += entries
                mask = make_mask(slice(0, len(rows)), slice(0, queries))
            self.masks[self.tokens] = mask
        mask = self.masks[self.tokens]
        if int(counts.min()) < queries:
            begins = np.cumsum(counts) - counts
            within = np.minimum(np.arange(queries), counts[:, None] - 1)
            spread = to_device((begins[:, None] + within).reshape(-1), self.device)
            real = np.arange(queries) < counts[:, None]
            gather = to_device(np.flatnonzero(real.reshape(-1)), self.device)
        slot_mapping = self._slot_mapping(rows, first, keys, numbers_SL < contexts[:, None])
        return ops.ChunkGroup(
            begin=self._advance(int(counts.sum())),
            end=self.tokens,
            sequences=len(rows),
            queries=queries,
            keys=keys,
            slot_mapping_SL=to_device(slot_mapping, self.device).view(-1),
            mask_S1QL=mask,
            causal=causal,
            spread_SQ=spread,
            gather_T=gather,
            make_mask=make_mask if mask is None else None,
        )

    def _chunk_mask(
        self, rows: I64, numbers_SL: I64, window: Window | None, sequences: slice, queries: slice
    ) -> Tensor:
        """The mask (s, 1, q, L) of some queries of some rows. Query i of a row sees the keys up to its own position.
        Queries past the row's end see what the last one sees: they are padding, and must not divide by zero.
        """
        rows, numbers_SL = rows[sequences], numbers_SL[sequences]
        positions, counts = self.pieces.positions[rows, None], self.pieces.counts[rows, None]
        last = positions + np.minimum(np.arange(queries.start, queries.stop), counts - 1)
        hidden = numbers_SL[:, None, :] > last[:, :, None]
        if window is not None:
            hidden |= numbers_SL[:, None, :] < first_seen(window, last)[:, :, None]
        return self._mask(hidden).unsqueeze(1)

    def _first(self, positions: I64) -> I64:
        return first_seen(self.window, positions)

    def _single(self, rows: I64, keys: int) -> tuple[Tensor | None, Tensor]:
        """Of rows with one query each: a mask of `keys` keys (S, L), if one is not seen, and their cache rows, (S * L,)."""
        positions = self.pieces.positions[rows]
        first = self._first(positions)
        seen = np.arange(keys) <= (positions - first)[:, None]
        if self.tokens not in self.masks:
            self.masks[self.tokens] = None if seen.all() else self._mask(~seen)
        return self.masks[self.tokens], to_device(
            self._slot_mapping(rows, first, keys, seen), self.device
        ).view(-1)

    def _advance(self, tokens: int) -> int:
        begin = self.tokens
        self.tokens += tokens
        return begin

    def _slot_mapping(self, rows: I64, first: I64, keys: int, seen: Bools) -> I64:
        """Cache rows (S, L) of the keys from `first` on; of those not seen the row of zeros."""
        size, slots = self.block_size, self.pieces.slots[rows]
        begin = first // size
        count = -(-(keys + size - 1) // size)
        blocks_SB = np.minimum(begin[:, None] + np.arange(count), self.slots.width - 1)
        pages = self.pages[slots[:, None], blocks_SB]
        slot_mapping = (pages[:, :, None] * size + np.arange(size)).reshape(len(rows), -1)
        if first.any():
            slot_mapping = np.take_along_axis(
                slot_mapping, (first - begin * size)[:, None] + np.arange(keys), 1
            )
        if len(self.pieces.moved):
            self._follow_paths(rows, first, slot_mapping)
        return np.where(seen, slot_mapping[:, :keys], self.zero_row)

    def _follow_paths(self, rows: I64, first: I64, slot_mapping: I64) -> None:
        """Puts the cache rows of what drafts of trees follow in the places of their positions."""
        group = np.full(len(self.pieces.slots), -1)
        group[rows] = np.arange(len(rows))
        pieces, positions, places = self.pieces.moved.T
        entries = group[pieces]
        keys = positions - first[entries]
        are_read = (entries >= 0) & (keys >= 0)
        entries, keys, places = entries[are_read], keys[are_read], places[are_read]
        pages = self.pages[self.pieces.slots[rows[entries]], places // self.block_size]
        slot_mapping[entries, keys] = pages * self.block_size + places % self.block_size

    def _mask(self, hidden: Bools) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(to_device(hidden, self.device), -torch.inf)


def first_seen(window: Window | None, positions: I64) -> I64:
    """The first key that queries at these positions see."""
    if window is None:
        return np.zeros_like(positions)
    if window.chunked:
        return positions // window.size * window.size
    return np.maximum(positions + 1 - window.size, 0)
