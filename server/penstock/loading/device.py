"""What --dtype and --device stand for to torch. Asked by the worker, and by the doctor where there may be an accelerator."""

import torch

from penstock.errors import UnusableModel
from penstock.loading.model_files import DTYPE_NAMES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


def gpu_of(rank: int) -> int:
    """Which of its host's GPUs a rank takes where each host has ranks behind one another, one for each GPU, and as many as the others."""
    return rank % max(torch.cuda.device_count(), 1)


def device_of(wanted: str, rank: int = 0) -> torch.device:
    """What --device stands for: rank r takes the r-th of the visible GPUs unless one is named. Raises UnusableModel."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        index = rank if device.index is None else device.index
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.index is None and 0 < count <= index:
            raise UnusableModel(
                f"--num-shard, --pipeline-parallel: each part needs a GPU, and {count} are visible here; "
                "--device cuda:N names one"
            )
        if index >= count:
            raise UnusableModel(f"--device: there is no {wanted} on this machine")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N")
    return device
