"""Normalisation of activations."""

from penstock_kernels.later import F, Tensor


def rms_norm(x_TE: Tensor, weight_E: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the mean in fp32.

    x (..., E) in a floating dtype, returned in it. A weight (E,) of a longer dtype is multiplied before the
    result is rounded; None: 1. Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if weight_E is not None and weight_E.dtype != x_TE.dtype:
        return F.rms_norm(x_TE.to(weight_E.dtype), (x_TE.shape[-1],), weight_E, eps).to(x_TE.dtype)
    return F.rms_norm(x_TE, (x_TE.shape[-1],), weight_E, eps)


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
