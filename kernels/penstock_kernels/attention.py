"""Causal attention of a ragged batch over a paged cache.

The step's tokens are ordered so that the tokens of one group are neighbours, and a group is a rectangle:
S sequences with Q queries each over L keys each. Who makes a group decides how much padding it holds.
Padded keys name a cache row that is never written and holds zeros: a masked key must still be a number,
since 0 times NaN is NaN.

In float32 on a CPU, and wherever the layout is `exact`, the sums are taken in float64 and rounded at the end, so
that the result does not depend on the group: on its padding, or on whether a token came alone or in a piece of a
prompt.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores that exist at once where attention has terms, unless one query has more.
SCORES_AT_ONCE = 1 << 23


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one query each."""

    begin: int  # the group's tokens are begin .. end of the step's T
    end: int
    keys: int  # L, at least the longest of the group
    heads_JSL: Tensor  # (J * S * L,) int64: the row of each key in the cache seen as (N * J, D)
    mask_S1L: Tensor | None  # added to the scores: 0 or -inf, in the activations' dtype; None: all seen


@dataclass(slots=True)
class FewGroup:
    """As DecodeGroup, where one fused call is faster: products of a size seen are set up in 15 us each."""

    begin: int
    end: int
    keys: int
    places_SL: Tensor  # (S * L,) int64: the cache row of each key
    mask_S11L: Tensor | None


@dataclass(slots=True)
class ChunkGroup:
    """Sequences with pieces of their prompt."""

    begin: int
    end: int
    sequences: int
    queries: int  # Q, the longest of the group
    keys: int
    places_SL: Tensor  # (S * L,) int64: the cache row of each key
    mask_S1QL: Tensor | None  # None: `causal` says all
    causal: bool  # query i sees keys 0 .. i
    spread_SQ: Tensor | None  # (S * Q,) token of each query, relative to begin; None: they are in order
    gather_T: Tensor | None  # inverse of spread: (end - begin,) place of each token among the S * Q


@dataclass(slots=True)
class AttentionLayout:
    """How the step's tokens attend. Made once per step, followed by every layer.

    `gathered` is memory for the keys and values of the largest decode group, J * S * L * D numbers or more:
    made anew, it would be fresh pages from the kernel in every layer.
    """

    gathered: Tensor
    exact: bool = False
    decodes: list[DecodeGroup] = field(default_factory=list)
    few: list[FewGroup] = field(default_factory=list)
    chunks: list[ChunkGroup] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionTerms:
    """What some families add to attention. Layouts for any of these have no DecodeGroup."""

    softcap: float = 0.0  # scores s become softcap tanh(s / softcap); 0: off
    bias_HN: Tensor | None = None  # fp32, added to the scores of head h with the key at position n
    sinks_H: Tensor | None = None  # a score of each head that takes part in the softmax and has no value
    latent: int = 0  # V > 0: the cache has keys alone, and values are the first V numbers of a key


PLAIN = AttentionTerms()


def paged_attention(
    q_THD: Tensor,
    cache_NJD: Tensor,
    layout: AttentionLayout,
    scale: float,
    out_THD: Tensor,
    terms: AttentionTerms = PLAIN,
) -> None:
    """softmax(scale q k^T + mask) v for every token over its own sequence's keys, into `out`.

    q (T, H, D), any strides between tokens; cache (N, J, D) as in `write_kv`, holding this step's keys
    already; out (T, H, D), or (T, H, V) where values are latent, contiguous, in q's dtype. Query head h reads
    key/value head h / (H / K). Soft caps: Gemma Team, "Gemma 2", 2024; position biases: Press et al., "Train
    Short, Test Long" (ALiBi), 2022; sinks: Xiao et al., "Efficient Streaming Language Models with Attention
    Sinks", 2023; latent values: DeepSeek-AI, "DeepSeek-V2", 2024.
    """
    exact = layout.exact or (q_THD.dtype == torch.float32 and q_THD.device.type == "cpu")
    dtype = torch.float64 if exact else q_THD.dtype
    q_THD = q_THD.to(dtype)
    for decodes in layout.decodes:
        here = slice(decodes.begin, decodes.end)
        _decode(q_THD[here], cache_NJD, decodes, layout.gathered, scale, out_THD[here])
    if terms is not PLAIN:
        groups: list[FewGroup | ChunkGroup] = [*layout.few, *layout.chunks]
        for group in groups:
            here = slice(group.begin, group.end)
            _with_terms(q_THD[here], cache_NJD, group, scale, out_THD[here], terms)
        return
    for few in layout.few:
        here = slice(few.begin, few.end)
        _few(q_THD[here], cache_NJD, few, scale, out_THD[here])
    for chunks in layout.chunks:
        here = slice(chunks.begin, chunks.end)
        _chunk(q_THD[here], cache_NJD, chunks, scale, out_THD[here])


def _decode(
    q_SHD: Tensor, cache_NJD: Tensor, group: DecodeGroup, gathered: Tensor, scale: float, out_SHD: Tensor
) -> None:
    """Two batched products. Keys are gathered head by head, so that both products read dense matrices."""
    sequences, heads, size = q_SHD.shape
    kv_heads = cache_NJD.shape[1] // 2
    shared = heads // kv_heads  # G: query heads that share a key head are as many queries of it
    matrices = kv_heads * sequences
    kv_XD = gathered[: group.heads_JSL.numel() * size].view(-1, size)
    torch.index_select(cache_NJD.view(-1, size), 0, group.heads_JSL, out=kv_XD)
    kv_JSLD = kv_XD.view(2 * matrices, group.keys, size).to(q_SHD.dtype)
    q_KSGD = (
        (q_SHD * scale)
        .view(sequences, kv_heads, shared, size)
        .transpose(0, 1)
        .reshape(matrices, shared, size)
    )
    scores_KSGL = torch.bmm(q_KSGD, kv_JSLD[:matrices].transpose(1, 2))
    if group.mask_S1L is not None:
        scores_KSGL.view(kv_heads, sequences, shared, group.keys).add_(group.mask_S1L)
    a_KSGD = torch.bmm(scores_KSGL.softmax(-1), kv_JSLD[matrices:])
    out_SHD.view(sequences, kv_heads, shared, size).copy_(
        a_KSGD.view(kv_heads, sequences, shared, size).transpose(0, 1)
    )


def _few(q_SHD: Tensor, cache_NJD: Tensor, group: FewGroup, scale: float, out_SHD: Tensor) -> None:
    sequences, heads, size = q_SHD.shape
    kv_heads = cache_NJD.shape[1] // 2
    shape = (sequences, kv_heads, heads // kv_heads, size)
    kv_SLJD = cache_NJD.index_select(0, group.places_SL).view(sequences, group.keys, 2 * kv_heads, size)
    kv_SJLD = kv_SLJD.to(q_SHD.dtype).transpose(1, 2)
    mask = None if group.mask_S11L is None else group.mask_S11L.to(q_SHD.dtype)
    a_SKGD = F.scaled_dot_product_attention(
        q_SHD.view(shape), kv_SJLD[:, :kv_heads], kv_SJLD[:, kv_heads:], mask, scale=scale
    )
    out_SHD.view(shape).copy_(a_SKGD)


def _chunk(q_THD: Tensor, cache_NJD: Tensor, group: ChunkGroup, scale: float, out_THD: Tensor) -> None:
    heads, size = q_THD.shape[1:]
    kv_heads = cache_NJD.shape[1] // 2
    if group.spread_SQ is not None:
        q_THD = q_THD.index_select(0, group.spread_SQ)
    kv_SJLD = (
        cache_NJD.index_select(0, group.places_SL)
        .view(group.sequences, group.keys, 2 * kv_heads, size)
        .to(q_THD.dtype)
        .transpose(1, 2)
    )
    a_SHQD = F.scaled_dot_product_attention(
        q_THD.reshape(group.sequences, group.queries, heads, size).transpose(1, 2),
        kv_SJLD[:, :kv_heads],
        kv_SJLD[:, kv_heads:],
        None if group.mask_S1QL is None else group.mask_S1QL.to(q_THD.dtype),
        is_causal=group.causal,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )
    a_THD = a_SHQD.transpose(1, 2).reshape(group.sequences * group.queries, heads, size)
    if group.gather_T is not None:
        a_THD = a_THD.index_select(0, group.gather_T)
    out_THD.copy_(a_THD)


def _with_terms(
    q_THD: Tensor,
    cache_NJD: Tensor,
    group: FewGroup | ChunkGroup,
    scale: float,
    out_THV: Tensor,
    terms: AttentionTerms,
) -> None:
    """Any group with any terms, one product after another; scores in fp32 or longer."""
    heads, size = q_THD.shape[1:]
    if isinstance(group, ChunkGroup):
        sequences, queries, mask_S1QL = group.sequences, group.queries, group.mask_S1QL
        if group.spread_SQ is not None:
            q_THD = q_THD.index_select(0, group.spread_SQ)
    else:
        sequences, queries, mask_S1QL = len(q_THD), 1, group.mask_S11L
    rows = cache_NJD.shape[1]
    matrices = (rows if terms.latent else rows // 2) * sequences
    # Gathered head by head, as for `_decode`: otherwise each product would copy what it reads, transposed.
    heads_J1 = torch.arange(rows, device=q_THD.device).unsqueeze(1)
    heads_JSL = (group.places_SL * rows + heads_J1).view(-1)
    kv_JSLD = cache_NJD.view(-1, size).index_select(0, heads_JSL).view(-1, group.keys, size).to(q_THD.dtype)
    values_XLV = kv_JSLD[..., : terms.latent] if terms.latent else kv_JSLD[matrices:]
    keys_XDL = kv_JSLD[:matrices].transpose(1, 2)
    q_SQHD = q_THD.reshape(sequences, queries, heads, size) * scale
    a_SQHV = q_THD.new_empty(sequences, queries, heads, values_XLV.shape[-1])
    at_once = max(SCORES_AT_ONCE // (sequences * heads * group.keys), 1)
    for first in range(0, queries, at_once):
        part = slice(first, first + at_once)
        hidden = None
        if mask_S1QL is not None:
            hidden = mask_S1QL[:, :, part]
        elif isinstance(group, ChunkGroup):
            shape = (len(range(queries)[part]), group.keys)
            later = torch.ones(shape, dtype=torch.bool, device=q_THD.device).triu_(1 + first)
            hidden = torch.zeros(shape, device=q_THD.device).masked_fill_(later, -torch.inf)
        a_SQHV[:, part] = _attend(q_SQHD[:, part], keys_XDL, values_XLV, hidden, terms)
    a_THV = a_SQHV.view(sequences * queries, heads, -1)
    if isinstance(group, ChunkGroup) and group.gather_T is not None:
        a_THV = a_THV.index_select(0, group.gather_T)
    out_THV.copy_(a_THV)


def _attend(
    q_SQHD: Tensor, keys_XDL: Tensor, values_XLV: Tensor, mask: Tensor | None, terms: AttentionTerms
) -> Tensor:
    """(S, Q, H, V) of scaled queries; the mask (S or 1, 1, Q, L) or (Q, L) is added to the scores. X is K S: all
    sequences of a key head, then those of the next.
    """
    sequences, queries, heads, size = q_SQHD.shape
    matrices, keys = keys_XDL.shape[0], keys_XDL.shape[2]
    kv_heads = matrices // sequences
    # The query heads that share a key head are as many queries of it.
    shared = heads // kv_heads
    q_KSGQD = q_SQHD.view(sequences, queries, kv_heads, shared, size).permute(2, 0, 3, 1, 4)
    scores_XRL = torch.bmm(q_KSGQD.reshape(matrices, shared * queries, size), keys_XDL)
    long = torch.float64 if scores_XRL.dtype == torch.float64 else torch.float32
    scores_KSGQL = scores_XRL.to(long).view(kv_heads, sequences, shared, queries, keys)
    if terms.softcap:
        scores_KSGQL = scores_KSGQL.div_(terms.softcap).tanh_().mul_(terms.softcap)
    if terms.bias_HN is not None:
        scores_KSGQL = scores_KSGQL.add_(terms.bias_HN[:, :keys].view(kv_heads, 1, shared, 1, keys))
    if mask is not None:
        scores_KSGQL = scores_KSGQL.add_(mask if mask.dim() == 2 else mask.unsqueeze(0))
    if terms.sinks_H is not None:
        sinks = terms.sinks_H.to(long).view(kv_heads, 1, shared, 1, 1)
        sinks = sinks.expand(kv_heads, sequences, shared, queries, 1)
        weights_KSGQL = torch.cat((scores_KSGQL, sinks), -1).softmax(-1)[..., :-1]
    else:
        weights_KSGQL = scores_KSGQL.softmax(-1)
    weights_XRL = weights_KSGQL.to(q_SQHD.dtype).reshape(matrices, shared * queries, keys)
    a_KSGQV = torch.bmm(weights_XRL, values_XLV).view(kv_heads, sequences, shared, queries, -1)
    return a_KSGQV.permute(1, 3, 0, 2, 4).reshape(sequences, queries, heads, -1)
