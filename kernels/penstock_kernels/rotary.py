"""Rotary position embedding."""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor, torch


def rope(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """Rotates each head of x in place; the halves of D are the coordinates of D/2 planes.

    x (T, H, D), any strides; cos and sin (T, 1, D) in x's dtype, the two halves of D alike, and the
    first half of sin negated. Su et al., "RoFormer", 2021, in the layout of Hugging Face checkpoints.
    """
    if usable(x_THD):
        from penstock_kernels.gpu import elementwise

        elementwise.rope(x_THD, cos_T1D, sin_T1D)
        return
    half = x_THD.shape[-1] // 2
    turned_THD = x_THD.roll(half, -1)
    x_THD.mul_(cos_T1D).addcmul_(turned_THD, sin_T1D)


def scale_by_logarithm(q_THD: Tensor, positions_T: Tensor, scale: float, span: int) -> None:
    """Multiplies each token's queries in place with 1 + scale ln(max(1, (position + 1) / span)): see `scale_by_position`."""
    spans_T = ((positions_T + 1).float() / span).clamp_min(1.0)
    q_THD.mul_((torch.log(spans_T) * scale + 1.0).to(q_THD.dtype).view(-1, 1, 1))


def scale_by_position(q_THD: Tensor, positions_T: Tensor, scale: float, span: int, offset: int) -> None:
    """Multiplies each token's queries in place with 1 + scale ln(1 + floor((position + offset) / span)).

    q (T, H, D), any strides; positions (T,) int64. The factor is computed in fp32 and rounded to q's dtype. Nakanishi,
    "Scalable-Softmax Is Superior for Attention", 2025, as Llama 4 and Ministral 3 have it.
    """
    spans_T = torch.floor((positions_T + offset).float() / span)
    q_THD.mul_((torch.log1p(spans_T) * scale + 1.0).to(q_THD.dtype).view(-1, 1, 1))
