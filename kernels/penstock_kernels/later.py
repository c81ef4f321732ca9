"""Torch for modules whose functions need it and whose import does not: `from penstock_kernels.later import F, Tensor, torch`. It is
imported when something of it is first asked for, so that a decoder can be made, and given to the CPU engine, where torch is not installed.
Annotations that name something of `torch` have to stay text (`from __future__ import annotations`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["F", "Tensor", "torch"]

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:

    class _Later:
        """A module."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)  # asked of this no more
            return value

    torch, F, Tensor = _Later("torch"), _Later("torch.nn.functional"), Any
