"""`few(count)`: of a test with many cases `make test` runs so many, and `make test-all` the rest. Which ones depends on their
parameters alone: tests with the same parameters, and fixtures of them, run the same ones. On a GPU all run, in seconds.

`covered_by(name)`: a case that the test of that name, in the same file, runs in `make test` is left to it, for it proves all that this one
would; `make test-all` runs both.
"""

import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` is looked at."""
    if os.environ.get("PENSTOCK_TEST_DEVICE") == "cuda":
        return
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("tail"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for of_it in tests.values():
        mark = of_it[0].get_closest_marker("few")
        assert mark is not None
        chosen = cover([(item.nodeid.partition("[")[2], values_of(item)) for item in of_it], mark.args[0])
        for place, item in enumerate(of_it):
            if place not in chosen:
                item.add_marker(pytest.mark.tail)
    leave_what_is_covered(items)


def leave_what_is_covered(items: Sequence[pytest.Item]) -> None:
    """Marks as tail what another test runs, of those that are collected: whoever asks for one case alone gets it."""
    run = {item.nodeid for item in items if not item.get_closest_marker("tail")}
    for item in items:
        mark = item.get_closest_marker("covered_by")
        file, _, test = item.nodeid.partition("::")
        if mark is not None and f"{file}::{mark.args[0]}[{test.partition('[')[2]}" in run:
            item.add_marker(pytest.mark.tail)


def values_of(item: Any) -> dict[str, Hashable]:
    """Its parameters; of what has no plain value, the place in its list. A test without parameters is one case."""
    call = getattr(item, "callspec", None)
    if call is None:
        return {}
    plain = (str, int, float, bool, type(None))
    return {
        name: repr(value) if isinstance(value, plain) else call.indices[name]
        for name, value in call.params.items()
    }


def cover(cases: Sequence[tuple[str, Mapping[str, Hashable]]], count: int) -> set[int]:
    """The places of `count` cases, each the one with the most values that none before it has, then the most pairs of
    values; of equals the digest of their names decides, which has nothing to do with what is in them."""
    digests = [hashlib.sha256(name.encode()).digest() for name, _ in cases]
    values = [set(of_it.items()) for _, of_it in cases]
    pairs = [set(itertools.combinations(sorted(of_it.items(), key=repr), 2)) for _, of_it in cases]
    seen_values: set[Any] = set()
    seen_pairs: set[Any] = set()
    left, chosen = set(range(len(cases))), set()
    while left and len(chosen) < count:
        best = max(left, key=lambda n: (len(values[n] - seen_values), len(pairs[n] - seen_pairs), digests[n]))
        left.remove(best)
        chosen.add(best)
        seen_values |= values[best]
        seen_pairs |= pairs[best]
    return chosen
