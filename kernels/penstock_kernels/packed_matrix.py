"""How matrices of whole numbers of 8 or 4 bits lie where torch computes with them: on GPUs. (The CPU engine's are `tiles.QuantizedMatrix`.)

A number is (code - zero point) x scale. Of 8 bits a scale is an output's, in fp32, and codes are 128 more than numbers; of 4 bits it is
that of a group of inputs, in bf16, and where there are no zero points they are 8. Codes lie as `gpu/quantized.cu` reads them, whose
header says how: the kernels are what they are made for, `unpacked` is what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_kernels.later import F, Tensor, torch

TILE = 16
SYMMETRIC_ZERO = 8


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


def packed_bytes(outputs: int, inputs: int, bits: int, group: int, has_zeros: bool) -> int:
    """Of a matrix's parts."""
    rows = -(-outputs // TILE) * TILE
    scales = 4 * outputs if bits == 8 else rows * inputs // group * (4 if has_zeros else 2)
    return rows * inputs * bits // 8 + scales
