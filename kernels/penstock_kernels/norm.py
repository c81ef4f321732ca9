"""Normalisation of activations."""

import torch.nn.functional as F
from torch import Tensor


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
