"""Tokens from logits: the likeliest and how likely they are, what truncation keeps, and which one is drawn.

A row is cut into pieces, so that one row keeps more than one processor busy; a second kernel joins what was found in them. Nothing is
sorted, and nothing as long as a row is written but what truncation keeps.
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


@triton.jit
def _order(logits):
    # Integers in the order of the numbers, equal where those are: of the two zeros, too.
    bits = logits.to(tl.int32, bitcast=True)
    bits = tl.where((bits << 1) == 0, 0, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _mass(logits, largest):
    # 2^42 for the likeliest, so that 2^20 tokens cannot pass 2^62. Integers have the same sum in whatever order.
    mass = tl.exp(tl.minimum(logits - largest, 0.0)) * 4398046511104.0
    return tl.where(logits > float("-inf"), mass, 0.0).to(tl.int64)


@triton.jit
def _place(bins):
    # Logits lie in few bins, neighbours of each other. Apart in memory they are added to at the same time.
    return (bins & 7) * 256 + (bins >> 3)


@triton.jit
def _fill(
    logits_ptr, largest_ptr, limits_ptr, found_ptr, bins_ptr, row_stride, vocabulary,
    LEVEL: tl.constexpr, BY_MASS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    # Axis 0: rows; 1: pieces. Of `found` a row has three levels of top-k and three of top-p.
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = piece * PIECE + tl.arange(0, PIECE)
    limit = tl.load(limits_ptr + row)
    end = tl.where(limit < (1.0 if BY_MASS else vocabulary), vocabulary, 0)
    logits_V = tl.load(logits_ptr + row * row_stride + v, mask=v < end, other=float("-inf"))
    keys_V = _order(logits_V)
    if BY_MASS:
        weights_V = _mass(logits_V, tl.load(largest_ptr + row))
        is_counted_V = (weights_V > 0) & (keys_V >= tl.load(found_ptr + row * 6 + 2))
        own_ptr = found_ptr + row * 6 + 3
    else:
        weights_V = tl.full((PIECE,), 1, tl.int64)
        is_counted_V = logits_V > float("-inf")
        own_ptr = found_ptr + row * 6
    if LEVEL == 0:
        bins_V = (keys_V >> 21) + 1024
    elif LEVEL == 1:
        is_counted_V = is_counted_V & ((keys_V >> 21) == tl.load(own_ptr))
        bins_V = (keys_V >> 10) & 2047
    else:
        is_counted_V = is_counted_V & ((keys_V >> 10) == tl.load(own_ptr + 1))
        bins_V = keys_V & 1023
    at_V = (row * 3 + LEVEL) * 2048 + _place(bins_V)
    tl.atomic_add(bins_ptr + at_V, weights_V, mask=is_counted_V, sem="relaxed")


@triton.jit
def _find(
    bins_ptr, limits_ptr, found_ptr, goals_ptr,
    LEVEL: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = row * 3 + LEVEL
    own_ptr = found_ptr + row * 6 + LEVEL
    if BY_MASS:
        own_ptr = own_ptr + 3
    b = tl.arange(0, 2048)
    weights_B = tl.load(bins_ptr + at * 2048 + _place(2047 - b))  # the bin of the largest logits first
    total = tl.sum(weights_B, 0)
    if LEVEL > 0:
        goal = tl.load(goals_ptr + at - 1)
    elif BY_MASS:
        share = tl.load(limits_ptr + row).to(tl.float64) * total.to(tl.float64)
        below = share.to(tl.int64)
        goal = tl.maximum(below + (below.to(tl.float64) < share).to(tl.int64), 1)
    else:
        goal = tl.maximum(tl.load(limits_ptr + row), 1)
    first = tl.min(tl.where(tl.cumsum(weights_B, 0) >= goal, b, 2047), 0)
    above = tl.sum(tl.where(b < first, weights_B, 0), 0)
    found = 2047 - first
    if LEVEL == 0:
        found = found - 1024
    elif LEVEL == 1:
        found = (tl.load(own_ptr - 1) << 11) | found
    else:
        found = (tl.load(own_ptr - 1) << 10) | found
    # Out of reach is the goal where fewer tokens are possible than top-k says, and of rows without a limit, where nothing is counted.
    # The lowest integer agrees with no logit at the next level, and is below all.
    tl.store(own_ptr, tl.where(total >= goal, found, -2147483648))
    tl.store(goals_ptr + at, goal - above)


@triton.jit
def _keep(
    logits_ptr, found_ptr, least_ptr, kept_ptr, row_stride, vocabulary,
    HAS_LEAST: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    # Axis 0: rows; 1: pieces.
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = piece * PIECE + tl.arange(0, PIECE)
    is_real_V = v < vocabulary
    logits_V = tl.load(logits_ptr + row * row_stride + v, mask=is_real_V, other=float("-inf"))
    floor = tl.maximum(tl.load(found_ptr + row * 6 + 2), tl.load(found_ptr + row * 6 + 5))
    is_out_V = _order(logits_V) < floor
    if HAS_LEAST:
        is_out_V = is_out_V | (logits_V < tl.load(least_ptr + row))
    kept_V = tl.where(is_out_V, float("-inf"), logits_V)
    tl.store(kept_ptr + row * vocabulary + v, kept_V, mask=is_real_V)


def keep_largest(
    logits_SV: Tensor, top_k_S: Tensor | None, top_p_S: Tensor | None, min_p_S: Tensor | None
) -> Tensor:
    """See `sampling.keep_largest`. logits (S, V) fp32, numbers of a row neighbours.

    The least logit that a limit keeps is the largest with as many tokens at it or above as top-k says, or as much mass as top-p
    says. Its bits are found in three levels, the highest first: what agrees with the bits already found is sorted into bins by its next
    ones. Mass is counted in 2^-42 of the likeliest token's: a token within that, or fp32's rounding, of top-p may be on either side,
    and is on the same one in every run and batch.
    """
    rows, vocabulary = logits_SV.shape
    pieces, stride, device = -(-vocabulary // PIECE), logits_SV.stride(0), logits_SV.device
    largest_S = logits_SV if top_p_S is None and min_p_S is None else logits_SV.amax(-1)
    found_S6 = torch.full((rows, 6), -(1 << 31), dtype=torch.int32, device=device)
    goals_S3 = torch.empty((rows, 3), dtype=torch.int64, device=device)
    for limits_S, by_mass in ((top_k_S, False), (top_p_S, True)):
        if limits_S is None:
            continue
        bins_S3B = torch.zeros((rows, 3, 2048), dtype=torch.int64, device=device)
        for level in range(3):
            _fill[rows, pieces](
                logits_SV, largest_S, limits_S, found_S6, bins_S3B, stride, vocabulary,
                LEVEL=level, BY_MASS=by_mass, PIECE=PIECE, num_warps=8,
            )  # fmt: skip
            _find[(rows,)](bins_S3B, limits_S, found_S6, goals_S3, LEVEL=level, BY_MASS=by_mass, num_warps=8)
    least_S = largest_S if min_p_S is None else largest_S + min_p_S.log()
    kept_SV = torch.empty((rows, vocabulary), dtype=torch.float32, device=device)
    _keep[rows, pieces](
        logits_SV, found_S6, least_S, kept_SV, stride, vocabulary,
        HAS_LEAST=min_p_S is not None, PIECE=PIECE, num_warps=8,
    )  # fmt: skip
    return kept_SV


@triton.jit
def _weigh(
    logits_ptr, largest_ptr, masses_ptr, row_stride, vocabulary, pieces,
    PIECE: tl.constexpr,
):  # fmt: skip
    # Axis 0: rows; 1: pieces.
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = piece * PIECE + tl.arange(0, PIECE)
    logits_V = tl.load(logits_ptr + row * row_stride + v, mask=v < vocabulary, other=float("-inf"))
    mass_V = _mass(logits_V, tl.load(largest_ptr + row))
    tl.store(masses_ptr + row * pieces + piece, tl.sum(mass_V, 0))


@triton.jit
def _pick(
    logits_ptr, largest_ptr, masses_ptr, uniform_ptr, tokens_ptr, row_stride, vocabulary, pieces,
    PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK)
    masses_P = tl.load(masses_ptr + row * pieces + p, mask=p < pieces, other=0)
    total = tl.sum(masses_P, 0)
    goal = (tl.load(uniform_ptr + row) * total.to(tl.float64)).to(tl.int64)
    goal = tl.minimum(goal, total - 1)  # the product may be rounded up to the total
    piece = tl.min(tl.where(tl.cumsum(masses_P, 0) > goal, p, pieces - 1), 0)
    goal = goal - tl.sum(tl.where(p < piece, masses_P, 0), 0)
    v = piece * PIECE + tl.arange(0, PIECE)
    logits_V = tl.load(logits_ptr + row * row_stride + v, mask=v < vocabulary, other=float("-inf"))
    mass_V = _mass(logits_V, tl.load(largest_ptr + row))
    # The last possible one, should none pass: only where there is none at all.
    last = tl.max(tl.where(mass_V > 0, v, 0), 0)
    token = tl.min(tl.where((tl.cumsum(mass_V, 0) > goal) & (mass_V > 0), v, last), 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))


def choose(logits_SV: Tensor, uniform_S: Tensor) -> Tensor:
    """See `sampling.choose`. logits (S, V) fp32, numbers of a row neighbours; of rows without a finite one the token is any."""
    rows, vocabulary = logits_SV.shape
    pieces = -(-vocabulary // PIECE)
    largest_S = logits_SV.amax(-1)
    masses_SP = torch.empty((rows, pieces), dtype=torch.int64, device=logits_SV.device)
    tokens_S = torch.empty(rows, dtype=torch.int64, device=logits_SV.device)
    _weigh[rows, pieces](
        logits_SV, largest_S, masses_SP, logits_SV.stride(0), vocabulary, pieces, PIECE=PIECE, num_warps=8
    )
    _pick[(rows,)](
        logits_SV, largest_S, masses_SP, uniform_S, tokens_S, logits_SV.stride(0), vocabulary, pieces,
        PIECE=PIECE, BLOCK=max(1 << (pieces - 1).bit_length(), 16), num_warps=8,
    )  # fmt: skip
    return tokens_S
