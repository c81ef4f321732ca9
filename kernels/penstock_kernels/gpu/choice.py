"""Whether Triton kernels compute an operation."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

VARIABLE = "PENSTOCK_GPU_KERNELS"  # "none": plain torch computes everything


@cache
def available() -> bool:
    """Whether there are such kernels in this process."""
    return os.environ.get(VARIABLE) != "none" and find_spec("triton") is not None


def has_kernels(device: Any) -> bool:
    """Whether they may compute on this device of torch's."""
    return bool(device.type == "cuda") and available()


def usable(tensor: Any) -> bool:
    """Whether what computes with this tensor may be such a kernel."""
    return bool(tensor.is_cuda) and available()
