"""The slots' block tables on a GPU, whose attention reads pages where they are. Made by the engine's step maker.

A table for all slots stays there, and a step sends the blocks that are new. Behind the slots is one more, with a page of its own, that
nobody reads: rows that fill up a graph write there.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I32, I64
from penstock.engine.device_copies import to_device
from penstock.engine.plan import Plan
from penstock.engine.slots import SlotTable
from penstock.engine.tables import BLOCK_SIZE
from penstock.models.config import Window
from penstock.models.model import ModelConfig
from penstock_kernels.gpu.choice import has_kernels
from penstock_kernels.gpu.pieces import Pieces


def reads_pages(config: ModelConfig, device: torch.device, exact: bool) -> bool:
    """Whether a kernel attends to pages in the steps of this model, unless it is a draft model. Otherwise torch gathers keys, and what a
    step takes is another thing: whoever plans its memory asks this, too.
    """
    in_groups = config.chooses_keys or config.has_distances or config.compressions or config.has_encoder
    return not (exact or in_groups) and has_kernels(device)


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
        places_M, pages_M = to_device(sent, self.device)
        self.pages_BSW.view(-1).index_copy_(0, places_M, pages_M.to(torch.int32))


@dataclass(frozen=True, slots=True)
class HostPieces:
    """Columns of `Pieces` on the host."""

    columns_5P: I32
    decodes: int
    queries: int

    def on_device(self, pages: DevicePages) -> Pieces:
        """In the first table and without a window."""
        return pieces_of(
            to_device(self.columns_5P, pages.device),
            self.decodes,
            self.queries,
            pages,
        )


def host_pieces(slots_P: I64, positions_P: I64, counts_P: I64, decodes: int) -> HostPieces:
    """Of pieces in the order of a step's tokens, which begin with theirs; the first `decodes` have one token each."""
    firsts_P = np.cumsum(counts_P) - counts_P
    columns = np.stack((slots_P, positions_P, firsts_P, counts_P, np.roll(firsts_P - decodes, -decodes)))
    return HostPieces(columns.astype(np.int32), decodes, int(counts_P[decodes:].sum()))


def pieces_of(columns_5P: Tensor, decodes: int, queries: int, pages: DevicePages) -> Pieces:
    """From columns on the device, in the first table and without a window."""
    first = pages.pages_BSW[0] if len(pages.pages_BSW) else columns_5P
    return Pieces(first, BLOCK_SIZE, columns_5P, decodes, queries)


def seen_through(pieces: Pieces, window: Window | None, pages_SW: Tensor) -> Pieces:
    """The same pieces in another table, through a window."""
    if window is None:
        return replace(pieces, pages_SW=pages_SW)
    return replace(pieces, pages_SW=pages_SW, window=window.size, chunked=window.chunked)


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
