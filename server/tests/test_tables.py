"""How layers are put into pages, and what a sequence needs of them."""

import operator
import random

import numpy as np
import pytest

from penstock.engine.plan import NO_PAGE, SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.tables import Tables, WindowTables, divide
from penstock.errors import BadPlan
from penstock.models.config import Window

SHORT, LONG = Window(1024), Window(4096)
LONGEST = 100_000


def windows_of(tables: Tables) -> list[Window]:
    return [it.window for it in tables.windows]


def test_layers_that_attend_to_everything_share_one_table() -> None:
    tables = divide((None,) * 32, LONGEST)
    assert (tables.full, tables.windows, tables.places) == (1, (), 32)
    assert tables.of == tuple((0, layer) for layer in range(32))
    assert tables.pages(160) == 10


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert divide((LONG,) * 32, 4096) == divide((None,) * 32, 4096)
    assert windows_of(divide((LONG,) * 32, 4097)) == [LONG]


def test_layers_that_all_have_a_window_need_it_alone() -> None:
    tables = divide((LONG,) * 32, LONGEST)
    assert (tables.full, tables.windows, tables.places) == (0, (WindowTables(LONG, 0, 1),), 32)
    assert tables.pages(LONGEST) == 4096 // 16 + 2
    assert tables.pages(160) == 10
    assert tables.pages(LONGEST, chunk=2048) == (4096 + 2048) // 16 + 1


@pytest.mark.parametrize(
    ("full", "windowed", "places", "tables"),
    [
        (13, 13, 13, (1, 1)),  # Gemma 2 2B
        (4, 22, 4, (1, 6)),  # Gemma 3 1B
        (10, 52, 13, (1, 4)),  # Gemma 3 27B
        (8, 24, 8, (1, 3)),  # Command R7B
        (1, 3, 1, (1, 3)),
        (3, 1, 1, (3, 1)),
    ],
)
def test_pages_of_one_size_serve_both_kinds(
    full: int, windowed: int, places: int, tables: tuple[int, int]
) -> None:
    windows = [None] * full + [SHORT] * windowed
    random.Random(0).shuffle(windows)
    made = divide(windows, LONGEST)
    assert ((made.full, made.windows[0].count), made.places) == (tables, places)
    assert len(set(made.of)) == full + windowed, "no two layers have the same rows of a page"
    for (table, _), window in zip(made.of, windows, strict=True):
        assert (table < made.full) == (window is None)


def test_layers_of_a_stage_are_in_few_places() -> None:
    windows = [None if at % 4 == 3 else SHORT for at in range(32)]
    tables = divide(windows, LONGEST)
    assert {place for _, place in tables.of[:16]} == set(range(4))
    assert {place for _, place in tables.of[16:]} == set(range(4, 8))


def test_every_window_has_tables_of_its_own() -> None:
    chunks = Window(8192, chunked=True)
    windows = [None, SHORT, SHORT, chunks, LONG, SHORT, SHORT, chunks]
    tables = divide(windows, LONGEST)
    assert windows_of(tables) == [SHORT, LONG, chunks]
    for (table, _), window in zip(tables.of, windows, strict=True):
        of_window = [it.window for it in tables.windows if it.first <= table < it.first + it.count]
        assert of_window == ([] if window is None else [window])
    assert len(set(tables.of)) == len(windows)
    counts = [it.count for it in tables.windows]
    assert tables.count == tables.full + sum(counts)
    blocks = (1024 // 16 + 2, 4096 // 16 + 2, 8192 // 16 + 2)
    expected = tables.full * -(-LONGEST // 16) + sum(map(operator.mul, counts, blocks))
    assert tables.pages(LONGEST) == expected
    (chunked,) = [it for it in tables.windows if it.window == chunks]
    assert [chunked.first_read(at) for at in (8191, 8192, 16383)] == [0, 8192, 8192]
    (short,) = [it for it in tables.windows if it.window == SHORT]
    assert [short.first_read(at) for at in (1023, 1024)] == [0, 1]


def test_more_windows_than_there_are_tables_for_are_as_wide_as_the_widest() -> None:
    windows = [Window(size) for size in (100, 200, 300, 400, 500)]
    assert windows_of(divide(windows, LONGEST)) == [*windows[:3], windows[4]]
    chunks = [*windows[:4], Window(500, chunked=True)]
    tables = divide(chunks, LONGEST)
    assert windows_of(tables) == [*windows[:3], Window(500)]
    widest = tables.windows[-1]
    assert all(widest.first <= table < widest.first + widest.count for table, _ in tables.of[3:])


def starting_at(position: int, pages: list[int]) -> Plan:
    """A sequence that starts with what the cache has."""
    none = np.zeros(0, np.uint32)
    return Plan(
        number=1,
        released=none,
        slots=np.array([0]),
        flags=np.array([START | SAMPLE], np.uint8),
        positions=np.array([position]),
        counts=np.array([1]),
        tokens=np.array([5], np.uint32),
        new_block_counts=np.array([len(pages) // 2]),
        new_pages=np.array(pages, np.uint32),
        prompt_targets=none,
        starts=greedy_starts(1),
    )


@pytest.mark.parametrize(
    ("position", "pages", "is_good"),
    [
        (48, [0, NO_PAGE, 1, 10, 2, 12, 3, 13], True),  # the token at 48 sees 25 and what follows
        (48, [0, NO_PAGE, 1, NO_PAGE, 2, 12, 3, 13], False),
        (48, [NO_PAGE, 9, 1, 10, 2, 12, 3, 13], False),
        (55, [0, NO_PAGE, 1, NO_PAGE, 2, 12, 3, 13], True),
        (55, [0, NO_PAGE, 1, NO_PAGE, 2, 12, 3, 64], False),
        (48, [0, NO_PAGE, 1, 10, 2, 12, 3], False),
    ],
)
def test_a_block_that_is_read_has_its_pages(position: int, pages: list[int], is_good: bool) -> None:
    tables = divide((None, Window(24)), 160)
    slots = SlotTable(Limits(4, 64, 160, pages=64, block_size=16, vocab_size=99, tables=tables))
    plan = starting_at(position, pages)
    if not is_good:
        with pytest.raises(BadPlan, match=r"^new_(pages|block)"):
            slots.apply(plan)
        return
    slots.apply(plan)
    nothing = 64  # the page of zeros
    assert slots.pages[0, 0, :4].tolist() == [0, 1, 2, 3]
    assert slots.pages[1, 0, :4].tolist() == [nothing if page == NO_PAGE else page for page in pages[1::2]]
