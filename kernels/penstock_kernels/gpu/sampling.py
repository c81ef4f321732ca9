"""The likeliest tokens and how likely they are, from one reading of the logits.

A row is cut into pieces, so that one row keeps more than one processor busy; a second kernel joins what was found in them. Nothing as long
as a row is written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 4096


@triton.jit
def _look(
    logits_ptr, found_ptr, places_ptr, row_stride, vocabulary, pieces,
    PIECE: tl.constexpr,
):  # fmt: skip
    # Axis 0: rows; 1: pieces.
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = piece * PIECE + tl.arange(0, PIECE)
    is_real_V = v < vocabulary
    logits_V = tl.load(logits_ptr + row * row_stride + v, mask=is_real_V, other=float("-inf"))
    largest = tl.max(logits_V, 0)
    # What is no number is nowhere the largest: the token has to be one even so.
    place = tl.min(tl.where(is_real_V & (logits_V == largest), v, vocabulary - 1), 0)
    above = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.sum(tl.exp(logits_V - above), 0)
    total = tl.sum(tl.where(is_real_V, logits_V, 0.0), 0)
    at = row * pieces + piece
    tl.store(places_ptr + at, place)
    tl.store(found_ptr + at * 3, largest)
    tl.store(found_ptr + at * 3 + 1, weights)
    tl.store(found_ptr + at * 3 + 2, total)


@triton.jit
def _join(
    found_ptr, places_ptr, tokens_ptr, logprobs_ptr, sound_ptr, vocabulary, pieces,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK)
    is_real_P = p < pieces
    at_P = row * pieces + p
    largest_P = tl.load(found_ptr + at_P * 3, mask=is_real_P, other=float("-inf"))
    weights_P = tl.load(found_ptr + at_P * 3 + 1, mask=is_real_P, other=0.0)
    totals_P = tl.load(found_ptr + at_P * 3 + 2, mask=is_real_P, other=0.0)
    places_P = tl.load(places_ptr + at_P, mask=is_real_P, other=0)
    largest = tl.max(largest_P, 0)
    token = tl.min(tl.where(is_real_P & (largest_P == largest), places_P, vocabulary - 1), 0)
    above = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.sum(weights_P * tl.exp(largest_P - above), 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    # The largest logit less the logarithm of the sum: e^0 is part of the weights.
    tl.store(logprobs_ptr + row, -tl.log(weights))
    tl.store(sound_ptr + row, tl.abs(tl.sum(totals_P, 0)) < float("inf"))


def greedy(logits_SV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `sampling.greedy`. logits (S, V) fp32, numbers of a row neighbours; of rows that are not sound the token is any."""
    rows, vocabulary = logits_SV.shape
    pieces = -(-vocabulary // PIECE)
    found_SP3 = logits_SV.new_empty((rows, pieces, 3))
    places_SP = logits_SV.new_empty((rows, pieces), dtype=torch.int32)
    tokens_S = logits_SV.new_empty(rows, dtype=torch.int64)
    logprobs_S = logits_SV.new_empty(rows)
    sound_S = logits_SV.new_empty(rows, dtype=torch.bool)
    _look[rows, pieces](
        logits_SV, found_SP3, places_SP, logits_SV.stride(0), vocabulary, pieces, PIECE=PIECE, num_warps=8
    )
    _join[(rows,)](
        found_SP3, places_SP, tokens_S, logprobs_S, sound_S, vocabulary, pieces,
        BLOCK=1 << (pieces - 1).bit_length(), num_warps=1,
    )  # fmt: skip
    return tokens_S, logprobs_S, sound_S
