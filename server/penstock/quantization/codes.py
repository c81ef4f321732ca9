"""Weights that a checkpoint holds as codes of 8 or 4 bits with scales beside them, and what they stand for: served in the dtype that is
asked for, as if the checkpoint had been in it.

A matrix of codes is `x.weight` like any other, with a dtype of one byte. What its scales are called says who made it: DeepSeek
(`weight_scale_inv`, fp32, for blocks of 128 x 128; `scale` in V4, powers of two, and for 32 numbers of fp4 each), compressed-tensors,
FBGEMM and ModelOpt (`weight_scale`, for a matrix or for each of its rows). The scales' shape says what each is for. fp8: Micikevicius et al., "FP8
Formats for Deep Learning", 2022; fp4 and scales that are powers of two: OCP, "Microscaling Formats (MX)", 2023. Must not import torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loading.model_files import Stored, whole_and_text

F32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

# Endings of the names of scales, and of those that belong to no weight: they are for activations and caches, which are not quantized here.
OF_WEIGHT = ("_scale_inv", "_scale")
OF_MODULE = (".scale", ".qscale_weight")
UNUSED = r".*(\.|_proj_)((input|output|activation|input_global|[kvq]|kv)_scale|input_zero_point|weight_shape)"
SCALES = ("F32", "F16", "BF16", "F8_E8M0", "U8")
EXPONENTS = ("F8_E8M0", "U8")
BYTES = ("F8_E4M3", "F8_E5M2", "I8", "U8")


def _fp8(exponent_bits: int, mantissa_bits: int) -> F32:
    """What each of 256 codes stands for. Of e4m3 one code of each sign is none, and there is no infinity; e5m2 is the upper half of fp16."""
    if exponent_bits == 5:
        upper: F32 = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
        return upper
    codes = np.arange(256)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = codes >> mantissa_bits & (1 << exponent_bits) - 1, codes & (1 << mantissa_bits) - 1
    steps = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    numbers = np.ldexp(steps.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    numbers = np.where(codes & 0x80, -numbers, numbers)
    numbers[(codes & 0x7F) == 0x7F] = np.nan
    made: F32 = numbers.astype(np.float32)
    return made


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate((FP4, -FP4))
# The two numbers of each byte, the lower half first, as one of 8 bytes.
FP4_PAIRS = np.stack((FP4[np.arange(256) & 15], FP4[np.arange(256) >> 4]), 1).view(np.uint64).ravel()
TABLES: dict[str, F32] = {
    "F8_E4M3": _fp8(4, 3),
    "F8_E5M2": _fp8(5, 2),
    "I8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32),
}


def powers(exponents: Codes) -> F32:
    """Scales of 8 bits: 2^(code - 127), and none for 255."""
    made: F32 = np.ldexp(np.float32(1), np.minimum(exponents, 254).astype(np.int32) - 127).astype(np.float32)
    made[exponents == 255] = np.nan
    return made


@dataclass(frozen=True)
class Matrix:
    """A matrix (..., O, I) of codes: where they and their scales are, and how many rows and columns a scale is for."""

    codes: str
    scales: str
    shape: tuple[int, ...]
    dtype: str
    is_packed: bool
    """Two numbers of fp4 in each byte."""
    grid: tuple[int, ...]
    """Of scales, (..., o, i)."""
    block: tuple[int, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Of both tensors."""
        return self.codes, self.scales

    @property
    def row_bytes(self) -> int:
        """Of a row in the file."""
        return self.shape[-1] // 2 if self.is_packed else self.shape[-1]

    def decoded(self, codes_RB: Codes, scales_oi: F32, first_row: int, columns: slice) -> F32:
        """What these rows of codes stand for, from `first_row` of the matrix on and in these columns of it: (R, columns) in fp32."""
        if self.is_packed:
            begin, end = columns.start // 2, -(-columns.stop // 2)
            # A table is looked up many times as fast where numpy need not look whether an index is in it.
            pairs = np.take(FP4_PAIRS, codes_RB[:, begin:end], mode="clip").view(np.float32)
            numbers = pairs[:, columns.start - 2 * begin :][:, : columns.stop - columns.start]
        else:
            numbers = np.take(TABLES[self.dtype], codes_RB[:, columns], mode="clip")
        rows = np.arange(first_row, first_row + len(codes_RB)) // self.block[0]
        wide = self.block[1]
        if columns.start % wide == 0 and (columns.stop - columns.start) % wide == 0:
            of_block = scales_oi[rows][:, columns.start // wide : columns.stop // wide]
            blocks: F32 = numbers.reshape(len(rows), -1, wide) * of_block[:, :, None]
            return blocks.reshape(len(rows), -1)
        across = np.arange(columns.start, columns.stop) // wide
        made: F32 = np.multiply(numbers, scales_oi[rows][:, across])
        return made


def find(
    name: str, shape: tuple[int, ...], stored: Mapping[str, Stored], block: tuple[int, int] | None
) -> Matrix | str | None:
    """The matrix of this name, if it is one of codes; what is wrong with it, in words; or None. `block`: what config.json says."""
    blocks, exponents = f"{name}_blocks", f"{name}_scales"  # of GPT-OSS: 32 numbers of fp4, and their scale
    if len(shape) == 3 and blocks in stored and exponents in stored:
        count, rows, columns = shape
        wanted = (count, rows, columns // 32, 16), (count, rows, columns // 32)
        if (stored[blocks].shape, stored[exponents].shape) != wanted:
            return f"{blocks} is {list(stored[blocks].shape)}, not {list(wanted[0])}"
        other = next((one for one in (blocks, exponents) if stored[one].dtype != "U8"), None)
        if other is not None:
            return f"{other} is of {stored[other].dtype}"
        return Matrix(blocks, exponents, shape, stored[blocks].dtype, True, wanted[1], (1, 32))
    codes = stored.get(name)
    scales = scales_of(name, stored)
    if codes is None or scales is None or codes.dtype not in BYTES or len(shape) < 2:
        return None
    if stored[scales].dtype not in SCALES:
        return f"{scales} is of {stored[scales].dtype}"
    is_packed = codes.shape == (*shape[:-1], shape[-1] // 2) and codes.dtype in ("I8", "U8")
    if not is_packed and (codes.shape != shape or codes.dtype == "U8"):
        return f"{name} is {list(codes.shape)}, not {list(shape)}"
    rows, columns = shape[-2:]
    given = stored[scales].shape
    if len(given) < 2 and int(np.prod(given)) == 1:
        grid: tuple[int, ...] = (*(1 for _ in shape[:-2]), 1, 1)
    elif len(given) == len(shape):
        grid = given
    else:
        grid = (*given, *(1 for _ in range(len(shape) - len(given))))
    leading = all(one in (1, whole) for one, whole in zip(grid[:-2], shape[:-2], strict=False))
    if len(grid) != len(shape) or not leading or 0 in grid:
        return f"{scales} is {list(given)}, which is no grid of {name}"
    if block and (-(-rows // block[0]), -(-columns // block[1])) == grid[-2:]:
        return Matrix(name, scales, shape, codes.dtype, is_packed, grid, block)
    # Without a word of it blocks are of one size: of some that are cut short at the end, nothing says where the others do.
    if rows % grid[-2] == 0 and columns % grid[-1] == 0:
        block = rows // grid[-2], columns // grid[-1]
        return Matrix(name, scales, shape, codes.dtype, is_packed, grid, block)
    return f"{scales} is {list(given)}, which is no grid of {name}"


def block_of(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many rows and columns a scale is for, as config.json has it: for all matrices, or (compressed-tensors) for a group of them."""
    for given in schemes(config):
        weights = (group.get("weights") for group in groups_of(given))
        blocks = [one.get("block_structure") for one in weights if isinstance(one, dict)]
        for block in (given.get("weight_block_size"), *blocks):
            if (
                isinstance(block, list)
                and len(block) == 2
                and all(type(side) is int and side > 0 for side in block)
            ):
                return block[0], block[1]
    return None


def schemes(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What config.json says of how the weights are quantized, wherever it does."""
    for part in whole_and_text(dict(config)):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.get(key), dict):
                yield part[key]


def groups_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of matrices that compressed-tensors have schemes of their own for."""
    groups = given.get("config_groups")
    return [one for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []


def scales_of(name: str, stored: Mapping[str, Any]) -> str | None:
    """The name of a weight's scales, if there are any."""
    names = [name + ending for ending in OF_WEIGHT]
    if name.endswith(".weight"):
        names += [name.removesuffix(".weight") + ending for ending in OF_MODULE]
    return next((one for one in names if one in stored), None)
