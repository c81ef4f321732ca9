"""A norm whose result is multiplied with gates that are made of it (A.X K2)."""

from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock_kernels.later import F, Tensor


class GatedNorm(RmsNorm):
    """RMS norm, times sigmoids that two matrices make of what it gives."""

    __slots__ = ("down", "up")

    def __init__(self, norm: RmsNorm, down: Linear, up: Linear) -> None:
        super().__init__(norm.weight_E, norm.eps)
        self.down, self.up = down, up

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        normed_TE = super().__call__(x_TE)
        gates_TE = self.up(F.silu(self.down(normed_TE)))
        return (normed_TE * gates_TE.float().sigmoid()).to(normed_TE.dtype)
