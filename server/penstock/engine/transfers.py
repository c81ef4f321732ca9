"""Brings what a step computed to the host, without waiting for the step after it.

Used by the engine. On an accelerator work is done in the order in which it was given: a copy that is asked for once the
next step was launched comes behind that step. So copies are queued with the step that they belong to, and an event behind
them says that all have arrived.
"""

from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A place in the accelerator's queue."""

    def query(self) -> bool:
        """Whether all before it is done."""

    def synchronize(self) -> None:
        """Waits until all before it is done."""


class Transfers:
    """Copies to the host from one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_host(self, tensor: Tensor) -> Tensor:
        """The tensor on the host, with its numbers once a later `mark` was reached; on a CPU the tensor itself."""
        if self.device.type == "cpu":
            return tensor
        # Only into pinned memory does a copy not make the host wait.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self) -> Event | None:
        """An event behind all that was asked for; None where that is done already."""
        if self.device.type != "cuda":
            return None
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[attr-defined]
        return event
