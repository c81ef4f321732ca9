"""Models of transformers that compute attention by themselves, or with a mask of their own, not as the interface that `bridge` fills has it.

Of each such class it is said here how its queries, keys and values are made; attention itself is then the bridge's. Whether that
is what the model computes is seen at each start, by the self-check. Used by `penstock.models.fallback_loader`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.models.bridge import Unfit, attention


def give(body: nn.Module) -> None:
    """Has the modules of these classes call the bridge. Raises Unfit for what they may do besides."""
    if getattr(body, "attention_type", None) == "block_sparse":
        raise Unfit(
            "attends to some blocks of keys (attention_type is block_sparse), and the paged cache knows original_full alone"
        )
    if any(type(module).__name__ == "DogeCDMoE" for module in body.modules()):
        raise Unfit(
            "chooses experts by logits that it mixes across tokens (is_moe), so that a text depends on how it is cut"
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


def _doge(module: Any) -> None:
    """A key has a bias for each of its heads, made of its values ("Trainable Dynamic Mask Sparse Attention", Shi et al., 2025). Here it is one
    more number of the key, beside one of the query that takes the scale away again; more behind it are zeros, as kernels like sizes
    of eights.
    """

    def forward(
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        shape = (*hidden_states.shape[:-1], -1, module.head_dim)
        query = module.q_norm(module.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = module.k_norm(module.k_proj(hidden_states).view(shape)).transpose(1, 2)
        values = module.v_proj(hidden_states)
        cos, sin = (table.unsqueeze(1) for table in position_embeddings)
        query, key = (x * cos + _halves_turned(x) * sin for x in (query, key))
        bias = _key_bias(module, values)
        behind = (-module.head_dim - 1) % 8
        query = torch.cat((query, torch.full_like(query[..., :1], 1 / module.scaling)), -1)
        attended, _ = attention(
            module,
            F.pad(query, (0, behind)),
            F.pad(torch.cat((key, bias), -1), (0, behind)),
            values.view(shape).transpose(1, 2),
            attention_mask,
            scaling=module.scaling,
            **options,
        )
        return module.o_proj(attended.flatten(2)), None

    module.forward = forward


def _key_bias(module: Any, values: Tensor) -> Tensor:
    """(1, T, K * D) values to (1, K, T, 1)."""
    return torch.exp(module.A * F.softplus(module.dt_proj(values))).mT.unsqueeze(-1)


def _halves_turned(x: Tensor) -> Tensor:
    """(…, D): the second half with its sign turned, then the first."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def longest(config: Any) -> int | None:
    """Tokens of a sequence up to which these classes attend as said here; None: any number."""
    # Doge chooses keys beyond so many.
    found = getattr(config, "keep_window_size", None)
    return found if isinstance(found, int) else None


KINDS: dict[str, Callable[[Any], None]] = {
    "BigBirdSelfAttention": _bert,
    "DogeAttention": _doge,
    "GPTNeoXJapaneseAttention": _neox_japanese,
    "MegatronBertSelfAttention": _bert,
    "RemBertSelfAttention": _bert,
    "RoFormerSelfAttention": _bert,
}
