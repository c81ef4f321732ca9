"""What --dtype and --device stand for to torch. Asked by the worker, and by the doctor where there may be an accelerator."""

import warnings
from collections.abc import Callable

import torch

from penstock.errors import UnusableModel
from penstock.loading.host import may_have_accelerator
from penstock.loading.model_files import DTYPE_NAMES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


def gpu_of(rank: int) -> int:
    """Which of its host's GPUs a rank takes where each host has ranks behind one another, one for each GPU, and as many as the others."""
    return rank % max(torch.cuda.device_count(), 1)


def _why_no_gpu() -> str | None:
    """Why torch sees no GPU, as far as it says so, which it does once in a process and in a Python warning; None: it sees one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    builds = (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip))
    built_for = next((f"{name} {version}" for name, version in builds if version), "CPUs alone")
    said = [str(one.message).partition("(Triggered internally")[0] for one in caught]
    return ": ".join([f"it is built for {built_for}", *(" ".join(one.split()) for one in said[:1])])


def device_of(wanted: str, rank: int = 0, tell: Callable[[str], None] = lambda _: None) -> torch.device:
    """What --device stands for: rank r takes the r-th of the visible GPUs unless one is named. `tell` hears of a GPU that may be there and is not
    taken, for torch does not see it. Raises UnusableModel.
    """
    why = None if wanted == "cpu" else _why_no_gpu()
    if wanted == "auto":
        wanted = "cuda" if why is None else "cpu"
        if why is not None and may_have_accelerator():
            tell(f"this machine has a GPU's driver, and torch sees no GPU: {why}; the CPU serves")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        index = rank if device.index is None else device.index
        count = torch.cuda.device_count() if why is None else 0
        if device.index is None and 0 < count <= index:
            raise UnusableModel(
                f"--num-shard, --pipeline-parallel: each part needs a GPU, and {count} are visible here; "
                "--device cuda:N names one"
            )
        if index >= count:
            seen = "" if why is None else f" that torch sees: {why}"
            raise UnusableModel(f"--device: there is no {wanted} on this machine{seen}")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N")
    return device
