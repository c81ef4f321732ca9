"""Where the numbers of a step are, and how they come to the host: in numpy for a model that the CPU engine runs, else in torch.

Made by the engine, which indexes both alike; `torch_arrays` is the other kind. Must not import torch.
"""

import errno
import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, Protocol

import numpy as np

from penstock_kernels.program import Array

# What the CPU engine reads and writes as bf16 is so much of an array of numpy, which has no such numbers.
BF16 = np.uint16


class Event(Protocol):
    """A place in an accelerator's queue."""

    def query(self) -> bool:
        """Whether all before it is done."""

    def synchronize(self) -> None:
        """Waits until all before it is done."""


class Arrays(Protocol):
    """Makes arrays of one kind at one place."""

    itemsize: int
    """Bytes of an activation."""

    def of(self, column: Any) -> Array:
        """A column of a plan there, without waiting for what is computed; on a CPU the same memory."""

    def empty(self, *shape: int) -> Array:
        """Of fp32."""

    def zeros(self, *shape: int) -> Array:
        """Of int64."""

    def pages(self, *shape: int) -> Array:
        """Activations, all zeros; on a CPU memory is taken when it is first written."""

    def states(self, *shape: int, is_fp32: bool) -> Array:
        """Zeros of fp32, or of the dtype of activations."""

    def join(self, parts: Sequence[Array]) -> Array:
        """One after the other."""

    def to_host(self, array: Array) -> Array:
        """The array on the host, with its numbers once a later `mark` was reached; on a CPU the array itself."""

    def mark(self) -> Event | None:
        """An event behind all that was asked for; None where that is done already."""

    def computing(self) -> AbstractContextManager[Any]:
        """Around all that is computed."""

    def check(self) -> None:
        """A tiny computation. Raises when it gives a wrong answer."""


class HostArrays:
    """Of numpy, for the CPU engine: a step is over when its call returns."""

    itemsize = np.dtype(BF16).itemsize

    def of(self, column: Any) -> Array:
        """See Arrays."""
        return column

    def empty(self, *shape: int) -> Array:
        """See Arrays."""
        return np.empty(shape, np.float32)

    def zeros(self, *shape: int) -> Array:
        """See Arrays."""
        return np.zeros(shape, np.int64)

    def pages(self, *shape: int) -> Array:
        """See Arrays."""
        return self._aligned(np.dtype(BF16), shape)

    def states(self, *shape: int, is_fp32: bool) -> Array:
        """See Arrays."""
        return self._aligned(np.dtype(np.float32 if is_fp32 else BF16), shape)

    def _aligned(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Zeros from the beginning of a page of memory on."""
        count = prod(shape)
        if count == 0:
            return np.zeros(shape, dtype)
        return np.frombuffer(fresh_memory(count * dtype.itemsize), dtype, count).reshape(shape)

    def join(self, parts: Sequence[Array]) -> Array:
        """See Arrays."""
        return np.concatenate(parts)

    def to_host(self, array: Array) -> Array:
        """See Arrays."""
        return array

    def mark(self) -> None:
        """See Arrays."""

    def computing(self) -> AbstractContextManager[Any]:
        """See Arrays."""
        return nullcontext()

    def check(self) -> None:
        """See Arrays."""
        if int(np.arange(4).sum()) != 6:
            raise RuntimeError("the processor cannot add")


def fresh_memory(size: int) -> mmap.mmap:
    """Zeros: fresh pages of the kernel, which are taken only when first written. Raises MemoryError."""
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(
            f"the system refuses {size >> 20} MiB (ulimit -v, or vm.overcommit_memory 2, may bound what a process maps); "
            "lower --max-batch-total-tokens, --max-total-tokens, --max-batch-size or --memory-fraction"
        ) from error
