"""How the KV cache is divided: which layers keep a block of tokens in the same page, and which give theirs back.

A page holds a block of tokens for some layers. Layers that attend to every earlier token need all blocks of a sequence;
layers with a window only the blocks inside the window. So each sequence has tables of pages of both kinds,
and all pages are of one size: what one kind of layer gives back, the other kind may take. Used by Prepare, by the
slots, and by the doctor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.models.config import Window

BLOCK_SIZE = 16

# What one table more is worth, in index tensors of each step: this share of the cache's memory.
TABLE = 0.02


@dataclass(frozen=True)
class Tables:
    """Of a whole model, over all ranks: the same on each."""

    full: int  # tables of layers without a window; they come first
    windowed: int
    window: "Window | None"  # of the windowed tables, the widest of their layers
    of: tuple[
        tuple[int, int], ...
    ]  # of each layer with a cache: its table, and its place in the pages of that

    @property
    def count(self) -> int:
        """Pages of a block."""
        return self.full + self.windowed

    @property
    def places(self) -> int:
        """Layers that a page has room for."""
        return max((place for _, place in self.of), default=-1) + 1

    def first_read(self, position: int) -> int:
        """The first token that the one at `position`, or any after it, sees through the window."""
        assert self.window is not None, "asked of windowed tables only"
        if self.window.chunked:
            return position // self.window.size * self.window.size
        return max(position + 1 - self.window.size, 0)

    def pages(self, tokens: int, chunk: int = 1) -> int:
        """The most pages that a sequence of `tokens` needs, when at most `chunk` tokens are fed in a step."""
        blocks = -(-tokens // BLOCK_SIZE)
        if self.window is None:
            return self.full * blocks
        reached = -(-(self.window.size + chunk) // BLOCK_SIZE) + 1
        return self.full * blocks + self.windowed * min(blocks, reached)


ONE_TABLE = Tables(1, 0, None, ())


def divide(windows: Sequence["Window | None"], longest: int) -> Tables:
    """Tables for layers with these windows, where no sequence has more than `longest` tokens. No layer has a cache: no tables."""
    if not windows:
        return Tables(0, 0, None, ())
    cut = [window is not None and window.size < longest for window in windows]
    kinds = {window for window, is_cut in zip(windows, cut, strict=True) if window is not None and is_cut}
    windowed, layers = sum(cut), len(windows)
    full = layers - windowed
    places = layers
    if full and windowed:

        def cost(size: int) -> float:
            tables = -(-full // size) - (-windowed // size)
            return (
                tables * size - layers
            ) / layers + tables * TABLE  # places that no layer takes, and tables

        places = min(range(1, layers + 1), key=cost)
    full_tables, windowed_tables = -(-full // places), -(-windowed // places)
    of, counts = [], [0, 0]
    for is_cut in cut:
        tables, first = (windowed_tables, full_tables) if is_cut else (full_tables, 0)
        # Neighbours are in the same place of different tables: a stage of a pipeline has all layers of a place.
        place, table = divmod(counts[is_cut], tables)
        of.append((first + table, place))
        counts[is_cut] += 1
    widest = max(kinds, key=lambda window: (window.size, not window.chunked), default=None)
    if widest is not None and len(kinds) > 1:
        widest = type(widest)(widest.size)  # what a chunk sees, a window of its size sees, too
    return Tables(full_tables, windowed_tables, widest, tuple(of))
