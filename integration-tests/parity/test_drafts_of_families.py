"""Drafts of every family with recurrent layers, and of one whose key heads choose blocks: with them a text is the one without, on torch in fp32
and on the CPU engine in bf16.
"""

from pathlib import Path
from random import Random

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from families import FAMILIES, vocabulary_of
from models import ids, make
from recurrent_families import RECURRENT

TOKENS = 24
LENGTH = 37


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", (*RECURRENT, "DeepSeek V4", "DeepSeek V4, other rates", "MiniMax M3"))
def test_a_text_is_the_same_with_drafts_right_and_wrong(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    from client import row, sampled
    from driver import Driver

    config = FAMILIES[family]
    folder, prompt = make(tmp_path, config), ids(vocabulary_of(config), 1, LENGTH)
    driver = Driver(folder, dtype)
    if dtype != torch.float32 and driver.engine.native is None:
        pytest.skip("in bf16 torch's sums depend on the batch")
    other = ids(vocabulary_of(config), 2, LENGTH)
    expected: list[int] = []
    rows = [row(0, prompt, 0, list(range(6)), start={}), row(1, other, 0, list(range(6, 12)), start={})]
    beside: list[int] = []
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
            drafts[right] = (drafts[right] + 1) % vocabulary_of(config)
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
