"""Normalisation layers."""

import penstock_kernels as ops
from penstock.layers.module import Module
from penstock.parallel.group import TensorGroup
from penstock_kernels.later import Tensor, torch


class RmsNorm(Module):
    """Root mean square normalisation with weight (E,) or None."""

    __slots__ = ("eps", "weight_E")

    def __init__(self, weight_E: Tensor | None, eps: float) -> None:
        self.weight_E = weight_E
        self.eps = eps

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(..., E) to (..., E)."""
        return ops.rms_norm(x_TE, self.weight_E, self.eps)


class SharedRmsNorm(RmsNorm):
    """The same where the ranks hold neighbouring parts of E, with weight (E / ranks,)."""

    __slots__ = ("group", "width")

    def __init__(self, weight_E: Tensor, eps: float, width: int, group: TensorGroup) -> None:
        super().__init__(weight_E, eps)
        self.width = width
        self.group = group

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(T, E / ranks) to (T, E / ranks)."""
        assert self.weight_E is not None
        long_TE = x_TE.float()
        squares_T1 = self.group.all_reduce(long_TE.square().sum(-1, keepdim=True))
        scaled_TE = long_TE * torch.rsqrt(squares_T1 / self.width + self.eps)
        return (scaled_TE * self.weight_E.float()).to(x_TE.dtype)


class LayerNorm(Module):
    """Normalisation to mean 0 and variance 1, with weight and bias (E,) or None."""

    __slots__ = ("bias_E", "eps", "weight_E")

    def __init__(self, weight_E: Tensor | None, bias_E: Tensor | None, eps: float) -> None:
        self.weight_E = weight_E
        self.bias_E = bias_E
        self.eps = eps

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(..., E) to (..., E)."""
        return ops.layer_norm(x_TE, self.weight_E, self.bias_E, self.eps)


class HeadsLayerNorm(LayerNorm):
    """Layer normalisation of each head by itself, with weights (H, D) of its own for each head."""

    __slots__ = ()

    def __call__(self, x_THD: Tensor) -> Tensor:
        """(T, H, D) to (T, H, D)."""
        normed_THD = ops.layer_norm(x_THD, None, None, self.eps)
        if self.weight_E is not None:
            normed_THD = normed_THD * self.weight_E
        return normed_THD if self.bias_E is None else normed_THD + self.bias_E


Norm = RmsNorm | LayerNorm
