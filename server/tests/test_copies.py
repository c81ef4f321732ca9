"""Copies of pages: a sequence begins within a block of another one, as if it had computed what is before."""

from typing import Any

import numpy as np
import pytest
import torch

import checkpoints
from client import make_plan, row, sampled, u32
from driver import Driver
from penstock import tiny
from penstock.engine.kv_cache import KvCache
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.engine.torch_arrays import TorchArrays
from penstock.errors import BadPlan

PROMPT = [(7 * at) % 190 + 3 for at in range(27)]
CHOICE: dict[str, Any] = {"temperatures": 0.9, "seeds": 7}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config()))


def one_by_one(driver: Driver, start: dict[str, Any], tokens: int = 20) -> list[int]:
    driver.begin()
    text = sampled(driver.step([row(0, PROMPT, 0, [0, 1, 2], start=start)]))
    while len(text) < tokens:
        text += sampled(driver.step([row(0, None, len(PROMPT) + len(text) - 1)]))
    return text


@pytest.mark.parametrize("native", [False, True], ids=["torch", "cpu engine"])
def test_choices_go_on_apart_from_a_copied_block(native: bool, driver: Driver) -> None:
    """The first writes to its block in the step that copies it, and each copy is written to by its own sequence."""
    if native:
        driver = Driver(tiny.MODEL, torch.bfloat16)
        if driver.engine.native is None:
            pytest.skip("there is no CPU engine here")
    first, second, third = (one_by_one(driver, {**CHOICE, "seeds": seed}) for seed in (1, 2, 3))
    driver.begin()
    texts = [sampled(driver.step([row(0, PROMPT, 0, [0, 1, 2], start={**CHOICE, "seeds": 1})])), [], []]
    last = len(PROMPT) - 1
    rows = [
        row(0, None, len(PROMPT)),
        row(1, PROMPT[last:], last, [0, 3, 4], start={**CHOICE, "seeds": 2}),
        row(2, PROMPT[last:], last, [0, 5, 6], start={**CHOICE, "seeds": 3}),
    ]
    while len(texts[2]) < 19:
        copies = [] if texts[1] else [(1, 3), (3, 5)]
        for text, token in zip(texts, sampled(driver.step(rows, copies=copies)), strict=True):
            text.append(token)
        rows = [row(slot, None, len(PROMPT) + len(text) - 1) for slot, text in enumerate(texts)]
    assert [text[:19] for text in texts] == [first[:19], second[:19], third[:19]]


BAD = {
    "a source that is not there": ([100, 3], "copies: 100, but there are 64 pages"),
    "a target that is not there": ([1, 100], "copies: 100, but there are 64 pages"),
    "a target of nobody": ([1, 9], "copies: page 9 is written, and the plan gives it to no row that starts"),
    "a target of a row that goes on": (
        [1, 8],
        "copies: page 8 is written, and the plan gives it to no row that starts",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_copy_is_refused_by_field(name: str, driver: Driver) -> None:
    copies, why = BAD[name]
    driver.begin()
    driver.step([row(0, PROMPT, 0, [0, 1], start={})])
    rows = [row(0, None, len(PROMPT), [8]), row(1, PROMPT[26:], 26, [0, 3], start={})]
    plan = make_plan(rows, None, driver.tables)
    plan.copies = u32(copies)
    with pytest.raises(BadPlan, match=rf"^{why}"):
        driver.execute(driver.numbering.stamp(plan))


def test_copies_without_rows_and_half_a_copy_are_refused(driver: Driver) -> None:
    for rows, copies, why in (
        ([], u32([1, 3]), "copies: some, in a plan without rows"),
        (
            [row(0, PROMPT, 0, [0, 1], start={})],
            u32([1]),
            "copies: 4 bytes are no whole number of 8-byte elements",
        ),
    ):
        driver.begin()
        plan = make_plan(rows, None, driver.tables)
        plan.copies = copies
        with pytest.raises(BadPlan, match=rf"^{why}"):
            driver.execute(driver.numbering.stamp(plan))


def test_copies_run_one_after_the_other() -> None:
    tables = Tables(1, (), ((0, 0), (0, 1)))
    cache = KvCache(tables, [0, 1], (2, 4), TorchArrays(torch.float32, torch.device("cpu")), 6)
    for place, tensor_NJD in enumerate(cache.tensors_NJD):
        for page in range(6):
            tensor_NJD[page * BLOCK_SIZE : (page + 1) * BLOCK_SIZE] = 10 * place + page
    # The second reads what the first wrote, the third writes what the second read, the fourth writes it again.
    cache.copy_pages(np.array([(0, 1), (1, 2), (3, 1), (4, 1), (5, 5)]))
    for place, tensor_NJD in enumerate(cache.tensors_NJD):
        held = [int(tensor_NJD[page * BLOCK_SIZE : (page + 1) * BLOCK_SIZE].mean()) for page in range(6)]
        assert held == [10 * place + page for page in (0, 4, 0, 3, 4, 5)]
