"""Matrices of the model. Several that read the same input are one: their rows one after another."""

from torch import Tensor

import penstock_kernels as ops


class Linear:
    """x W^T + b with W (O, I) and b (O,) or None."""

    __slots__ = ("bias_O", "weight_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight_OI = weight_OI
        self.bias_O = bias_O

    def __call__(self, x_TI: Tensor) -> Tensor:
        """(T, I) to (T, O)."""
        return ops.linear(x_TI, self.weight_OI, self.bias_O)

    def add_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + x W^T + b, in the residual's memory."""
        return ops.linear_add(x_TI, self.weight_OI, self.bias_O, residual_TO)
