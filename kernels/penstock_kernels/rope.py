"""Rotary position embedding."""

from torch import Tensor


def rope(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """Rotates each head of x in place; the halves of D are the coordinates of D/2 planes.

    x (T, H, D), any strides; cos and sin (T, 1, D) in x's dtype, the two halves of D alike, and the
    first half of sin negated. Su et al., "RoFormer", 2021, in the layout of Hugging Face checkpoints.
    """
    half = x_THD.shape[-1] // 2
    turned_THD = x_THD.roll(half, -1)
    x_THD.mul_(cos_T1D).addcmul_(turned_THD, sin_T1D)
