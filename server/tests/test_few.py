"""Which cases of a test `make test` runs: `conftest.py` of the whole repository."""

import importlib.util
import itertools
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("few", Path(__file__).parents[2] / "conftest.py")
assert SPEC is not None and SPEC.loader is not None
few = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(few)


def table(*sides: int) -> list[tuple[str, dict[str, int]]]:
    rows = itertools.product(*map(range, sides))
    return [("-".join(map(str, row)) + "]", dict(zip("abcdef", row, strict=False))) for row in rows]


@pytest.mark.parametrize("sides", [(2, 3, 4), (12, 4), (4, 2, 4), (2, 2, 2, 2, 5)])
def test_every_value_is_in_as_few_cases_as_have_them(sides: tuple[int, ...]) -> None:
    cases = table(*sides)
    chosen = few.cover(cases, max(sides))
    assert len(chosen) == max(sides)
    for name, side in zip("abcdef", sides, strict=False):
        assert {cases[place][1][name] for place in chosen} == set(range(side)), name


def test_pairs_come_next() -> None:
    cases = table(3, 3)
    assert len(few.cover(cases, 9)) == 9 == len(few.cover(cases, 20))
    cases = table(2, 2, 2)
    chosen = [cases[place][1] for place in few.cover(cases, 4)]
    assert len({(case["a"], case["b"]) for case in chosen}) >= 3


def test_the_order_of_the_cases_decides_nothing() -> None:
    cases = table(4, 2, 4)
    chosen = {cases[place][0] for place in few.cover(cases, 6)}
    assert {cases[::-1][place][0] for place in few.cover(cases[::-1], 6)} == chosen
