"""How the KV cache is divided: which layers keep a block of tokens in the same page, and which give theirs back.

A page holds a block of tokens for some layers. Layers that attend to every earlier token need all blocks of a sequence;
layers with a window only the blocks inside of it. So each sequence has tables of pages for each of these groups of layers,
and all pages are of one size: what one group gives back, another one may take. Used by Prepare, by the
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

# Windows that have tables of their own: as many as the router knows. Further ones are in those of the widest.
MOST_WINDOWS = 4


@dataclass(frozen=True)
class WindowTables:
    """The tables of layers with the same window, `first` to `first + count - 1` of all."""

    window: "Window"
    first: int
    count: int

    def first_read(self, position: int) -> int:
        """The first token that the one at `position`, or any after it, sees through the window."""
        if self.window.chunked:
            return position // self.window.size * self.window.size
        return max(position + 1 - self.window.size, 0)


@dataclass(frozen=True)
class Tables:
    """Of a whole model, over all ranks: the same on each."""

    full: int  # tables of layers without a window; they come first
    windows: tuple[WindowTables, ...]
    of: tuple[
        tuple[int, int], ...
    ]  # of each layer with a cache: its table, and its place in the pages of that

    @property
    def count(self) -> int:
        """Pages of a block."""
        return self.full + sum(tables.count for tables in self.windows)

    @property
    def places(self) -> int:
        """Layers that a page has room for."""
        return max((place for _, place in self.of), default=-1) + 1

    def pages(self, tokens: int, chunk: int = 1) -> int:
        """The most pages that a sequence of `tokens` needs, when at most `chunk` tokens are fed in a step."""
        blocks = -(-tokens // BLOCK_SIZE)
        pages = self.full * blocks
        for tables in self.windows:
            pages += tables.count * min(blocks, -(-(tables.window.size + chunk) // BLOCK_SIZE) + 1)
        return pages


ONE_TABLE = Tables(1, (), ())


def divide(windows: Sequence["Window | None"], longest: int) -> Tables:
    """Tables for layers with these windows, where no sequence has more than `longest` tokens. No layer has a cache: no tables."""
    if not windows:
        return Tables(0, (), ())
    cut = [None if window is None or window.size >= longest else window for window in windows]
    # The widest comes last; a window sees all that a chunk of its size does.
    kinds = sorted(
        {window for window in cut if window is not None}, key=lambda window: (window.size, not window.chunked)
    )
    groups: list[Window | None] = [None, *kinds[: MOST_WINDOWS - 1]]
    further = kinds[MOST_WINDOWS - 1 :]
    if further:
        widest = further[-1]
        groups.append(widest if len(further) == 1 else type(widest)(widest.size))
    number_of = {window: min(at, MOST_WINDOWS) for at, window in enumerate([None, *kinds])}
    numbers = [number_of[window] for window in cut]
    sizes = [numbers.count(number) for number in range(len(groups))]
    places = _places(sizes)
    counts = [-(-size // places) for size in sizes]
    firsts = [sum(counts[:number]) for number in range(len(groups))]
    of, taken = [], [0] * len(groups)
    for number in numbers:
        # Neighbours are in the same place of different tables: a stage of a pipeline has all layers of a place.
        place, table = divmod(taken[number], counts[number])
        of.append((firsts[number] + table, place))
        taken[number] += 1
    window_tables = [
        WindowTables(window, first, count)
        for window, first, count in zip(groups, firsts, counts, strict=True)
        if window is not None
    ]
    return Tables(counts[0], tuple(window_tables), tuple(of))


def _places(sizes: Sequence[int]) -> int:
    """Layers of a page, for groups of so many."""
    layers = sum(sizes)
    if max(sizes) == layers:
        return layers

    def cost(places: int) -> float:
        tables = sum(-(-size // places) for size in sizes)
        return (tables * places - layers) / layers + tables * TABLE  # places that no layer takes, and tables

    return min(range(1, layers + 1), key=cost)
