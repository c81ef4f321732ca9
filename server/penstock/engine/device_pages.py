"""The slots' block tables on a GPU, whose attention reads pages where they are. Made by the engine's step maker.

A table for all slots stays there, and a step sends the blocks that are new. Behind the slots is one more, with a page of its own, that
nobody reads: rows that fill up a graph write there.
"""

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64
from penstock.engine.plan import Plan
from penstock.engine.slots import SlotTable
from penstock.models.config import Window
from penstock_kernels.gpu.pieces import Pieces


class DevicePages:
    """Pages (tables, slots + 1, width) int32."""

    def __init__(self, slots: SlotTable, spare_page: int, device: torch.device) -> None:
        """`spare_page`: of the slot behind all."""
        self.slots, self.device = slots, device
        tables, count, width = slots.pages.shape
        self.pages_BSW = torch.zeros((tables, count + 1, width), dtype=torch.int32, device=device)
        self.pages_BSW[:, count] = spare_page
        self.spare_slot = count

    def follow(self, plan: Plan) -> None:
        """Takes over what a plan has added, which `SlotTable.apply` has accepted."""
        added = plan.new_block_counts
        total = int(added.sum())
        if not total:
            return
        tables, _, width = self.pages_BSW.shape
        slots = np.repeat(plan.slots, added)
        ends = np.cumsum(added)
        offsets = np.arange(total) - np.repeat(ends - added, added)
        blocks = np.repeat(self.slots.block_counts[plan.slots] - added, added) + offsets
        places = slots * width + blocks + np.arange(tables)[:, None] * ((self.spare_slot + 1) * width)
        sent = np.stack((places.reshape(-1), self.slots.pages[:, slots, blocks].reshape(-1)))
        places_M, pages_M = torch.from_numpy(sent).to(self.device, non_blocking=True)
        self.pages_BSW.view(-1).index_copy_(0, places_M, pages_M.to(torch.int32))


def make_pieces(
    slots_P: I64,
    positions_P: I64,
    firsts_P: I64,
    counts_P: I64,
    decodes: int,
    pages: DevicePages,
    block_size: int,
) -> Pieces:
    """Of a step, in the first table and without a window. `firsts_P`: where each begins among the step's tokens."""
    before_P = np.zeros_like(counts_P)
    before_P[decodes + 1 :] = np.cumsum(counts_P[decodes:-1])
    columns = np.stack((slots_P, positions_P, firsts_P, counts_P, np.roll(before_P, -decodes))).astype(
        np.int32
    )
    on_device = torch.from_numpy(columns).to(pages.device, non_blocking=True)
    slots, positions, firsts, counts, before = on_device
    queries = int(counts_P[decodes:].sum())
    return Pieces(pages.pages_BSW[0], block_size, slots, positions, firsts, counts, before, decodes, queries)


def seen_through(pieces: Pieces, window: Window | None, pages_SW: Tensor) -> Pieces:
    """The same pieces in another table, through a window."""
    size, chunked = (0, False) if window is None else (window.size, window.chunked)
    return Pieces(
        pages_SW,
        pieces.block_size,
        pieces.slots_P,
        pieces.positions_P,
        pieces.firsts_P,
        pieces.counts_P,
        pieces.before_P,
        pieces.decodes,
        pieces.queries,
        size,
        chunked,
    )


def attentions(
    pieces: Pieces,
    pages: DevicePages,
    windows: tuple[Window | None, ...],
    views: tuple[tuple[int, int], ...],
) -> list[list[ops.AttentionMetadata | None]]:
    """Of all views (window, table), by window and table."""
    made: list[list[ops.AttentionMetadata | None]] = [[None] * len(pages.pages_BSW) for _ in windows]
    for window, table in views:
        seen = seen_through(pieces, windows[window], pages.pages_BSW[table])
        made[window][table] = ops.AttentionMetadata(pieces=seen)
    return made
