"""Arrays of torch on one device, and what a step computed brought to the host without waiting for the step after it.

Made by the engine where the CPU engine does not run the model. On an accelerator work is done in the order in which it was given: a copy
that is asked for once the next step was launched comes behind that step. So copies are queued with the step that they belong to, and an
event behind them says that all have arrived.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor

from penstock.engine.arrays import Event, fresh_memory
from penstock.engine.device_copies import to_device


class TorchArrays:
    """See Arrays."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of activations."""
        self.dtype, self.device = dtype, device
        self.itemsize = dtype.itemsize
        self._aside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def of(self, column: Any) -> Tensor:
        """See Arrays."""
        return to_device(column, self.device)

    def empty(self, *shape: int) -> Tensor:
        """See Arrays."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """See Arrays."""
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def pages(self, *shape: int) -> Tensor:
        """See Arrays."""
        if self.device.type != "cpu" or not prod(shape):
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        memory = fresh_memory(prod(shape) * self.itemsize)
        return torch.frombuffer(memory, dtype=self.dtype, count=prod(shape)).view(shape)

    def states(self, *shape: int, is_fp32: bool) -> Tensor:
        """See Arrays."""
        return torch.zeros(shape, dtype=torch.float32 if is_fp32 else self.dtype, device=self.device)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """See Arrays."""
        return torch.cat(tuple(parts))

    def to_host(self, array: Tensor) -> Tensor:
        """See Arrays."""
        if self.device.type == "cpu":
            return array
        # Only into pinned memory does a copy not make the host wait.
        host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
        return host.copy_(array, non_blocking=True)

    def mark(self) -> Event | None:
        """See Arrays."""
        if self.device.type != "cuda":
            return None
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[attr-defined]
        return event

    def computing(self) -> AbstractContextManager[Any]:
        """See Arrays."""
        return torch.inference_mode()

    def check(self) -> None:
        """See Arrays. On a GPU it does not queue up behind a step, which may be waiting for another rank."""
        with nullcontext() if self._aside is None else torch.cuda.stream(self._aside):
            if int(torch.arange(4, device=self.device).sum()) != 6:
                raise RuntimeError("the device cannot add")
