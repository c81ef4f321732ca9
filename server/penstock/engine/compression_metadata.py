"""Which entries of a compressed cache each token of a step attends to, which the step finishes, and where they lie.

Made once per step on the host. An entry lies where its last token does, so that a sequence's block table says where, and who
shares a block shares the entries in it.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64
from penstock.engine.device_copies import rounded, to_device
from penstock.models.recurrent_config import Compression


@dataclass(frozen=True)
class EntryRows:
    """Where a model's entries may lie."""

    pages: I64  # (tables, slots, blocks); entries are in the first table
    block_size: int
    zero_row: int
    exact: bool
    dtype: torch.dtype  # of masks
    device: torch.device

    def of(self, compression: Compression, slots: I64, entries: I64) -> I64:
        """Rows of entries, numbered in each sequence: slots and entries of one shape."""
        tokens = (entries + 1) * compression.rate - 1
        pages = self.pages[0, slots, np.minimum(tokens // self.block_size, self.pages.shape[2] - 1)]
        found: I64 = (pages * self.block_size + tokens % self.block_size) // compression.row
        return found


def make_compression_metadata(
    compression: Compression | None,
    singles: list[int],
    slots_T: I64,
    states: ops.StateMetadata,
    positions_T: I64,
    rows: EntryRows,
) -> ops.CompressionMetadata:
    """Of a step whose first tokens are single ones, in rectangles of `singles` of them, and then runs. `slots_T`: of each token.
    `compression` None: tokens attend to no entries.
    """
    attention = ops.AttentionMetadata(rows.exact)
    begin = 0
    for count in singles:
        here = slice(begin, begin + count)
        attention.few.append(_few(compression, here, slots_T[here], positions_T[here], rows))
        begin += count
    for run in states.runs:
        slot = slots_T[run.begin : run.begin + 1]
        attention.chunks.append(_chunk(compression, run, slot, positions_T[run.begin : run.end], rows))
    starts, slots, entries = [], [], []
    if compression is not None:
        finishes_T = (positions_T + 1) % compression.rate == 0
        at_S = np.flatnonzero(finishes_T[:begin])
        starts.append(at_S * compression.reads)
        slots.append(slots_T[at_S])
        entries.append(positions_T[at_S] // compression.rate)
        for run in states.runs:
            at = np.flatnonzero(finishes_T[run.begin : run.end])
            starts.append(at)
            slots.append(slots_T[run.begin + at])
            entries.append(positions_T[run.begin + at] // compression.rate)
    none = np.zeros(0, np.int64)
    entries_M, slots_M = np.concatenate((none, *entries)), np.concatenate((none, *slots))
    positions_M = rows_M = none
    if compression is not None:
        positions_M, rows_M = entries_M * compression.rate, rows.of(compression, slots_M, entries_M)
    return ops.CompressionMetadata(
        attention,
        starts=[to_device(of_M, rows.device) for of_M in starts],
        rows_M=to_device(rows_M, rows.device),
        positions_M=to_device(positions_M, rows.device),
        is_first_M=to_device(entries_M == 0, rows.device),
    )


def _few(
    compression: Compression | None, here: slice, slots_S: I64, positions_S: I64, rows: EntryRows
) -> ops.FewGroup:
    seen_S = _seen(compression, positions_S)
    keys = rounded(int(seen_S.max())) if seen_S.any() else 0
    mask = None
    if keys > seen_S.min():
        mask = _mask(seen_S[:, None], keys, rows).view(len(slots_S), 1, 1, keys)
    return ops.FewGroup(here.start, here.stop, keys, _mapping(compression, slots_S, seen_S, keys, rows), mask)


def _chunk(
    compression: Compression | None, run: ops.Run, slot_1: I64, positions_Q: I64, rows: EntryRows
) -> ops.ChunkGroup:
    seen_Q = _seen(compression, positions_Q)
    keys = rounded(int(seen_Q[-1])) if seen_Q[-1] else 0
    return ops.ChunkGroup(
        begin=run.begin,
        end=run.end,
        sequences=1,
        queries=len(positions_Q),
        keys=keys,
        slot_mapping_SL=_mapping(compression, slot_1, seen_Q[-1:], keys, rows),
        mask_S1QL=None,
        causal=False,
        spread_SQ=None,
        gather_T=None,
        make_mask=partial(_chunk_mask, seen_Q, keys, rows) if keys else None,
    )


def _seen(compression: Compression | None, positions: I64) -> I64:
    """Entries that queries at these positions see: the first of their sequences, as many as are finished."""
    return np.zeros_like(positions) if compression is None else (positions + 1) // compression.rate


def _mapping(
    compression: Compression | None, slots_S: I64, seen_S: I64, keys: int, rows: EntryRows
) -> Tensor:
    """(S * L,): the rows of entries, and of those not seen the row of zeros."""
    if compression is None or not keys:
        return to_device(np.zeros(0, np.int64), rows.device)
    numbers_SL = np.broadcast_to(np.arange(keys), (len(slots_S), keys))
    found_SL = rows.of(compression, slots_S[:, None], numbers_SL)
    zero = rows.zero_row // compression.row
    return to_device(np.where(numbers_SL < seen_S[:, None], found_SL, zero).reshape(-1), rows.device)


def _chunk_mask(seen_Q: I64, keys: int, rows: EntryRows, sequences: slice, queries: slice) -> Tensor:
    return _mask(seen_Q[None, queries], keys, rows).unsqueeze(1)


def _mask(seen_SQ: I64, keys: int, rows: EntryRows) -> Tensor:
    """(S, Q, L): 0 of entries that are seen, -inf of others."""
    unseen_SQL = np.arange(keys) >= seen_SQ[..., None]
    mask_SQL = torch.zeros(unseen_SQL.shape, dtype=rows.dtype, device=rows.device)
    return mask_SQL.masked_fill_(to_device(unseen_SQL, rows.device), -torch.inf)
