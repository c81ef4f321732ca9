"""The KV cache's memory: one tensor for each place of a page. Made by the engine, written and read by the layers."""

import mmap
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.engine.plan import I64
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.models.step import LayerCache


class KvCache:
    """A tensor for each place of a page, (N, J, D): rows of pages 0 .. pages - 1, then one page of zeros.

    Layers whose pages are in different tables share a tensor: they never have the same page.
    """

    def __init__(
        self,
        tables: Tables,
        layers: Sequence[int],
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        pages: int,
    ) -> None:
        """`layers`: this rank's, by their number among all that have a cache. `shape`: (J, D)."""
        self.zero_row = pages * BLOCK_SIZE
        self.bytes = pages * page_bytes(tables, layers, shape, dtype)
        whole = ((pages + 1) * BLOCK_SIZE, *shape)
        places = {place: _zeros(whole, dtype, device) for place in _places(tables, layers)}
        self.layers = [LayerCache(places[tables.of[at][1]], tables.of[at][0]) for at in layers]
        self.tensors_NJD: list[Tensor] = list(places.values())

    def copy_pages(self, copies: I64) -> None:
        """Copies pages, (source, target) of each (copies, 2), one after the other."""
        device = self.tensors_NJD[0].device
        places = np.arange(BLOCK_SIZE)
        for some in _apart(copies):
            from_M, to_M = (
                torch.from_numpy((pages[:, None] * BLOCK_SIZE + places).reshape(-1)).to(
                    device, non_blocking=True
                )
                for pages in some.T
            )
            for tensor_NJD in self.tensors_NJD:
                tensor_NJD.index_copy_(0, to_M, tensor_NJD.index_select(0, from_M))

    def move(self, sources: list[I64], targets: list[I64]) -> None:
        """Copies what layers have in some rows, by table, to others; all are read before one is written."""
        device = self.tensors_NJD[0].device
        from_M, to_M = (
            [torch.from_numpy(rows).to(device, non_blocking=True) for rows in tables]
            for tables in (sources, targets)
        )
        for layer in self.layers:
            rows_MJD = layer.rows_NJD.index_select(0, from_M[layer.table])
            layer.rows_NJD.index_copy_(0, to_M[layer.table], rows_MJD)


def _apart(copies: I64) -> Iterator[I64]:
    """The copies in groups that may run at once: none reads or writes what one before it in its group has written."""
    begin = 0
    written: set[int] = set()
    for at, (source, target) in enumerate(copies.tolist()):
        if source in written or target in written:
            yield copies[begin:at]
            begin, written = at, set()
        written.add(target)
    if len(copies) > begin:
        yield copies[begin:]


def numbers_of(cached_layers: Sequence[int | None]) -> list[int]:
    """Those of `ModelConfig.cached_layers` that have a cache."""
    return [number for number in cached_layers if number is not None]


def page_bytes(tables: Tables, layers: Sequence[int], shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Bytes of a page on a rank that has these layers."""
    return BLOCK_SIZE * len(_places(tables, layers)) * shape[0] * shape[1] * dtype.itemsize


def _places(tables: Tables, layers: Sequence[int]) -> list[int]:
    return sorted({tables.of[at][1] for at in layers})


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Fresh pages of the kernel are zeros, and are taken only when first written.
    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
