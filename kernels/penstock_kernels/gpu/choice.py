"""Whether Triton kernels compute an operation."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

VARIABLE = "PENSTOCK_GPU_KERNELS"  # "none": plain torch computes everything

# Of NVIDIA's, the first that has all they ask for: A100, RTX 30.
OLDEST = (8, 0)


@cache
def available() -> bool:
    """Whether there are such kernels for this process' GPU."""
    if os.environ.get(VARIABLE) == "none" or find_spec("triton") is None:
        return False
    import torch

    return torch.version.hip is None and torch.cuda.get_device_capability() >= OLDEST


def has_kernels(device: Any) -> bool:
    """Whether they may compute on this device of torch's."""
    return bool(device.type == "cuda") and available()


def usable(tensor: Any) -> bool:
    """Whether what computes with this tensor may be such a kernel."""
    return bool(tensor.is_cuda) and available()
