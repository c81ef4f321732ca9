"""Weights that a checkpoint holds as codes of 8 or 4 bits with scales beside them, and what they stand for: served in the dtype that is
asked for, as if the checkpoint had been in it.

A matrix of codes is `x.weight` like any other, with a dtype of one byte. What its scales are called says who made it: DeepSeek
(`weight_scale_inv`, fp32, for blocks of 128 x 128; `scale` in V4, powers of two, and for 32 numbers of fp4 each), compressed-tensors,
FBGEMM and ModelOpt (`weight_scale`, for a matrix or for each of its rows). The scales' shape says what each is for. fp8: Micikevicius et al., "FP8
Formats for Deep Learning", 2022; fp4 and scales that are powers of two: OCP, "Microscaling Formats (MX)", 2023. Must not import torch.

NVFP4 is fp4 with a scale of e4m3 for each 16 numbers and one of fp32 for all of them: ModelOpt (`weight_scale_2`; NVFP4QTensor.dequantize) multiplies
the scales with it, compressed-tensors (`weight_global_scale`; NVFP4PackedCompressor.decompress and _dequantize) divides them by it. The first
number of a byte is in its lower half, and scales lie as the numbers do: engines arrange them for a GPU once they have read them. Experts that
a class has as (X, in, out), ModelOpt leaves so, two inputs in a byte (maybe_transpose_expert_weight_dimensions).

Signed whole numbers of 4 bits are ModelOpt's W4A16_AWQ and W4A8_AWQ (pack_int4_in_uint8 of its export/quant_utils.py): bytes (out / 2, in) with
two outputs each, the first in the lower half, and a scale for each group of inputs. `weight_scale_2` of W4A8_AWQ changes no number: scales are
divided by it and products multiplied with it, so that what is between them is in the range of fp8 (TensorRT-LLM's W4A8_AWQ_LinearMethod). What
inputs are multiplied with before a matrix is, `pre_quant_scale` where no norm has taken it, its columns are multiplied with here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loading.model_files import Stored, whole_and_text

F32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

# Endings of the names of scales, and of those that belong to no weight: they are for activations and caches, which are not quantized here.
OF_WEIGHT = ("_scale_inv", "_scale", "_weight_scale")
OF_MODULE = (".scale", ".qscale_weight")
UNUSED = r".*(\.|_proj_)((input|output|prob_output|activation|input_global|[kvq]|kv)_scale|input_zero_point|weight_shape)"
SCALES = ("F32", "F16", "BF16", "F8_E8M0", "U8")
EXPONENTS = ("F8_E8M0", "U8")
BYTES = ("F8_E4M3", "F8_E5M2", "I8", "U8")
# Of what the scales of NVFP4 are multiplied with, and of what they are divided by.
FACTORS = ("_scale_2", "_weight_scale_2")
DIVISORS = ("_global_scale",)
# ModelOpt's FP8_PB_WO is of these blocks, of which it says no size (FP8QTensor.quantize; vLLM's ModelOptFp8PbWoLinearMethod). The last ones
# are cut short in the weight, and have a scale like any other: 576 rows have 5.
BLOCKS_OF_128 = (128, 128)
# What inputs are multiplied with, below the module.
OF_INPUTS = ".pre_quant_scale"
PLAIN = ("F32", "F16", "BF16")
# Parts of one table (Qwen 4's n-grams), with one scale.
PART = re.compile(r"\.shard_\d+\.weight$")


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
# The signed numbers of each byte: the lower half, and the upper one.
INT4 = np.stack([(np.arange(256) >> shift & 15 ^ 8) - 8 for shift in (0, 4)]).astype(np.float32)
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
    factor: str | None = None
    """What the scales are multiplied with, one number for all or for each of the first dimension."""
    divides: bool = False
    """They are divided by it."""
    is_turned: bool = False
    """Stored as (X, I, O), scales as well."""
    are_pairs: bool = False
    """Two rows of signed whole numbers of 4 bits in each row of bytes."""
    inputs: str | None = None
    """What its columns are multiplied with."""
    passed_over: str | None = None
    """A tensor of it that changes no number."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors."""
        every = (self.codes, self.scales, self.factor, self.inputs, self.passed_over)
        return tuple(name for name in every if name is not None)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the bytes, (..., O, I) but for what is in one of them."""
        *leading, rows, columns = self.shape
        return (*leading, rows // 2 if self.are_pairs else rows, columns // 2 if self.is_packed else columns)

    def stored_rows(self, rows: slice) -> slice:
        """The rows of bytes in which these rows are."""
        return slice(rows.start // 2, -(-rows.stop // 2)) if self.are_pairs else rows

    def decoded(
        self, codes_RB: Codes, scales_oi: F32, rows_: slice, columns: slice, inputs_I: F32 | None = None
    ) -> F32:
        """What these rows and columns of the matrix stand for: (R, columns) in fp32. `codes_RB`: the `stored_rows` of them; `inputs_I`: what
        all columns are multiplied with.
        """
        numbers = self._scaled(codes_RB, scales_oi, rows_, columns)
        if inputs_I is not None:
            numbers *= inputs_I[columns]
        return numbers

    def _scaled(self, codes_RB: Codes, scales_oi: F32, rows_: slice, columns: slice) -> F32:
        count = rows_.stop - rows_.start
        if self.are_pairs:
            halves = [np.take(half, codes_RB[:, columns], mode="clip") for half in INT4]
            every = np.stack(halves, 1).reshape(-1, columns.stop - columns.start)
            numbers = every[rows_.start % 2 :][:count]
        elif self.is_packed:
            begin, end = columns.start // 2, -(-columns.stop // 2)
            # A table is looked up many times as fast where numpy need not look whether an index is in it.
            pairs = np.take(FP4_PAIRS, codes_RB[:, begin:end], mode="clip").view(np.float32)
            numbers = pairs[:, columns.start - 2 * begin :][:, : columns.stop - columns.start]
        else:
            numbers = np.take(TABLES[self.dtype], codes_RB[:, columns], mode="clip")
        rows = np.arange(rows_.start, rows_.stop) // self.block[0]
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
    found = _find(name, shape, stored, block)
    inputs = name.removesuffix(".weight") + OF_INPUTS
    if not isinstance(found, Matrix) or inputs not in stored or len(shape) != 2:
        return found
    if stored[inputs].shape != shape[1:]:
        return f"{inputs} is {list(stored[inputs].shape)}, not {list(shape[1:])}"
    if stored[inputs].dtype not in PLAIN:
        return f"{inputs} is of {stored[inputs].dtype}"
    return replace(found, inputs=inputs)


def _find(
    name: str, shape: tuple[int, ...], stored: Mapping[str, Stored], block: tuple[int, int] | None
) -> Matrix | str | None:
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
    scales = scales_of(name, stored)
    held = f"{name}_packed" if f"{name}_packed" in stored else name  # compressed-tensors' fp4
    codes = stored.get(held)
    if codes is None or scales is None or codes.dtype not in BYTES or len(shape) < 2:
        return None
    if codes.dtype in ("I8", "U8") and codes.shape != shape:
        if len(shape) == 2 and codes.shape == (shape[0] // 2, shape[1]) and shape[0] % 2 == 0:
            return _of_int4(name, scales, shape, stored)
        return _of_fp4(name, held, scales, shape, stored)
    if stored[scales].dtype not in SCALES:
        return f"{scales} is of {stored[scales].dtype}"
    if codes.shape != shape or codes.dtype == "U8":
        return f"{name} is {list(codes.shape)}, not {list(shape)}"
    rows, columns = shape[-2:]
    given = stored[scales].shape
    if len(given) == 2 + len(shape) and given[-3::2] == (1, 1):  # ModelOpt's of blocks: (o, 1, i, 1)
        given = (*given[:-4], *given[-4::2])
    if len(given) < 2 and int(np.prod(given)) == 1:
        grid: tuple[int, ...] = (*(1 for _ in shape[:-2]), 1, 1)
    elif len(given) == len(shape):
        grid = given
    else:
        grid = (*given, *(1 for _ in range(len(shape) - len(given))))
    leading = all(one in (1, whole) for one, whole in zip(grid[:-2], shape[:-2], strict=False))
    if len(grid) != len(shape) or not leading or 0 in grid:
        return f"{scales} is {list(given)}, which is no grid of {name}"
    if block and _grid_of(block, shape) == grid[-2:]:
        return Matrix(name, scales, shape, codes.dtype, False, grid, block)
    # Without a word of it blocks are of one size: of some that are cut short at the end, nothing says where the others do.
    if rows % grid[-2] or columns % grid[-1]:
        return f"{scales} is {list(given)}, which is no grid of {name}"
    block = rows // grid[-2], columns // grid[-1]
    both = zip(grid[-2:], block, BLOCKS_OF_128, strict=True)
    if _grid_of(BLOCKS_OF_128, shape) == grid[-2:] and any(
        parts > 1 and side != usual for parts, side, usual in both
    ):
        return (
            f"{scales} is {list(given)}, blocks of {block[0]} x {block[1]} or of 128 x 128 of which the last are cut short, "
            "and config.json does not say which"
        )
    return Matrix(name, scales, shape, codes.dtype, False, grid, block)


def _grid_of(block: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, int]:
    """How many scales a matrix has for its rows and for its columns."""
    return -(-shape[-2] // block[0]), -(-shape[-1] // block[1])


def _of_int4(name: str, scales: str, shape: tuple[int, ...], stored: Mapping[str, Stored]) -> Matrix | str:
    """The matrix of signed whole numbers of 4 bits, or what is wrong with it."""
    given = stored[scales]
    if given.dtype not in PLAIN:
        return f"{scales} is of {given.dtype}"
    if len(given.shape) != 2 or given.shape[0] != shape[0] or not given.shape[1] or shape[1] % given.shape[1]:
        return f"{scales} is {list(given.shape)}, which is no grid of {name}"
    each, codes = shape[1] // given.shape[1], stored[name].dtype
    of_products = _named(name, FACTORS, stored)
    return Matrix(
        name, scales, shape, codes, False, given.shape, (1, each), are_pairs=True, passed_over=of_products
    )


def _of_fp4(
    name: str, held: str, scales: str, shape: tuple[int, ...], stored: Mapping[str, Stored]
) -> Matrix | str:
    """The matrix of fp4, or what is wrong with it: NVFP4 where there is something for its scales, and else with powers of two."""
    factor = _named(name, FACTORS + DIVISORS, stored)
    each, dtypes = (32, EXPONENTS) if factor is None else (16, ("F8_E4M3",))
    codes, given = stored[held], stored[scales]
    is_turned = len(shape) == 3 and codes.shape == (shape[0], shape[1] // 2, shape[2])
    if is_turned:
        shape = (shape[0], shape[2], shape[1])

    def stored_as(columns: int) -> tuple[int, ...]:
        return (shape[0], columns, shape[1]) if is_turned else (*shape[:-1], columns)

    if codes.shape != stored_as(shape[-1] // 2):
        return f"{held} is {list(codes.shape)}, not {list(shape)}"
    if given.dtype not in dtypes:
        return f"{scales} is of {given.dtype}"
    if shape[-1] % each or given.shape != stored_as(shape[-1] // each):
        return f"{scales} is {list(given.shape)}, which is no grid of {held}"
    if factor is not None:
        count = int(np.prod(stored[factor].shape))
        if count != 1 and (len(shape) == 2 or count != shape[0]):
            return f"{factor} is {list(stored[factor].shape)}, which is no grid of {scales}"
        if stored[factor].dtype not in PLAIN:
            return f"{factor} is of {stored[factor].dtype}"
    grid, divides = (*shape[:-1], shape[-1] // each), factor is not None and factor.endswith(DIVISORS)
    return Matrix(held, scales, shape, codes.dtype, True, grid, (1, each), factor, divides, is_turned)


def block_of(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many rows and columns a scale is for, as config.json has it: for all matrices, or (compressed-tensors, Quark) for some of them."""
    for given in schemes(config):
        weights = (group.get("weights") for group in groups_of(given))
        blocks = [one.get("block_structure") for one in weights if isinstance(one, dict)]
        blocks += [one.get("block_size") for one in weights_of_quark(given) if isinstance(one, dict)]
        for block in (given.get("weight_block_size"), *blocks):
            if (
                isinstance(block, list)
                and len(block) == 2
                and all(type(side) is int and side > 0 for side in block)
            ):
                return block[0], block[1]
    has_blocks = any("FP8_PB_WO" in _algorithms(given) for given in schemes(config))
    return BLOCKS_OF_128 if has_blocks else None


def _algorithms(given: Mapping[str, Any]) -> set[str]:
    """ModelOpt's of the whole checkpoint and of layers."""
    nested = given.get("quantization")
    modelopt = nested if isinstance(nested, dict) else given
    layers = modelopt.get("quantized_layers")
    held = (modelopt, *(layers.values() if isinstance(layers, dict) else ()))
    return {str(one.get("quant_algo")).upper() for one in held if isinstance(one, dict)}


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


def weights_of_quark(given: Mapping[str, Any]) -> list[Any]:
    """What Quark says of the weights of all layers, and of some by their names or by their class."""
    of_some = [given.get(key) for key in ("layer_quant_config", "layer_type_quant_config")]
    held = [one for some in of_some if isinstance(some, dict) for one in some.values()]
    parts = [one for one in (given.get("global_quant_config"), *held) if isinstance(one, dict)]
    return [one["weight"] for one in parts if one.get("weight") is not None]


def scales_of(name: str, stored: Mapping[str, Any]) -> str | None:
    """The name of a weight's scales, if there are any."""
    if name.endswith(".weight"):
        module = name.removesuffix(".weight")
        beside = next((module + ending for ending in OF_MODULE if module + ending in stored), None)
        return _named(name, OF_WEIGHT, stored) or beside
    return _named(name, OF_WEIGHT, stored)


def _named(name: str, endings: tuple[str, ...], stored: Mapping[str, Any]) -> str | None:
    """The first tensor with the weight's name and one of these endings; or that of the table that it is a part of."""
    names = (one + ending for one in (name, PART.sub(".weight", name)) for ending in endings)
    return next((one for one in names if one in stored), None)
