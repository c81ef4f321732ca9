"""A step's result does not wait for the step after it, on an accelerator that does its work in order.

There is none here: the device of these tests computes on the CPU, but does its copies and reaches its marks only when
somebody waits for them.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE, make_plan, row, u32
from driver import Driver
from penstock.engine.arrays import Event
from penstock.engine.torch_arrays import TorchArrays


class Mark:
    """A place in the queue."""

    def __init__(self, device: "InOrder") -> None:
        self.device, self.is_reached = device, False

    def query(self) -> bool:
        return self.is_reached

    def synchronize(self) -> None:
        while not self.is_reached:
            self.device.queue.popleft()()


class InOrder(TorchArrays):
    """A queue of copies and marks."""

    def __init__(self) -> None:
        super().__init__(torch.float32, torch.device("cpu"))
        self.queue: deque[Callable[[], None]] = deque()

    def to_host(self, tensor: Tensor) -> Tensor:
        host = torch.full_like(tensor, 1) if tensor.dtype == torch.bool else torch.full_like(tensor, 77)

        def copy() -> None:
            with torch.inference_mode():
                host.copy_(tensor)

        self.queue.append(copy)
        return host

    def mark(self) -> Event:
        mark = Mark(self)

        def reach() -> None:
            mark.is_reached = True

        self.queue.append(reach)
        return mark


@pytest.mark.skipif(DEVICE != "cpu", reason="its device is made up")
def test_finishing_a_step_does_not_wait_for_the_next(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    plans: list[list[dict[str, Any]]] = [
        [
            row(0, [5, 6, 7], 0, [0], start={"top_tokens": 3}),
            row(1, [9, 8], 0, [1], start={"top_tokens": 2, "temperature": 1.0}, targets=[8, 3]),
        ],
        [row(0, None, 3), row(1, None, 2)],
        [row(0, None, 4), row(1, None, 3)],
    ]
    plain, driver = Driver(folder), Driver(folder)
    wanted = [plain.step(rows) for rows in plans]
    device = driver.engine.arrays = InOrder()
    read = [
        driver.reader.read(driver.numbering.stamp(make_plan(rows, None, driver.tables))) for rows in plans
    ]
    first = driver.engine.launch(read[0])
    assert not driver.engine.is_done(first)
    second = driver.engine.launch(read[1])
    results = [driver.engine.finish(first)]
    assert driver.engine.is_done(first) and not driver.engine.is_done(second)
    assert device.queue, "the second step's copies were waited for"
    third = driver.engine.launch(read[2])
    results += [driver.engine.finish(second), driver.engine.finish(third)]
    assert not device.queue
    for got, expected in zip(results, wanted, strict=True):
        assert len(got.sampled) == 8 and np.frombuffer(got.sampled, "<u4").max() < 199
        for name in ("sampled", "logprobs", "top_tokens", "top_logprobs", "prompt_logprobs", "errors"):
            assert getattr(got, name) == getattr(expected, name), name
    assert results[0].top_tokens != u32([77] * 5)
