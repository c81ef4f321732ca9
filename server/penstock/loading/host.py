"""What a worker without torch computes on, and in: said as torch says it, where messages and accounts ask. Must not import torch."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Processor:
    """Where the CPU engine computes."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


@dataclass(frozen=True)
class BFloat16:
    """What the CPU engine takes activations and caches to be."""

    itemsize: int = 2

    def __str__(self) -> str:
        return "bfloat16"


# Where ROCm's driver shows its devices.
ROCM = Path("/dev/kfd")


def may_have_accelerator() -> bool:
    """Whether torch might find one: it needs the driver's library, or ROCm's device. That there is one only torch can say."""
    if ROCM.exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def threads_of(wanted: int) -> int:
    """What --threads stands for."""
    return wanted or len(os.sched_getaffinity(0))
