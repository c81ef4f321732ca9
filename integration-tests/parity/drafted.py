"""A text with drafts, right and wrong, beside another sequence, and the same text without. Used by tests of families and of the fallback."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from models import ids

if TYPE_CHECKING:
    from driver import Driver

TOKENS = 24
LENGTH = 37


def same_with_drafts(driver: Driver, vocabulary: int) -> None:
    """Fails where a draft changes a text, its own or another's, or where not as many are accepted as are right."""
    from client import row, sampled

    prompt, other = ids(vocabulary, 1, LENGTH), ids(vocabulary, 2, LENGTH)
    expected: list[int] = []
    beside: list[int] = []
    rows = [row(0, prompt, 0, list(range(6)), start={}), row(1, other, 0, list(range(6, 12)), start={})]
    for position in range(LENGTH, LENGTH + TOKENS):
        one, two = sampled(driver.step(rows))
        expected.append(one)
        beside.append(two)
        rows = [row(0, None, position), row(1, None, position)]
    driver.begin()
    rng = Random(5)
    found = sampled(driver.step([row(0, prompt, 0, list(range(6)), start={})]))
    seen: list[int] = []
    while len(found) < TOKENS - 6:
        drafts = expected[len(found) : len(found) + rng.randrange(6)]
        right = len(drafts)
        if drafts and rng.random() < 0.6:
            right = rng.randrange(len(drafts))
            drafts[right] = (drafts[right] + 1) % vocabulary
        rows = [row(0, None, LENGTH + len(found) - 1, drafts=drafts)]
        if not seen:
            rows.insert(0, row(1, other, 0, list(range(6, 12)), start={}))
        elif len(seen) < TOKENS:
            rows.append(row(1, None, LENGTH + len(seen) - 1))
        told = sampled(driver.step(rows))
        if not seen:
            seen.append(told.pop(0))
        elif len(rows) == 2:
            seen.append(told.pop())
        assert len(told) == right + 1
        found += told
    assert found == expected[: len(found)] and seen == beside[: len(seen)]
