"""Activation functions of the feed-forward layer."""

from collections.abc import Callable

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor, torch


def _silu(x: Tensor) -> Tensor:
    return F.silu(x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu(x: Tensor) -> Tensor:
    return F.relu(x)


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square_()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid_()


# By the names that `hidden_act` has in checkpoints.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_python": _gelu,
    "gelu_pytorch": _gelu,
    "gelu_python_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": _relu,
    "relu2": _relu_squared,
}

# Those that `gpu.elementwise` has, by its names.
_KINDS: dict[Callable[[Tensor], Tensor], str] = {
    _silu: "silu",
    _gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
    _relu: "relu",
    _relu_squared: "relu2",
    _quick_gelu: "quick_gelu",
}


def _fits(gate_up_T2F: Tensor) -> bool:
    """Whether there is a kernel for it."""
    return usable(gate_up_T2F) and gate_up_T2F.dim() == 2 and gate_up_T2F.stride(1) == 1


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """p x^2 + beta x above 0, and n (exp(min(x, eps)) - 1 - x) + beta x below; p = softplus(alpha_p), n = beta +
    softplus(alpha_n).

    x in any floating dtype, computed in fp32 and returned in it; parameters of one number each. Huang and
    Schlag, "Deriving Activation Functions Using Integration", 2024.
    """
    long, beta = x.float(), beta.float()
    above = F.softplus(alpha_p.float()) * long * long
    below = (torch.expm1(torch.minimum(long, eps.float())) - long) * (beta + F.softplus(alpha_n.float()))
    return (torch.where(long > 0, above, below) + beta * long).to(x.dtype)


def gated(gate_up_T2F: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up, where the last dimension of the input is gate, then up.

    gate_up (T, 2F) in any floating dtype; returns (T, F) in it. Shazeer, "GLU Variants Improve
    Transformer", 2020.
    """
    kind = _KINDS.get(activation)
    if kind is not None and _fits(gate_up_T2F):
        from penstock_kernels.gpu import elementwise

        return elementwise.gated(gate_up_T2F, kind)
    half = gate_up_T2F.shape[-1] // 2
    return activation(gate_up_T2F[..., :half]).mul_(gate_up_T2F[..., half:])


def gated_limited(gate_up_T2F: Tensor, activation: Callable[[Tensor], Tensor], limit: float) -> Tensor:
    """activation(gate) * up, gate at most `limit`, up between -limit and limit. Shapes as in `gated`."""
    kind = _KINDS.get(activation)
    if kind is not None and _fits(gate_up_T2F):
        from penstock_kernels.gpu import elementwise

        return elementwise.gated(gate_up_T2F, kind, limit)
    half = gate_up_T2F.shape[-1] // 2
    up_TF = gate_up_T2F[..., half:].clamp(-limit, limit)
    return activation(gate_up_T2F[..., :half].clamp(max=limit)).mul_(up_TF)


def gated_capped(gate_up_T2F: Tensor, activation: Callable[[Tensor], Tensor], limit: float) -> Tensor:
    """activation(gate) * up, the activation at most `limit`, up between -limit and limit. Shapes as in `gated`. Step 3.5 (StepFun, 2026)."""
    half = gate_up_T2F.shape[-1] // 2
    up_TF = gate_up_T2F[..., half:].clamp(-limit, limit)
    return activation(gate_up_T2F[..., :half]).clamp(max=limit).mul_(up_TF)


def gated_clamped(gate_up_T2F: Tensor, limit: float, alpha: float) -> Tensor:
    """gate * sigmoid(alpha gate) * (up + 1), gate at most `limit`, up between -limit and limit.

    The feed-forward activation of GPT-OSS (OpenAI, "gpt-oss model card", 2025). Shapes as in `gated`.
    """
    if _fits(gate_up_T2F):
        from penstock_kernels.gpu import elementwise

        return elementwise.gated_clamped(gate_up_T2F, limit, alpha)
    half = gate_up_T2F.shape[-1] // 2
    gate_TF = gate_up_T2F[..., :half].clamp(max=limit)
    up_TF = gate_up_T2F[..., half:].clamp(-limit, limit)
    return (up_TF + 1).mul_(gate_TF * (alpha * gate_TF).sigmoid_())
