"""Matrices of whole numbers of 8 or 4 bits on GPUs: the product, and rounding. How they lie is in `packed_matrix`."""

from __future__ import annotations

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor, torch
from penstock_kernels.matrix import linear
from penstock_kernels.packed_matrix import PackedMatrix, packed, unpacked

# What is tried as a share of the scale that a group's largest number asks for; the one with the least squared error is taken.
SHARES = tuple(0.70 + 0.02 * step for step in range(24))
ROWS_AT_ONCE = 1 << 24  # numbers


def quantized_linear(x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, tile: int = 0) -> Tensor:
    """x W^T + b: (T, I) in bf16 to (T, O), as `matrix.linear` of the numbers that the matrix stands for."""
    if usable(x_TI):
        from penstock_kernels.gpu import quantized

        if quantized.takes(matrix):
            if tile:
                return linear(x_TI, quantized.written_out(matrix), bias_O, tile)
            return quantized.linear(x_TI, matrix, bias_O)
    return linear(x_TI, unpacked(matrix), bias_O, tile)


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
