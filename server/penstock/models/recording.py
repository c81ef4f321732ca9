"""What is kept of a decoder that the CPU engine runs: made by `recorder`, or found in the packed cache. Must not import torch."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.models.config import Temperature
from penstock_kernels.later import Tensor
from penstock_kernels.program import TENSORS, Operation, Program
from penstock_kernels.tensors import host


@dataclass
class Recording:
    """A program whose tensors are numpy's once the model is recorded, and which of its operations rotate by which of the model's tables,
    or scale queries by position: those numbers follow from the longest sequence."""

    program: Program
    rotations: list[tuple[Operation, int]] = field(default_factory=list)
    temperatures: list[tuple[Operation, Temperature]] = field(default_factory=list)
    # Of the model's tables, by number, and by the longest sequence where they depend on it, else by 0: the angle per position of each
    # plane, and what cos and sin are multiplied with. What was asked for once is kept: numpy's powers differ in the last bit from one version to another.
    frequencies: dict[tuple[int, int], tuple[npt.NDArray[np.float32], float]] = field(default_factory=dict)


def in_numpy(recording: Recording) -> Recording:
    """The same with its tensors in numpy."""
    # Two operations may read one tensor; none of them is let go of before all are seen, so that no other gets its identity.
    held = {id(tensor): tensor for tensor in recording.program.tensors()}
    known = {identity: host(tensor) for identity, tensor in held.items()}
    for operation in recording.program.operations:
        for name in TENSORS:
            tensor: Tensor | None = getattr(operation, name)
            if tensor is not None:
                setattr(operation, name, known[id(tensor)])
    return recording
