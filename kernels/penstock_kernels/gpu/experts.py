"""Mixtures of experts on a GPU: `mix_experts` of `penstock_kernels.experts`, which calls it, without a word from the device to the host.

Tokens' rows are put in order of their experts, and every expert's rows are cut into blocks. The grids have room for as many
blocks as the shapes may need; a table on the device says which expert a block is of, or that there is none. So a step can be captured
in a CUDA graph, and only weights of experts that some token goes to are read. Tiles are chosen for an H100.

Letters beside those of the package: A experts of one token, G rows of an expert's first matrix, R = T A pairs of a token and one
of its experts.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Pairs at once, so that a long prompt takes no more memory: so many, or so many for each expert. By then the arithmetic takes longer than
# reading the weights.
MOST_ROWS, MOST_ROWS_OF_EXPERT = 1 << 15, 128
ENTRY = 3  # numbers of a block in the table: its expert (-1: none), its first row in order, and the row behind its expert's last


class Tiles(NamedTuple):
    """What one program of a product makes, and how."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def tiles(rows: int, experts: int, dtype: torch.dtype) -> Tiles:
    """By the rows that an expert has on average. Few: weights are read as fast as memory gives them; many: as in any large product."""
    if rows <= 16 * experts:
        chosen = Tiles(16, 64, 128, 4, 4)
    elif rows <= 64 * experts:
        chosen = Tiles(64, 128, 64, 4, 4)
    else:
        chosen = Tiles(128, 128, 64, 8, 3)
    if dtype == torch.float32:
        return chosen._replace(outputs=chosen.outputs // 2, inputs=chosen.inputs // 2)
    return chosen


def mix_experts(
    x_TE: Tensor,
    weights_TA: Tensor,
    experts_TA: Tensor,
    first: int,
    up_XGE: Tensor,
    up_bias_XG: Tensor | None,
    down_XEF: Tensor,
    down_bias_XE: Tensor | None,
    activation: Callable[[Tensor], Tensor],
    weighs_input: bool = False,
) -> Tensor:
    """As `penstock_kernels.experts.mix_experts` without `tile`; a token's experts are added in the order that it has them in.

    Each expert's output is rounded to x's dtype before it is weighed, as there. Matrices and biases may have any strides.
    """
    tokens, per_token = experts_TA.shape
    at_once = max(max(MOST_ROWS, MOST_ROWS_OF_EXPERT * len(up_XGE)) // per_token, 1)
    if tokens > at_once:
        matrices = (first, up_XGE, up_bias_XG, down_XEF, down_bias_XE, activation, weighs_input)
        parts = zip(*(torch.split(one, at_once) for one in (x_TE, weights_TA, experts_TA)), strict=True)
        return torch.cat([mix_experts(x, weights, experts, *matrices) for x, weights, experts in parts])
    rows, experts = tokens * per_token, up_XGE.shape[0]
    made_TE = x_TE.new_empty(tokens, down_XEF.shape[1])
    if not tokens:
        return made_TE
    experts_TA = experts_TA.contiguous()
    shape = tiles(rows, experts, x_TE.dtype)
    order_R, blocks = in_order(experts_TA, first, experts, shape.rows)
    if weighs_input:
        read_RE = (x_TE.unsqueeze(1) * weights_TA.unsqueeze(2).to(x_TE.dtype)).view(rows, -1)
    else:
        read_RE = x_TE.contiguous()
    # Rows of what other ranks hold are at the end. Nothing writes them, the activation reads them, and nobody reads that.
    inner_RG = x_TE.new_empty(rows, up_XGE.shape[1])
    per_row = 1 if weighs_input else per_token
    _multiply(read_RE, up_XGE, up_bias_XG, inner_RG, order_R, blocks, shape, per_row, False)
    inner_RF = activation(inner_RG).contiguous()
    each_RE = x_TE.new_empty(rows, down_XEF.shape[1])
    _multiply(inner_RF, down_XEF, down_bias_XE, each_RE, order_R, blocks, shape, 0, True)
    grid = (tokens, triton.cdiv(made_TE.shape[1], 512))
    _sum[grid](
        each_RE,
        weights_TA.contiguous(),
        experts_TA,
        made_TE,
        first,
        experts,
        made_TE.shape[1],
        PER_TOKEN=per_token,
        WEIGHED=not weighs_input,
        BLOCK=512,
    )
    return made_TE


def in_order(experts_TA: Tensor, first: int, experts: int, block: int) -> tuple[Tensor, Tensor]:
    """Pairs (R,) int32 in order of their experts, those that other ranks hold last, and the table (blocks, ENTRY) int32."""
    rows = experts_TA.numel()
    # An expert's blocks begin at the number of its first row where there are few rows, else at the number of whole blocks before it and
    # one for each expert before it: both leave room for all of them, and need no other expert's blocks to be counted.
    by_row = rows <= rows // block + experts
    count = rows if by_row else rows // block + experts
    order_R = torch.empty(rows, dtype=torch.int32, device=experts_TA.device)
    table = torch.empty(count, ENTRY, dtype=torch.int32, device=experts_TA.device)
    few = rows <= 1024
    _sort[(experts + 1,)](
        experts_TA,
        order_R,
        table,
        rows,
        count,
        first,
        experts,
        BLOCK_M=block,
        BY_ROW=by_row,
        CHUNK=256 if few else 4096,
        num_warps=4 if few else 8,
    )
    return order_R, table


def _multiply(
    x: Tensor,
    weight_XOI: Tensor,
    bias_XO: Tensor | None,
    out_RO: Tensor,
    order_R: Tensor,
    table: Tensor,
    shape: Tiles,
    per_row: int,
    scatters: bool,
) -> None:
    """Each row times its expert's matrix. A row of x has `per_row` pairs; 0: x is in order. `scatters`: what is made is by pair, else in order."""
    blocks, (_, outputs, inputs) = table.shape[0], weight_XOI.shape
    _product[(blocks * triton.cdiv(outputs, shape.outputs),)](
        x,
        weight_XOI,
        bias_XO,
        out_RO,
        order_R,
        table,
        blocks,
        outputs,
        inputs,
        *weight_XOI.stride(),
        *((0, 0) if bias_XO is None else bias_XO.stride()),
        PER_ROW=per_row,
        SCATTERS=scatters,
        HAS_BIAS=bias_XO is not None,
        GROUP=8,
        BLOCK_M=shape.rows,
        BLOCK_N=shape.outputs,
        BLOCK_K=shape.inputs,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )


@triton.jit
def _held(experts, row, rows, first, count):
    """Numbers of pairs' experts on this rank; `count`: another rank has it; behind the last row, one more."""
    expert = tl.load(experts + row, mask=row < rows, other=0).to(tl.int32) - first
    expert = tl.where((expert >= 0) & (expert < count), expert, count)
    return tl.where(row < rows, expert, count + 1)


@triton.jit(do_not_specialize=["rows", "blocks"])
def _sort(
    experts,
    order,
    table,
    rows,
    blocks,
    first,
    count,
    BLOCK_M: tl.constexpr,
    BY_ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A program for each expert, and one for what others hold: its pairs' places in order, and its blocks."""
    expert = tl.program_id(0)
    lanes = tl.arange(0, CHUNK)
    before = tl.zeros([CHUNK], tl.int32)
    own = tl.zeros([CHUNK], tl.int32)
    for at in range(0, rows, CHUNK):
        held = _held(experts, at + lanes, rows, first, count)
        before += (held < expert).to(tl.int32)
        own += (held == expert).to(tl.int32)
    start = tl.sum(before, 0)
    end = start + tl.sum(own, 0)

    place = start
    for at in range(0, rows, CHUNK):
        own = (_held(experts, at + lanes, rows, first, count) == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(own, 0) - own, at + lanes, mask=own > 0)
        place += tl.sum(own, 0)

    if BY_ROW:
        block = start
        behind = end
    else:
        block = start // BLOCK_M + expert
        behind = end // BLOCK_M + expert + 1
    behind = tl.where(expert == count, blocks, behind)
    filled = tl.where(expert == count, 0, tl.cdiv(end - start, BLOCK_M))
    for at in range(0, behind - block, CHUNK):
        number = at + lanes
        entry = table + (block + number) * 3
        here = number < behind - block
        tl.store(entry, tl.where(number < filled, expert, -1), mask=here)
        tl.store(entry + 1, start + number * BLOCK_M, mask=here)
        tl.store(entry + 2, number * 0 + end, mask=here)


@triton.jit(do_not_specialize=["blocks"])
def _product(
    x,
    weight,
    bias,
    out,
    order,
    table,
    blocks,
    outputs,
    inputs,
    weight_stride_x,
    weight_stride_o,
    weight_stride_i,
    bias_stride_x,
    bias_stride_o,
    PER_ROW: tl.constexpr,
    SCATTERS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A block of one expert's rows times BLOCK_N rows of its matrix, summed in fp32."""
    # GROUP blocks with the same outputs follow one another, so that weights which they share are read from memory once.
    program = tl.program_id(0)
    in_group = GROUP * tl.cdiv(outputs, BLOCK_N)
    group_first = program // in_group * GROUP
    group_blocks = tl.minimum(blocks - group_first, GROUP)
    block = group_first + program % in_group % group_blocks
    o = program % in_group // group_blocks * BLOCK_N + tl.arange(0, BLOCK_N)

    expert = tl.load(table + block * 3).to(tl.int64)
    if expert < 0:
        return
    row = tl.load(table + block * 3 + 1) + tl.arange(0, BLOCK_M)
    real = row < tl.load(table + block * 3 + 2)
    pair = tl.load(order + row, mask=real, other=0)
    read = (pair // PER_ROW if PER_ROW else row).to(tl.int64)
    written = (pair if SCATTERS else row).to(tl.int64)

    i = tl.arange(0, BLOCK_K)
    x_at = x + read[:, None] * inputs + i[None, :]
    weight += expert * weight_stride_x
    weight_at = weight + o[None, :] * weight_stride_o + i[:, None] * weight_stride_i
    made = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(0, inputs, BLOCK_K):
        inside = at + i < inputs
        x_MK = tl.load(x_at, mask=real[:, None] & inside[None, :], other=0.0)
        weight_KN = tl.load(weight_at, mask=inside[:, None] & (o < outputs)[None, :], other=0.0)
        made = tl.dot(x_MK, weight_KN, made, input_precision="ieee")
        x_at += BLOCK_K
        weight_at += BLOCK_K * weight_stride_i
    if HAS_BIAS:
        bias_at = bias + expert * bias_stride_x + o * bias_stride_o
        made += tl.load(bias_at, mask=o < outputs, other=0.0).to(tl.float32)[None, :]
    out_at = out + written[:, None] * outputs + o[None, :]
    tl.store(out_at, made.to(out.dtype.element_ty), mask=real[:, None] & (o < outputs)[None, :])


@triton.jit
def _sum(
    each,
    weights,
    experts,
    made,
    first,
    count,
    width,
    PER_TOKEN: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What a token's experts on this rank made, each times its weight, added in fp32. What no program made isn't read."""
    pair = tl.program_id(0).to(tl.int64) * PER_TOKEN
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(PER_TOKEN):
        expert = tl.load(experts + pair + place) - first
        made_here = tl.where((expert >= 0) & (expert < count), width, 0)
        one = tl.load(each + (pair + place) * width + e, mask=e < made_here, other=0.0).to(tl.float32)
        if WEIGHED:
            one = one * tl.load(weights + pair + place).to(tl.float32)
        total += one
    tl.store(
        made + tl.program_id(0).to(tl.int64) * width + e, total.to(made.dtype.element_ty), mask=e < width
    )
