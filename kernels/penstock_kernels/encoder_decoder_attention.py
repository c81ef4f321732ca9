"""Attention of encoder-decoders: within whole inputs, and of a decoder's tokens over cached rows given by index.

As in `attention`, float32 on a CPU, and an `exact` rectangle, sums in float64 and rounds at the end, so that a token's
result does not depend on the rectangle that it is computed in, or on what else is in the step. An input is attended to
by itself in any case.

Letters beside those of the package: U tokens of inputs, N here distances between query and key.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_kernels.attention import gathered_at_once
from penstock_kernels.later import F, Tensor, torch


@dataclass(slots=True)
class Rectangle:
    """S sequences with Q queries each over L keys each. Tokens and keys may be anywhere."""

    sequences: int
    queries: int
    keys: int
    tokens_SQ: (
        Tensor | None
    )  # (S * Q,) int64: the token of each query, padding repeats one; None: they are in order
    real: Tensor | None  # int64: which of the S * Q queries are no padding; None: all
    slot_mapping_SL: Tensor  # (S * L,) int64: the cache row of each key, padding names a row of zeros
    mask_S1QL: Tensor | None  # added to the scores, 0 or -inf; None: every query sees all keys
    distances_SQL: Tensor | None  # (S * Q * L,) int64: how far before its query a key is, where it is seen
    exact: bool = False  # in every dtype as in float32 on a CPU


def bidirectional_attention(
    qkv_UJD: Tensor, counts: list[int], scale: float, bias_HN: Tensor | None, out_UHD: Tensor
) -> None:
    """softmax(scale q k^T + bias) v of every token over all tokens of its own input, into `out`.

    qkv (U, 3 H, D): query, key and value heads of the tokens of inputs that lie one after the other, `counts` long;
    out (U, H, D). bias (H, N), N = 2 M - 1 and M at least the longest input, has for a key that is o places behind
    its query (before it: o < 0) the entry M - 1 + o.
    """
    dtype = _summed_in(qkv_UJD)
    heads = out_UHD.shape[1]
    begin = 0
    for count in counts:
        qkv_JUD = qkv_UJD[begin : begin + count].to(dtype).transpose(0, 1)
        q_1HUD, k_1HUD, v_1HUD = (
            qkv_JUD[part * heads : (part + 1) * heads].unsqueeze(0) for part in range(3)
        )
        if bias_HN is None:
            a_1HUD = F.scaled_dot_product_attention(q_1HUD, k_1HUD, v_1HUD, scale=scale)
        else:
            # The bias depends on k - q only. With the queries in reverse order, q' = count - 1 - q, it is the entry
            # first + k + q': a window that slides over the row, and no matrix has to be made.
            first = (bias_HN.shape[1] + 1) // 2 - count
            window_1HUU = bias_HN.to(dtype)[:, first:].unfold(1, count, 1)[:, :count].unsqueeze(0)
            a_1HUD = F.scaled_dot_product_attention(
                q_1HUD.flip(2), k_1HUD, v_1HUD, window_1HUU, scale=scale
            ).flip(2)
        out_UHD[begin : begin + count].copy_(a_1HUD[0].transpose(0, 1))
        begin += count


def score_mask(rectangle: Rectangle, bias_HN: Tensor | None) -> Tensor | None:
    """What is added to a rectangle's scores, (S, 1 or H, Q, L); the same for every layer.

    bias (H, N): of a key n places before its query; what is further away is as far as N - 1.
    """
    if bias_HN is None or rectangle.distances_SQL is None:
        return rectangle.mask_S1QL
    heads, furthest = bias_HN.shape[0], bias_HN.shape[1] - 1
    bias_HSQL = bias_HN.index_select(1, rectangle.distances_SQL.clamp(max=furthest))
    bias_SHQL = bias_HSQL.view(heads, rectangle.sequences, rectangle.queries, rectangle.keys).transpose(0, 1)
    return bias_SHQL if rectangle.mask_S1QL is None else bias_SHQL + rectangle.mask_S1QL


def rectangle_attention(
    q_THD: Tensor,
    cache_NJD: Tensor,
    rectangle: Rectangle,
    mask_SHQL: Tensor | None,
    scale: float,
    out_THD: Tensor,
) -> None:
    """softmax(scale q k^T + mask) v of a rectangle's tokens over its keys, into their rows of `out`.

    q and out (T, H, D); cache (N, 2 H, D) as in `write_kv`; mask from `score_mask`.
    """
    dtype = torch.float64 if rectangle.exact else _summed_in(q_THD)
    sequences, queries, keys = rectangle.sequences, rectangle.queries, rectangle.keys
    heads, size = q_THD.shape[1:]
    tokens = rectangle.tokens_SQ
    if tokens is not None:
        q_THD = q_THD.index_select(0, tokens)
    q_SHQD = q_THD.view(sequences, queries, heads, size).transpose(1, 2)
    a_SQHD = out_THD.new_empty(sequences, queries, heads, size)
    # As many sequences at once as `attention` gathers.
    some = max(gathered_at_once(q_THD.device) // (keys * heads * size), 1)
    for first in range(0, sequences, some):
        part = slice(first, min(first + some, sequences))
        kv_SJLD = (
            cache_NJD.index_select(0, rectangle.slot_mapping_SL[first * keys : part.stop * keys])
            .view(-1, keys, 2 * heads, size)
            .to(dtype)
            .transpose(1, 2)
        )
        a_SHQD = F.scaled_dot_product_attention(
            q_SHQD[part].to(dtype),
            kv_SJLD[:, :heads],
            kv_SJLD[:, heads:],
            None if mask_SHQL is None else mask_SHQL[part].to(dtype),
            scale=scale,
        )
        a_SQHD[part] = a_SHQD.transpose(1, 2).to(out_THD.dtype)
    a_THD = a_SQHD.view(sequences * queries, heads, size)
    if rectangle.real is not None:
        a_THD = a_THD.index_select(0, rectangle.real)
        tokens = tokens.index_select(0, rectangle.real) if tokens is not None else rectangle.real
    if tokens is None:
        out_THD.copy_(a_THD)
    else:
        out_THD.index_copy_(0, tokens, a_THD)


def _summed_in(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float32 and x.device.type == "cpu" else x.dtype
