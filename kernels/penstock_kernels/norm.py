"""Normalisation of activations."""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor

# Numbers of a row that one program of a GPU kernel holds.
LONGEST_ROW = 16384


def _fits(x_TE: Tensor) -> bool:
    """Whether there is a kernel for it."""
    return usable(x_TE) and x_TE.dim() in (2, 3) and x_TE.stride(-1) == 1 and x_TE.shape[-1] <= LONGEST_ROW


def rms_norm(x_TE: Tensor, weight_E: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the mean in fp32.

    x (..., E) in a floating dtype, returned in it. A weight (E,) of a longer dtype is multiplied before the
    result is rounded; None: 1. Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if _fits(x_TE):
        from penstock_kernels.gpu import elementwise

        return elementwise.rms_norm(x_TE, weight_E, eps)
    if weight_E is not None and weight_E.dtype != x_TE.dtype:
        return F.rms_norm(x_TE.to(weight_E.dtype), (x_TE.shape[-1],), weight_E, eps).to(x_TE.dtype)
    return F.rms_norm(x_TE, (x_TE.shape[-1],), weight_E, eps)


def rms_norm_in_place(x_TE: Tensor, weight_E: Tensor | None, eps: float) -> None:
    """`rms_norm` of x in its place, whatever its strides."""
    if _fits(x_TE):
        from penstock_kernels.gpu import elementwise

        elementwise.rms_norm_in_place(x_TE, weight_E, eps)
        return
    x_TE.copy_(rms_norm(x_TE, weight_E, eps))


def add_rms_norm(
    given_TE: Tensor, residual_TE: Tensor, weight_E: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum of both, in the memory of `given`, and its RMS normalisation. Arguments and results (T, E), as in `rms_norm`."""
    if _fits(given_TE) and given_TE.dim() == 2 and residual_TE.stride(1) == 1:
        from penstock_kernels.gpu import elementwise

        return elementwise.add_rms_norm(given_TE, residual_TE, weight_E, eps)
    sum_TE = given_TE.add_(residual_TE)
    return sum_TE, rms_norm(sum_TE, weight_E, eps)


def layer_norm(x_TE: Tensor, weight_E: Tensor | None, bias_E: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension.

    x (..., E), weight and bias (E,) in one floating dtype; None: 1 and 0. Ba, Kiros and Hinton, "Layer
    Normalization", 2016.
    """
    return F.layer_norm(x_TE, (x_TE.shape[-1],), weight_E, bias_E, eps)


def gated_rms_norm(
    x_TE: Tensor, opened_TE: Tensor, weight_E: Tensor, eps: float, *, gate_first: bool
) -> Tensor:
    """RMS normalisation over the last dimension and a product with an opened gate, before it or behind it.

    x, opened (..., E) and weight, whose shape spreads over them, in fp32. In front as in Mamba 2, behind as in Gated Delta
    Networks.
    """
    if gate_first:
        return F.rms_norm(x_TE * opened_TE, (x_TE.shape[-1],), None, eps).mul_(weight_E)
    return F.rms_norm(x_TE, (x_TE.shape[-1],), None, eps).mul_(weight_E).mul_(opened_TE)


def unit_norm(x_THD: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension: (..., D) in fp32."""
    size = x_THD.shape[-1]
    return F.rms_norm(x_THD, (size,), None, eps / size).mul_(size**-0.5)
