"""The KV cache's memory: one array for each place of a page. Made by the engine, written and read by the layers."""

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.engine.arrays import Arrays
from penstock.engine.columns import I64
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.models.layer_cache import LayerCache
from penstock_kernels.program import Array


class KvCache:
    """An array for each place of a page, (N, J, D): rows of pages 0 .. pages - 1, one page of zeros, and one that nobody reads.

    Layers whose pages are in different tables share an array: they never have the same page.
    """

    def __init__(
        self,
        tables: Tables,
        layers: Sequence[int],
        shape: tuple[int, int],
        arrays: Arrays,
        pages: int,
    ) -> None:
        """`layers`: this rank's, by their number among all that have a cache. `shape`: (J, D)."""
        self.zero_row = pages * BLOCK_SIZE
        self._arrays = arrays
        self.bytes = pages * page_bytes(tables, layers, shape, arrays.itemsize)
        whole = ((pages + 2) * BLOCK_SIZE, *shape)
        places = {place: arrays.pages(*whole) for place in _places(tables, layers)}
        self.layers = [LayerCache(places[tables.of[at][1]], tables.of[at][0]) for at in layers]
        self.tensors_NJD: list[Array] = list(places.values())

    def copy_pages(self, copies: I64) -> None:
        """Copies pages, (source, target) of each (copies, 2), one after the other."""
        places = np.arange(BLOCK_SIZE)
        for some in _apart(copies):
            from_M, to_M = (
                self._arrays.of((pages[:, None] * BLOCK_SIZE + places).reshape(-1)) for pages in some.T
            )
            for tensor_NJD in self.tensors_NJD:
                tensor_NJD[to_M] = tensor_NJD[from_M]

    def move(self, sources: list[I64], targets: list[I64]) -> None:
        """Copies what layers have in some rows, by table, to others; all are read before one is written."""
        from_M, to_M = ([self._arrays.of(rows) for rows in tables] for tables in (sources, targets))
        for layer in self.layers:
            layer.rows_NJD[to_M[layer.table]] = layer.rows_NJD[from_M[layer.table]]


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


def page_bytes(tables: Tables, layers: Sequence[int], shape: tuple[int, int], itemsize: int) -> int:
    """Bytes of a page on a rank that has these layers."""
    return BLOCK_SIZE * len(_places(tables, layers)) * shape[0] * shape[1] * itemsize


def _places(tables: Tables, layers: Sequence[int]) -> list[int]:
    return sorted({tables.of[at][1] for at in layers})
