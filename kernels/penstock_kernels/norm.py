"""Normalisation of activations."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the mean in fp32.

    x (T, E) and weight (E,) in one floating dtype; returns (T, E) in it. Zhang and Sennrich, "Root Mean
    Square Layer Normalization", 2019.
    """
    return F.rms_norm(x_TE, (x_TE.shape[-1],), weight_E, eps)
