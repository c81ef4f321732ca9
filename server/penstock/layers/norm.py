"""Normalisation layers."""

from torch import Tensor

import penstock_kernels as ops


class RmsNorm:
    """Root mean square normalisation with weight (E,)."""

    __slots__ = ("eps", "weight_E")

    def __init__(self, weight_E: Tensor, eps: float) -> None:
        self.weight_E = weight_E
        self.eps = eps

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        return ops.rms_norm(x_TE, self.weight_E, self.eps)
