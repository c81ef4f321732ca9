"""Whether Triton kernels compute an operation."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

VARIABLE = "PENSTOCK_GPU_KERNELS"  # "none": plain torch computes everything

# Of NVIDIA's, the first that has all they ask for: A100, RTX 30.
OLDEST = (8, 0)


@cache
def why_not() -> str | None:
    """Why there are none for this process' GPU; None: there are."""
    if os.environ.get(VARIABLE) == "none":
        return f"{VARIABLE}=none"
    if find_spec("triton") is None:
        return "Triton is not installed"
    import torch

    if torch.version.hip is not None:
        return "they are made for NVIDIA's GPUs"
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        return f"the GPU's compute capability is {capability[0]}.{capability[1]}, and they need {OLDEST[0]}.{OLDEST[1]}"
    from triton.runtime import driver

    try:
        driver.active.utils  # noqa: B018 - builds what launches kernels
    except Exception as error:  # whatever a compiler, or the lack of one, ends with
        return (
            f"Triton cannot build what launches them, which takes a C compiler and Python's headers ({error})"
        )
    return None


def has_kernels(device: Any) -> bool:
    """Whether they may compute on this device of torch's."""
    return bool(device.type == "cuda") and why_not() is None


def usable(tensor: Any) -> bool:
    """Whether what computes with this tensor may be such a kernel."""
    return bool(tensor.is_cuda) and why_not() is None
