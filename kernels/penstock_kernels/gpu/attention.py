"""Attention over the paged cache, flash style: pages are read in place, and no score is written to memory.

Rows of queries are cut into tiles: of a piece of a prompt some queries and the heads that share a key head, of a decode its one
query. A decode's keys are divided over several programs, whose parts a second kernel joins ("flash decoding"), so that few rows keep
the whole GPU busy; how many depends on shapes alone, so that a graph can be captured. Dao, "FlashAttention-2", 2023; Dao et al.,
"Flash-Decoding for long-context inference", 2023; pages as in Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", 2023. What is computed is defined by `attention.paged_attention`.

A key is read in two parts where its size is no power of two: of 576 numbers of a latent the 512 that are its value too, and 64; of 96 the first
64, and 32. Both are filled up to powers of two with zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.gpu.pieces import Pieces
from penstock_kernels.score_modifiers import PLAIN, ScoreModifiers

LOG2_E = 1.4426950408889634

# Programs that a decode's keys are divided over, so that there are about so many in all.
PROGRAMS = 528
MOST_SPLITS = 32


@triton.jit
def _piece_of(before_ptr, tile, pieces, BLOCK_Q: tl.constexpr):
    """The last piece whose first tile is at most `tile`: piece i has its first at before[i] // BLOCK_Q + i."""
    low = 0
    high = pieces
    while low < high:
        middle = (low + high) // 2
        if tl.load(before_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


# What is another number in every step must not be compiled anew for those that are 1, or multiples of 16.
@triton.jit(do_not_specialize=["columns", "first_piece", "pieces", "splits"])
def _attend(
    q_ptr,
    cache_ptr,
    out_ptr,
    parts_ptr,
    sums_ptr,
    pages_ptr,
    columns_ptr,
    bias_ptr,
    sinks_ptr,
    columns,
    first_piece,
    pieces,
    q_token,
    q_head,
    cache_row,
    cache_head,
    value_offset,
    out_token,
    pages_slot,
    bias_head,
    scale,
    softcap,
    window,
    heads,
    shared,
    head_blocks,
    splits,
    D: tl.constexpr,
    DV: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK_1: tl.constexpr,
    BLOCK_2: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS_AT_ONCE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_LATENT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # Axis 0: tiles; 1: key heads, and blocks of the heads that share one; 2: splits of the keys.
    kv_head = tl.program_id(1) // head_blocks
    first_head = kv_head * shared + (tl.program_id(1) % head_blocks) * HEADS_AT_ONCE
    split = tl.program_id(2)
    m = tl.arange(0, BLOCK_M)
    before_ptr = columns_ptr + 4 * columns
    if IS_DECODE:
        piece = tl.program_id(0)
        first_query = 0
        queries_M = m * 0
        heads_M = first_head + m
        in_tile_M = m < HEADS_AT_ONCE
    else:
        BLOCK_Q: tl.constexpr = BLOCK_M // HEADS_AT_ONCE
        piece = _piece_of(before_ptr, tl.program_id(0), pieces, BLOCK_Q)
        first_query = (tl.program_id(0) - (tl.load(before_ptr + piece) // BLOCK_Q + piece)) * BLOCK_Q
        queries_M = first_query + m // HEADS_AT_ONCE
        heads_M = first_head + m % HEADS_AT_ONCE
        in_tile_M = m < BLOCK_Q * HEADS_AT_ONCE
    column_ptr = columns_ptr + first_piece + piece
    count = tl.load(column_ptr + 3 * columns)
    if first_query >= count:
        return
    slot = tl.load(column_ptr).to(tl.int64)
    position = tl.load(column_ptr + columns)
    token = tl.load(column_ptr + 2 * columns)
    # The heads of the last block may be fewer.
    valid_M = in_tile_M & (queries_M < count) & (heads_M < (kv_head + 1) * shared)
    positions_M = position + queries_M
    tokens_M = (token + queries_M).to(tl.int64)

    d1 = tl.arange(0, BLOCK_1)
    q_M = q_ptr + tokens_M * q_token + heads_M * q_head
    q1_MD = tl.load(q_M[:, None] + d1[None, :], mask=valid_M[:, None] & (d1 < FIRST)[None, :], other=0.0)
    if BLOCK_2 > 0:
        d2 = FIRST + tl.arange(0, BLOCK_2)
        q2_MD = tl.load(q_M[:, None] + d2[None, :], mask=valid_M[:, None] & (d2 < D)[None, :], other=0.0)

    # Keys that any query of the tile sees.
    last = position + tl.minimum(first_query + (1 if IS_DECODE else BLOCK_M // HEADS_AT_ONCE), count) - 1
    begin = 0
    lowest = 0
    if HAS_WINDOW:
        if IS_CHUNKED:
            begin = (position + first_query) // window * window
            firsts_M = positions_M // window * window
        else:
            begin = tl.maximum(position + first_query + 1 - window, 0)
            firsts_M = positions_M + 1 - window
        lowest = begin
        begin = begin // BLOCK_N * BLOCK_N
    end = last + 1
    if IS_SPLIT:
        blocks = (end - begin + BLOCK_N - 1) // BLOCK_N
        each = (blocks + splits - 1) // splits * BLOCK_N
        begin = begin + split * each
        end = tl.minimum(end, begin + each)

    v = tl.arange(0, BLOCK_V)
    acc_MV = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    if HAS_SINKS:
        sink_M = tl.load(sinks_ptr + heads_M, mask=valid_M, other=0.0).to(tl.float32) * 1.4426950408889634
        largest_M = tl.where(split == 0, sink_M, float("-inf"))
        sum_M = tl.where(split == 0, 1.0, 0.0) + tl.zeros((BLOCK_M,), tl.float32)
    else:
        largest_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        sum_M = tl.zeros((BLOCK_M,), tl.float32)
    n = tl.arange(0, BLOCK_N)
    pages_of = pages_ptr + slot * pages_slot
    cache_of = cache_ptr + kv_head.to(tl.int64) * cache_head
    for start in range(begin, end, BLOCK_N):
        keys_N = start + n
        # What nobody sees is not read: it may be no number, which no weight of 0 makes one.
        exists_N = (keys_N < end) & (keys_N >= lowest)
        pages_N = tl.load(pages_of + keys_N // BLOCK_SIZE, mask=exists_N, other=0)
        rows_N = (pages_N.to(tl.int64) * BLOCK_SIZE + keys_N % BLOCK_SIZE) * cache_row
        k1_DN = tl.load(
            cache_of + rows_N[None, :] + d1[:, None],
            mask=exists_N[None, :] & (d1 < FIRST)[:, None],
            other=0.0,
        )
        scores_MN = tl.dot(q1_MD, k1_DN, input_precision=PRECISION)
        if BLOCK_2 > 0:
            k2_DN = tl.load(
                cache_of + rows_N[None, :] + d2[:, None],
                mask=exists_N[None, :] & (d2 < D)[:, None],
                other=0.0,
            )
            scores_MN += tl.dot(q2_MD, k2_DN, input_precision=PRECISION)
        scores_MN = scores_MN * scale
        if HAS_SOFTCAP:
            scores_MN = softcap * (2.0 * tl.sigmoid(2.0 * scores_MN / softcap) - 1.0)
        if HAS_BIAS:
            scores_MN += tl.load(
                bias_ptr + heads_M[:, None].to(tl.int64) * bias_head + keys_N[None, :],
                mask=valid_M[:, None] & exists_N[None, :],
                other=0.0,
            )
        seen_MN = exists_N[None, :] & (keys_N[None, :] <= positions_M[:, None])
        if HAS_WINDOW:
            seen_MN = seen_MN & (keys_N[None, :] >= firsts_M[:, None])
        scores_MN = tl.where(seen_MN, scores_MN * 1.4426950408889634, float("-inf"))
        new_M = tl.maximum(largest_M, tl.max(scores_MN, 1))
        # Of a query that has seen no key yet.
        safe_M = tl.where(new_M == float("-inf"), 0.0, new_M)
        weights_MN = tl.exp2(scores_MN - safe_M[:, None])
        factor_M = tl.exp2(largest_M - safe_M)
        sum_M = sum_M * factor_M + tl.sum(weights_MN, 1)
        if IS_LATENT:
            v_NV = tl.trans(k1_DN)
        else:
            v_NV = tl.load(
                cache_of + value_offset + rows_N[:, None] + v[None, :],
                mask=exists_N[:, None] & (v < DV)[None, :],
                other=0.0,
            )
        acc_MV = acc_MV * factor_M[:, None] + tl.dot(
            weights_MN.to(v_NV.dtype), v_NV, input_precision=PRECISION
        )
        largest_M = new_M

    stored_MV = valid_M[:, None] & (v < DV)[None, :]
    if IS_SPLIT:
        places_M = (tokens_M * heads + heads_M) * splits + split
        tl.store(parts_ptr + places_M[:, None] * DV + v[None, :], acc_MV, mask=stored_MV)
        tl.store(sums_ptr + places_M * 2, largest_M, mask=valid_M)
        tl.store(sums_ptr + places_M * 2 + 1, sum_M, mask=valid_M)
    else:
        out_M = out_ptr + tokens_M * out_token + heads_M * DV
        result_MV = acc_MV / tl.where(sum_M == 0.0, 1.0, sum_M)[:, None]
        tl.store(out_M[:, None] + v[None, :], result_MV.to(out_ptr.dtype.element_ty), mask=stored_MV)


@triton.jit(do_not_specialize=["columns"])
def _join(
    parts_ptr,
    sums_ptr,
    out_ptr,
    columns_ptr,
    columns,
    out_token,
    heads,
    DV: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The parts of one head of a decode become its result."""
    token = tl.load(columns_ptr + 2 * columns + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    place = (token * heads + head) * SPLITS
    splits = tl.arange(0, SPLITS)
    largest_S = tl.load(sums_ptr + (place + splits) * 2)
    sums_S = tl.load(sums_ptr + (place + splits) * 2 + 1)
    largest = tl.max(largest_S, 0)
    factors_S = tl.exp2(largest_S - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(sums_S * factors_S, 0)
    v = tl.arange(0, BLOCK_V)
    parts_SV = tl.load(
        parts_ptr + (place + splits)[:, None] * DV + v[None, :],
        mask=(v < DV)[None, :],
        other=0.0,
    )
    result_V = tl.sum(parts_SV * factors_S[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + token * out_token + head * DV + v, result_V.to(out_ptr.dtype.element_ty), mask=v < DV)


def splits_of(decodes: int, programs: int) -> int:
    """Over how many programs a decode's keys are divided, a power of two, where each has `programs` at least."""
    splits = 1
    while splits < MOST_SPLITS and splits * decodes * programs < PROGRAMS:
        splits *= 2
    return splits


def attend(
    q_THD: Tensor,
    cache_NJD: Tensor,
    pieces: Pieces,
    scale: float,
    out_THD: Tensor,
    score_modifiers: ScoreModifiers = PLAIN,
) -> None:
    """`paged_attention` of all pieces: arguments and results as there."""
    bias_HN, sinks_H, latent = score_modifiers.bias_HN, score_modifiers.sinks_H, score_modifiers.latent
    heads, size = q_THD.shape[1:]
    values = latent or size
    kv_heads = cache_NJD.shape[1] if latent else cache_NJD.shape[1] // 2
    shared = heads // kv_heads
    first = latent or 1 << (size.bit_length() - 1)
    is_long = q_THD.dtype == torch.float32
    block_1, block_2 = _block(first), 0 if size == first else _block(size - first)
    numbers = _numbers(size, latent, is_long)
    options = {
        "D": size,
        "DV": values,
        "FIRST": first,
        "BLOCK_1": block_1,
        "BLOCK_2": block_2,
        "BLOCK_V": block_1 if latent else _block(values),
        "BLOCK_SIZE": pieces.block_size,
        "IS_CHUNKED": pieces.chunked,
        "HAS_WINDOW": pieces.window > 0,
        "HAS_SOFTCAP": score_modifiers.softcap > 0.0,
        "HAS_BIAS": bias_HN is not None,
        "HAS_SINKS": sinks_H is not None,
        "IS_LATENT": latent > 0,
        "PRECISION": "ieee" if is_long else "tf32",
    }

    def launch(some: slice, tiles: int, at_once: int, splits: int, tile: dict[str, int]) -> None:
        blocks = -(-shared // at_once)
        parts, sums = out_THD, out_THD  # of what is absent nothing is read or written
        if splits > 1:  # see split_bytes
            parts = q_THD.new_empty((tiles, heads, splits, values), dtype=torch.float32)
            sums = q_THD.new_empty((tiles, heads, splits, 2), dtype=torch.float32)
        _attend[tiles, kv_heads * blocks, splits](
            q_THD,
            cache_NJD,
            out_THD,
            parts,
            sums,
            pieces.pages_SW,
            pieces.columns_5P,
            cache_NJD if bias_HN is None else bias_HN,
            cache_NJD if sinks_H is None else sinks_H,
            pieces.columns_5P.shape[1],
            some.start,
            some.stop - some.start,
            q_THD.stride(0),
            q_THD.stride(1),
            cache_NJD.stride(0),
            cache_NJD.stride(1),
            kv_heads * cache_NJD.stride(1),
            out_THD.stride(0),
            pieces.pages_SW.stride(0),
            0 if bias_HN is None else bias_HN.stride(0),
            scale,
            score_modifiers.softcap,
            pieces.window,
            heads,
            shared,
            blocks,
            splits,
            HEADS_AT_ONCE=at_once,
            IS_SPLIT=splits > 1,
            IS_DECODE=some.start == 0 and pieces.decodes > 0,
            **options,
            **tile,
        )
        if splits > 1:
            _join[tiles, heads](
                parts, sums, out_THD, pieces.columns_5P, pieces.columns_5P.shape[1], out_THD.stride(0), heads,
                DV=values, BLOCK_V=_block(values), SPLITS=splits, num_warps=4,
            )  # fmt: skip

    keys = 64 if numbers <= 128 else 32 if numbers <= 256 else 16
    decodes, others = pieces.decodes, pieces.columns_5P.shape[1] - pieces.decodes
    if decodes:
        at_once = _heads_at_once(shared, numbers)
        tile = {
            "BLOCK_M": _block(at_once),
            "BLOCK_N": keys,
            "num_warps": 4,
            "num_stages": 3 if numbers <= 256 else 2,
        }
        splits = splits_of(decodes, kv_heads * -(-shared // at_once))
        launch(slice(0, decodes), decodes, at_once, splits, tile)
    if others:
        rows = 16 if numbers > 512 else 32 if is_long or numbers > 256 else 128 if numbers <= 128 else 64
        at_once = min(shared, rows)
        tile = {
            "BLOCK_M": rows,
            "BLOCK_N": keys,
            "num_warps": 4 if numbers <= 64 else 8,
            "num_stages": 3 if numbers <= 128 else 2,
        }
        tiles = pieces.queries // (rows // at_once) + others
        launch(slice(decodes, decodes + others), tiles, at_once, 1, tile)


def split_bytes(decodes: int, heads: int, kv_heads: int, size: int, latent: int, is_long: bool) -> int:
    """What the parts of decodes take in a layer at most, where a step has up to so many. Few decodes are divided over more programs
    than many, so that it has a bound.
    """
    shared = heads // kv_heads
    programs = kv_heads * -(-shared // _heads_at_once(shared, _numbers(size, latent, is_long)))
    splits = ((some, splits_of(some, programs)) for some in range(1, decodes + 1))
    return max((some * of for some, of in splits if of > 1), default=0) * heads * ((latent or size) + 2) * 4


def _numbers(size: int, latent: int, is_long: bool) -> int:
    """Of a key or a value, as tiles hold them; numbers of 4 bytes count twice."""
    first = latent or 1 << (size.bit_length() - 1)
    return max(_block(first), _block(latent or size)) * (2 if is_long else 1)


def _heads_at_once(shared: int, numbers: int) -> int:
    """Of those that share a key head, the heads of a tile of a decode."""
    return min(shared, 64 if numbers <= 256 else 16)


def _block(numbers: int) -> int:
    """The least power of two that a product of tiles takes, and that has room for so many."""
    return max(16, 1 << (numbers - 1).bit_length())
