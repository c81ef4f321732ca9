"""Whether Triton kernels compute an operation."""

import os
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VARIABLE = "PENSTOCK_GPU_KERNELS"  # "none": plain torch computes everything
GRAPHS = "PENSTOCK_GPU_GRAPHS"  # "none": steps are not recorded as CUDA graphs
# Triton's: where it keeps what it has compiled, and the folder below which it does so where nobody says.
CACHE, HOME = "TRITON_CACHE_DIR", "TRITON_HOME"

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
    unwritable_cache()
    from triton.runtime import driver

    try:
        driver.active.utils  # noqa: B018 - builds what launches kernels
    except OSError as error:
        return f"Triton cannot build what launches them in {os.environ.get(CACHE) or 'its cache'} ({error})"
    except Exception as error:  # whatever a compiler, or the lack of one, ends with
        return (
            f"Triton cannot build what launches them, which takes a C compiler and Python's headers ({error})"
        )
    return None


@cache
def unwritable_cache() -> str | None:
    """The folder in which Triton was to keep what it compiles, and cannot, and why: a fresh one has taken its place for this process. Triton
    writes there before it looks for what is there. None: it can.
    """
    named = os.environ.get(CACHE)
    home = os.environ.get(HOME) or os.path.expanduser("~")
    folder = Path(named) if named else Path(home, ".triton", "cache")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            return None
    except OSError as error:
        try:
            os.environ[CACHE] = tempfile.mkdtemp(prefix="penstock-triton-")
        except OSError:  # nothing can be written anywhere: `why_not` says it
            return None
        return f"{folder} ({error.strerror or error})"


def has_kernels(device: Any) -> bool:
    """Whether they may compute on this device of torch's."""
    return bool(device.type == "cuda") and why_not() is None


def may_record_graphs() -> bool:
    """Whether steps may be recorded as CUDA graphs where kernels attend."""
    return os.environ.get(GRAPHS) != "none"


def usable(tensor: Any) -> bool:
    """Whether what computes with this tensor may be such a kernel."""
    return bool(tensor.is_cuda) and why_not() is None
