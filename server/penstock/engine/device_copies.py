"""From columns that the host makes to what a device computes with: used by whoever makes the metadata of a step."""

import torch
from torch import Tensor

from penstock.engine.columns import Column

# Bytes that a driver takes along with the command. For more of pageable memory it may wait for the device first.
AT_ONCE = 1 << 16


def to_device(column: Column, device: torch.device) -> Tensor:
    """The column on the device, without waiting for what that computes; on a CPU the same memory."""
    tensor = torch.from_numpy(column)
    if device.type == "cpu":
        return tensor
    if tensor.nbytes > AT_ONCE:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def rounded(keys: int) -> int:
    """Up to a multiple of 32, and at most an eighth more: a product of a new shape is set up anew in 0.3 ms."""
    step = max(32, 1 << max(keys.bit_length() - 4, 0))
    return -(-keys // step) * step
