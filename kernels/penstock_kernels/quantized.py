"""Matrices of whole numbers of 8 or 4 bits, as torch computes with them: on GPUs. (The CPU engine's are `tiles.QuantizedMatrix`.)

A number is (code - zero point) x scale. Of 8 bits a scale is an output's, in fp32, and codes are 128 more than numbers; of 4 bits it is
that of a group of inputs, in bf16, and where there are no zero points they are 8. Codes lie as `gpu/quantized.cu` reads them, whose
header says how: the kernels are what they are made for, `unpacked` is what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.matrix import linear

TILE = 16
SYMMETRIC_ZERO = 8
# What is tried as a share of the scale that a group's largest number asks for; the one with the least squared error is taken.
SHARES = tuple(0.70 + 0.02 * step for step in range(24))
ROWS_AT_ONCE = 1 << 24  # numbers


@dataclass(frozen=True)
class PackedMatrix:
    """(O, I) whole numbers: int32 words of codes, and what they are counted in."""

    bits: int
    group: int
    """Inputs of a scale; 0: all."""
    outputs: int
    inputs: int
    words: Tensor
    scales: Tensor  # fp32 (O,), or pairs of bf16 as int32
    offsets: Tensor | None  # pairs of bf16 as int32: -(128 + zero point)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Its tensors."""
        return tuple(part for part in (self.words, self.scales, self.offsets) if part is not None)


def chunk(bits: int) -> int:
    """Inputs that a matrix has a multiple of."""
    return 256 // bits


def packed(codes_OI: Tensor, scales: Tensor, zeros_OG: Tensor | None, bits: int) -> PackedMatrix:
    """Codes (uint8) with scales, (O,) in fp32 of 8 bits and (O, G) in bf16 of 4, and zero points (O, G) in uint8."""
    outputs, inputs = codes_OI.shape
    group = 0 if bits == 8 else inputs // scales.shape[1]
    codes_OI = F.pad(codes_OI, (0, 0, 0, -outputs % TILE))
    # Tile, upper half of its rows, row; chunk, half of it, quarter, and of a quarter's eight inputs which.
    halves = chunk(bits) // 32
    parts = codes_OI.view(-1, 2, 8, inputs // chunk(bits), halves, 4, 2, 2, 2).to(torch.int32)
    of_rows, of_pairs, of_two = (torch.arange(2, device=codes_OI.device, dtype=torch.int32) for _ in range(3))
    if bits == 4:
        places = 4 * (of_rows[:, None, None] + 2 * of_pairs[:, None]) + 16 * of_two  # (upper, pair, number)
        shifted = parts << places.view(1, 2, 1, 1, 1, 1, 1, 2, 2)
        words = shifted.sum((1, 7, 8), dtype=torch.int32).permute(0, 2, 1, 4, 3, 5)
    else:
        places = 8 * (2 * of_rows[:, None] + of_two)  # (upper, number)
        shifted = parts << places.view(1, 2, 1, 1, 1, 1, 1, 1, 2)
        words = shifted.sum((1, 8), dtype=torch.int32).permute(0, 2, 1, 4, 3, 5, 6)
    offsets = None if zeros_OG is None else _pairs(-(zeros_OG.float() + 128.0))
    kept = scales.float().contiguous() if bits == 8 else _pairs(scales)
    return PackedMatrix(bits, group, outputs, inputs, words.contiguous().flatten(), kept, offsets)


def _pairs(numbers_OG: Tensor) -> Tensor:
    """Numbers in bf16, those of rows g and g + 8 of a tile in a word: (tiles, G, 8)."""
    outputs, groups = numbers_OG.shape
    padded = F.pad(numbers_OG.bfloat16(), (0, 0, 0, -outputs % TILE)).view(-1, 2, 8, groups)
    return padded.permute(0, 3, 2, 1).contiguous().view(torch.int32).squeeze(-1)


def _of_pairs(pairs: Tensor, outputs: int) -> Tensor:
    """(O, G) in fp32."""
    tiles, groups, _ = pairs.shape
    found = pairs.unsqueeze(-1).view(torch.bfloat16)
    return found.permute(0, 3, 2, 1).reshape(TILE * tiles, groups)[:outputs].float()


def unpacked(matrix: PackedMatrix) -> Tensor:
    """What it stands for: (O, I) in bf16."""
    chunks, halves = matrix.inputs // chunk(matrix.bits), chunk(matrix.bits) // 32
    device = matrix.words.device
    one = torch.arange(2, device=device, dtype=torch.int32)
    if matrix.bits == 4:
        words = matrix.words.view(-1, chunks, 8, 4, halves, 2).permute(0, 2, 1, 4, 3, 5)
        places = 4 * (one[:, None, None] + 2 * one[:, None]) + 16 * one
        codes = words.unsqueeze(1).unsqueeze(-1).unsqueeze(-1) >> places.view(1, 2, 1, 1, 1, 1, 1, 2, 2) & 15
    else:
        words = matrix.words.view(-1, chunks, 8, 4, halves, 2, 2).permute(0, 2, 1, 4, 3, 5, 6)
        places = 8 * (2 * one[:, None] + one)
        codes = words.unsqueeze(1).unsqueeze(-1) >> places.view(1, 2, 1, 1, 1, 1, 1, 1, 2) & 255
    codes_OI = codes.reshape(-1, matrix.inputs)[: matrix.outputs].float()
    if matrix.bits == 8:
        return ((codes_OI - 128.0) * matrix.scales[:, None]).bfloat16()
    grouped = codes_OI.view(matrix.outputs, -1, matrix.group)
    if matrix.offsets is None:
        whole = grouped - SYMMETRIC_ZERO
    else:
        whole = grouped + 128.0 + _of_pairs(matrix.offsets, matrix.outputs).unsqueeze(-1)
    made = whole * _of_pairs(matrix.scales, matrix.outputs).unsqueeze(-1)
    return made.view(matrix.outputs, matrix.inputs).bfloat16()


def quantized_linear(x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, tile: int = 0) -> Tensor:
    """x W^T + b: (T, I) in bf16 to (T, O), as `matrix.linear` of the numbers that the matrix stands for."""
    if usable(x_TI):
        from penstock_kernels.gpu import quantized

        if quantized.takes(matrix):
            if tile:
                return linear(x_TI, quantized.written_out(matrix), bias_O, tile)
            return quantized.linear(x_TI, matrix, bias_O)
    return linear(x_TI, unpacked(matrix), bias_O, tile)


def packed_bytes(outputs: int, inputs: int, bits: int, group: int, has_zeros: bool) -> int:
    """Of a matrix's parts."""
    rows = -(-outputs // TILE) * TILE
    scales = 4 * outputs if bits == 8 else rows * inputs // group * (4 if has_zeros else 2)
    return rows * inputs * bits // 8 + scales


def quantized(matrix_OI: Tensor, bits: int, group: int = 0, *, with_zeros: bool = False) -> PackedMatrix:
    """A matrix rounded to the nearest by the scales of `SHARES` whose squared error is least. `group`: of 4 bits."""
    outputs, inputs = matrix_OI.shape
    codes_OI = torch.empty((outputs, inputs), dtype=torch.uint8, device=matrix_OI.device)
    scales, zeros = [], []
    some = max(ROWS_AT_ONCE // inputs, 1)
    for begin in range(0, outputs, some):
        numbers = matrix_OI[begin : begin + some].float().view(-1, group or inputs)
        codes, scale, zero = _rounded(numbers, bits, with_zeros)
        codes_OI[begin : begin + some] = codes.view(-1, inputs)
        scales.append(scale.view(-1, inputs // (group or inputs)))
        zeros.append(zero.view_as(scales[-1]))
    found = torch.cat(scales)
    if bits == 8:
        return packed(codes_OI, found.squeeze(1), None, bits)
    return packed(codes_OI, found.bfloat16(), torch.cat(zeros) if with_zeros else None, bits)


def _rounded(numbers_GN: Tensor, bits: int, with_zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of groups, their scales and zero points."""
    most = (1 << bits) - 1
    low_G, high_G = numbers_GN.amin(1, keepdim=True), numbers_GN.amax(1, keepdim=True)
    best: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    for share in SHARES:
        if with_zeros:
            low_G, high_G = low_G.clamp(max=0.0), high_G.clamp(min=0.0)
            scale = (high_G - low_G) * (share / most)
        elif bits == 8:
            scale = torch.maximum(high_G, -low_G) * (share / 127)
        else:  # the largest number becomes -8, whatever its sign: there is one more of these
            largest = torch.where(high_G > -low_G, high_G, low_G)
            scale = largest * (share / -8)
        if bits == 4:
            scale = scale.bfloat16().float()
        zero = torch.full_like(scale, float(1 << (bits - 1)))
        by = torch.where(scale == 0.0, torch.ones_like(scale), scale)
        if with_zeros:
            zero = (-low_G * share / by).round().clamp_(0, most)
        codes = ((numbers_GN / by).round() + zero).clamp_(1 if bits == 8 else 0, most)
        error = ((codes - zero) * scale - numbers_GN).square().sum(1, keepdim=True)
        if best is None:
            best = (error, codes, scale, zero)
        else:
            better = error < best[0]
            made = zip((error, codes, scale, zero), best, strict=True)
            best = tuple(torch.where(better, new, old) for new, old in made)  # type: ignore[assignment]
    assert best is not None
    return best[1].to(torch.uint8), best[2], best[3].to(torch.uint8)
