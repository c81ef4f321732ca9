"""Of what a file's tensors become those that a recipe asks for. Must not import torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A tensor that lies in the file as it is asked for, or nearly so: rows are as they are stored, each decoded by itself."""

    tensor: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """As it is asked for."""
    place: int | None = None
    """Which of the first dimension of what is stored (an expert of a stack) it is; None: it is the whole."""
    rows: slice | None = None
    """Which rows of what is stored; None: all of them."""
    row_order: Order | None = None
    """Of each row, which one of those it is (the heads' rows of queries and keys, where the converter has changed their order); None: in
    their order. Of a tensor of one dimension these are its numbers."""
    column_order: Order | None = None
    """The same of columns."""
    change: Callable[[F32], F32] | None = None
    """What is done to the numbers, each by itself."""


@dataclass(frozen=True)
class Made:
    """A tensor that is made of several, all of which are decoded for it: small, or rare."""

    parts: tuple[str, ...]
    """Their names in the file."""
    shape: tuple[int, ...]
    make: Callable[..., F32]
    """Of the parts in fp32, each in the shape that the file says, the outermost dimension first."""
    is_stack: bool = False
    """Each of the first dimension, an expert, is made of what its parts have of that one."""


Layout = Mapping[str, Part | Made]
"""By the names that recipes ask for: those of the model's safetensors files."""
