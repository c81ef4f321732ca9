"""Which cases of a test `make test` runs: `conftest.py` of the whole repository."""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

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


def test_one_without_parameters_is_run(request: pytest.FixtureRequest) -> None:
    """As a mark of a whole module may have them."""
    assert few.values_of(request.node) == {}
    assert few.cover([("", {})], 1) == {0}


class Case:
    """What is asked of a test that was collected."""

    def __init__(self, nodeid: str, *marks: Any) -> None:
        self.nodeid, self.marks = nodeid, list(marks)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark.mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark)


def test_a_case_that_another_test_of_the_file_runs_is_left_to_it() -> None:
    covered = pytest.mark.covered_by("one")
    others = [Case(f"a.py::other[{name}]", covered) for name in ("x", "y", "z")]
    elsewhere = Case("b.py::other[x]", covered)
    few.leave_what_is_covered(
        [Case("a.py::one[x]"), Case("a.py::one[y]", pytest.mark.tail), *others, elsewhere]
    )
    left = [case.get_closest_marker("tail") is not None for case in (*others, elsewhere)]
    assert left == [True, False, False, False]
