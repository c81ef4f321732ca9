"""What a worker without torch computes on, and in: said as torch says it, where messages and accounts ask. Must not import torch."""

import ctypes
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Processor:
    """Where the CPU engine computes."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


def install_torch() -> str:
    """The command that brings torch to the Python that runs this. Environments that uv has made, such as the checkout's, have no pip."""
    # The lower bound is that of pyproject.toml's `torch`.
    if find_spec("pip") is not None:
        return f"{sys.executable} -m pip install 'torch>=2.8'"
    return f"uv pip install --python {sys.executable} 'torch>=2.8'"


INSTALL_TORCH = install_torch()
NEEDS_TORCH = f" need torch, which is not installed: {INSTALL_TORCH}"

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


def in_bf16(dtype: str, wanted: str) -> str:
    """The dtype that a checkpoint is tried in first, of its own and of what --dtype says: the CPU engine has bf16. Of fp32 that costs digits,
    and is done where nothing is installed that would keep them.
    """
    is_free = wanted == "auto" and (dtype == "float16" or (dtype == "float32" and not has_torch()))
    return "bfloat16" if is_free else dtype


def has_torch() -> bool:
    """Whether torch is installed."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def threads_of(wanted: int) -> int:
    """What --threads stands for. The worker says it to OpenMP, and where none is given it is as OpenMP has it: the first number of a list,
    whose others are for nested parts, and for what is no number all processors.
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return wanted or (int(said) if said.isdecimal() else 0) or len(os.sched_getaffinity(0))
