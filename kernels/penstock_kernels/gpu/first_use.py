"""What a kernel gives beside what its definition gives, looked at once in a process before it is used: for kernels that no GPU of ours ran.
Where they differ, a line says so and torch computes the operation from then on.
"""

import warnings
from collections.abc import Callable, Hashable

import torch

LARGEST_ERROR = 1e-3  # of the largest number
_agree: dict[Hashable, bool] = {}


def agrees(kernel: str, shape: Hashable, error: Callable[[], float]) -> bool:
    """Whether this kernel is right for this shape, by the relative error that the call finds. Not looked at while a graph is captured."""
    if (kernel, shape) in _agree:
        return _agree[kernel, shape]
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    try:
        found = error()
        why = "" if found <= LARGEST_ERROR else f"its error is {found:.1e} of the largest number"
    except Exception as fault:  # whatever a compiler or a driver ends with
        why = f"it fails ({type(fault).__name__}: {fault})"
    if why:
        warnings.warn(f"GPU kernel {kernel} of {shape}: {why}; torch computes it", stacklevel=2)
    _agree[kernel, shape] = not why
    return not why


def relative_error(ours: torch.Tensor, defined: torch.Tensor) -> float:
    """The largest difference, by the largest number."""
    return float((ours - defined).abs().max() / defined.abs().max().clamp(min=1e-30))
