"""`few(count)`: of a test with many cases `make test` runs so many, and `make test-all` the rest. Which ones depends on their
parameters' names alone: tests with the same parameters, and fixtures of them, run the same ones. On a GPU all run, in seconds.
"""

import os
import zlib
from collections import defaultdict

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` is looked at."""
    if os.environ.get("PENSTOCK_TEST_DEVICE") == "cuda":
        return
    cases: dict[str, list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("tail"):
            test, _, parameters = item.nodeid.partition("[")
            cases[test].append((zlib.crc32(parameters.encode()), item))
    for of_it in cases.values():
        of_it.sort(key=lambda one: one[0])
        mark = of_it[0][1].get_closest_marker("few")
        assert mark is not None
        for _, item in of_it[mark.args[0] :]:
            item.add_marker(pytest.mark.tail)
