"""Matrices as checkpoints of 4 bits are published: whole numbers, zero points and scales, and the bf16 that they are read as."""

import torch
from torch import Tensor

from penstock_kernels.program import GROUPED, TILE_OUTPUTS, Format, QuantizedMatrix, rounded_up

TWICE_FP4 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int32)


def of_format(format: Format, rows: int, columns: int, seed: int = 0) -> Tensor:
    """In bf16 what a published matrix of such groups stands for."""
    if format == Format.FP4_32:
        return published_fp4(rows, columns, seed)[2]
    if format == Format.OFFSET_32:
        return published_offsets(rows, columns, seed).bfloat16()
    return published(rows, columns, GROUPED[format], seed=seed)[2]


def published(
    rows: int,
    columns: int,
    group: int,
    *,
    symmetric: bool = False,
    seed: int = 0,
    scales: torch.dtype = torch.float16,
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers less their zero point (O, I), scales (O, G), and in bf16 what they stand for. The last group may be cut off."""
    chance = torch.Generator().manual_seed(seed)
    groups = -(-columns // group)
    codes_OGI = torch.randint(0, 16, (rows, groups, group), generator=chance)
    # What fills up a group is 0, and no zero point of 16 has that.
    zeros_OG = torch.randint(0, 16 if columns % group else 17, (rows, groups), generator=chance)
    numbers_OGI = codes_OGI - (8 if symmetric else zeros_OG[:, :, None])
    scales_OG = (torch.rand((rows, groups), generator=chance) * 0.02 + 0.001).to(scales).float()
    matrix_OI = (numbers_OGI * scales_OG[:, :, None]).flatten(1)[:, :columns].bfloat16()
    return numbers_OGI.flatten(1)[:, :columns], scales_OG, matrix_OI


def published_fp4(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The same of fp4: twice its numbers, half of its powers of two."""
    chance = torch.Generator().manual_seed(seed)
    groups = -(-columns // 32)
    numbers_OI = TWICE_FP4[torch.randint(0, 16, (rows, groups * 32), generator=chance)]
    scales_OG = torch.exp2(torch.randint(-12, -3, (rows, groups), generator=chance).float())
    matrix_OI = numbers_OI * scales_OG.repeat_interleave(32, 1)
    return numbers_OI[:, :columns], scales_OG, matrix_OI[:, :columns].bfloat16()


def published_offsets(rows: int, columns: int, seed: int = 0, size: float = 1.0) -> Tensor:
    """What blocks of GGUF's Q4_K stand for, in fp64: their scales and offsets are numbers of 6 bits times one of fp16, which `size` is a factor of."""
    chance = torch.Generator().manual_seed(seed)
    groups = -(-columns // 32)
    codes_OGI = torch.randint(0, 16, (rows, groups, 32), generator=chance).double()
    scales, offsets = torch.randint(1, 64, (2, rows, groups, 1), generator=chance).double()
    steps = ((torch.rand((2, rows, 1, 1), generator=chance) * 3e-4 + 1e-4) * size).half().double()
    whole_OI: Tensor = (codes_OGI * scales * steps[0] - offsets * 8 * steps[1]).flatten(1)
    return whole_OI[:, :columns]


def held(matrix: QuantizedMatrix) -> tuple[Tensor, Tensor]:
    """What the tiles hold, read back by the description of the format: numbers less their zero point (O, I), and scales (O, G). Of groups with offsets
    zero points are such that scales times numbers are what they stand for.
    """
    group = GROUPED[matrix.format]
    panels, per_tile = rounded_up(matrix.rows, TILE_OUTPUTS) // TILE_OUTPUTS, 128 // group
    is_fp4 = matrix.format == Format.FP4_32
    head = per_tile * (16 if is_fp4 else 64)
    tiles = matrix.tiles.view(panels, -1, head + 1024)
    words = tiles[..., :head].contiguous()
    if matrix.format == Format.OFFSET_32:
        halves = words.view(torch.float16).float().view(panels, -1, per_tile, 2, 16).permute(3, 0, 4, 1, 2)
        scales, offsets = halves.reshape(2, panels * 16, -1)
        # Where all numbers of a group are the same its scale is 0, and all are the offset.
        is_one = scales == 0
        zeros = torch.where(is_one, -1.0, -offsets.double() / scales)
        scales = torch.where(is_one, offsets, scales)
    else:
        words = words.to(torch.int32) << 23 if is_fp4 else words.view(torch.int32)
        words = words.view(panels, -1, per_tile, 16).permute(0, 3, 1, 2)
        zeros = (words & 31).reshape(panels * 16, -1)
        scales = (words & ~31).contiguous().view(torch.float32).reshape(panels * 16, -1)
    quads = tiles[..., head:].reshape(panels, -1, 16, 16, 4).permute(0, 3, 1, 2, 4).flatten(-2)
    codes = (
        torch.stack((quads & 15, quads >> 4), -2).flatten(-2).reshape(panels * 16, -1, group).to(torch.int32)
    )
    numbers = TWICE_FP4[codes].flatten(1) if is_fp4 else (codes - zeros[:, :, None]).flatten(1)
    beyond = worth(numbers, scales, group)
    assert beyond[:, matrix.columns :].count_nonzero() == 0 and beyond[matrix.rows :].count_nonzero() == 0
    groups = -(-matrix.columns // group)
    return numbers[: matrix.rows, : matrix.columns], scales[: matrix.rows, :groups]


def worth(numbers_OI: Tensor, scales_OG: Tensor, group: int) -> Tensor:
    """What they stand for, in fp64: (O, I)."""
    return numbers_OI.double() * scales_OG.double().repeat_interleave(group, 1)[:, : numbers_OI.shape[1]]
