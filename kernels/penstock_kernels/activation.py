"""Activation functions of the feed-forward layer."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def _silu(x: Tensor) -> Tensor:
    return F.silu(x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# By the names that `hidden_act` has in checkpoints.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


def gated(gate_up_T2F: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up, where the last dimension of the input is gate, then up.

    gate_up (T, 2F) in any floating dtype; returns (T, F) in it. Shazeer, "GLU Variants Improve
    Transformer", 2020.
    """
    half = gate_up_T2F.shape[-1] // 2
    return activation(gate_up_T2F[..., :half]).mul_(gate_up_T2F[..., half:])
