"""Models of transformers that compute attention by themselves, not through the interface that `bridge` fills.

Of each such class it is said here how its queries, keys and values are made; attention itself is then the bridge's. Whether that
is what the model computes is seen at each start, by the self-check. Used by `penstock.models.fallback`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from penstock.models.bridge import Unfit, attention


def give(body: nn.Module) -> None:
    """Has the modules of these classes call the bridge. Raises Unfit for what they may do besides."""
    if getattr(body, "attention_type", None) == "block_sparse":
        raise Unfit(
            "attends to some blocks of keys (attention_type is block_sparse), and the paged cache knows original_full alone"
        )
    for module in body.modules():
        replace = KINDS.get(type(module).__name__)
        if replace is not None:
            replace(module)


def _bert(module: Any) -> None:
    """Three matrices of one size and, in RoFormer, rotations of neighbouring numbers."""
    names = inspect.signature(module.forward)

    def forward(*args: Any, **options: Any) -> tuple[Tensor, None]:
        given = names.bind(*args, **options).arguments
        if given.get("encoder_hidden_states") is not None:
            raise Unfit("attends to what an encoder made")
        hidden = given["hidden_states"]
        shape = (*hidden.shape[:-1], -1, module.attention_head_size)
        query, key, value = (
            matrix(hidden).view(shape).transpose(1, 2) for matrix in (module.query, module.key, module.value)
        )
        angles = given.get("sinusoidal_pos")
        if angles is not None:
            query, key = _rotated(query, angles), _rotated(key, angles)
            value = _rotated(value, angles) if module.rotary_value else value
        attended, _ = attention(module, query, key, value, given.get("attention_mask"))
        return attended.flatten(2), None

    module.forward = forward


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """(1, H, T, D) rotated by (1, 1, T, D): sines of each plane, then cosines. Su et al., "RoFormer", 2021, section 3.4.2."""
    sine, cosine = (part.repeat_interleave(2, -1) for part in angles.chunk(2, -1))
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cosine + turned * sine


def _neox_japanese(module: Any) -> None:
    """It has a method for attention alone, of heads before tokens."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        attended, _ = attention(module, query, key, value, mask)
        return attended.transpose(1, 2), None

    module._attn = attend


KINDS: dict[str, Callable[[Any], None]] = {
    "BigBirdSelfAttention": _bert,
    "GPTNeoXJapaneseAttention": _neox_japanese,
    "MegatronBertSelfAttention": _bert,
    "RemBertSelfAttention": _bert,
    "RoFormerSelfAttention": _bert,
}
