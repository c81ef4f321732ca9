"""Activations that have parameters."""

import penstock_kernels as ops
from penstock.layers.module import Module
from penstock_kernels import tensors
from penstock_kernels.later import Tensor


class Xielu(Module):
    """See `ops.xielu`. The parameters are numbers of one layer."""

    __slots__ = ("alpha_n", "alpha_p", "beta", "eps")

    def __init__(self, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> None:
        self.alpha_p, self.alpha_n, self.beta, self.eps = alpha_p, alpha_n, beta, eps

    def __call__(self, x_TF: Tensor) -> Tensor:
        """(T, F) to (T, F)."""
        return ops.xielu(x_TF, self.alpha_p, self.alpha_n, self.beta, self.eps)

    @property
    def factors(self) -> dict[str, float]:
        """As operations of the CPU engine name them: of x^2 above 0, of what is below, of x, and the most that is raised to."""
        beta = float(self.beta)
        return {
            "alpha": float(tensors.softplus(self.alpha_p.float())),
            "lowest": beta + float(tensors.softplus(self.alpha_n.float())),
            "scale": beta,
            "limit": float(self.eps),
        }
