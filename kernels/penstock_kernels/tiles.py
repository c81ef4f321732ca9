"""Matrices in the CPU engine's tiles: see csrc/cpu/penstock_cpu.h. Used while a model is loaded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock_kernels import tensors
from penstock_kernels.cpu_engine import NO_GROUPS, address, library, succeeded
from penstock_kernels.later import Tensor
from penstock_kernels.program import (
    GROUPED,
    TILE_INPUTS,
    TILE_OUTPUTS,
    Format,
    QuantizedMatrix,
    Rounding,
    quantized_bytes,
    rounded_up,
)


def in_whole_tiles(matrix_OI: Tensor) -> Tensor:
    """A matrix of bf16 whose sides are multiples of a tile's, filled up with zeros; itself where they are already."""
    rows, columns = matrix_OI.shape
    shape = (rounded_up(rows, TILE_OUTPUTS), rounded_up(columns, TILE_INPUTS))
    if shape == (rows, columns) and matrix_OI.is_contiguous() and matrix_OI.data_ptr() % 64 == 0:
        return matrix_OI
    made = matrix_OI.new_zeros(shape)
    made[:rows, :columns] = matrix_OI
    return made


def pack(matrix_OI: Tensor) -> None:
    """Brings a matrix of bf16 in whole tiles (`in_whole_tiles`) into their order, where it is."""
    rows, columns = matrix_OI.shape
    at = address(matrix_OI)
    succeeded(library().penstock_cpu_pack(at, at, rows, columns))


def quantize(
    matrix_OI: Tensor,
    format: Format,
    instruction_set: str,
    threads: int = 1,
    into: Tensor | None = None,
    rounding: Rounding = Rounding.NOTHING,
) -> QuantizedMatrix:
    """A matrix of bf16 in tiles of int8 or int4, rounded to the nearest by the scales that make the squared error least. `rounding`: of a format
    with groups. `into`: memory for the tiles, `quantized_bytes` of uint8, which begins at a multiple of 64.
    """
    made = in_tiles(matrix_OI, format, instruction_set, threads, into, rounding)
    assert made is not None, "it is rounded"
    return made


def group_formats(matrix_OI: Tensor, expected: Format, instruction_set: str) -> Iterator[Format]:
    """The formats that have the first numbers of a matrix of bf16, which was of 4 bits with scales for groups of inputs: first the expected one."""
    some_OI = matrix_OI[:TILE_OUTPUTS]
    for one in (expected, *(one for one in GROUPED if one != expected)):
        if in_tiles(some_OI, one, instruction_set) is not None:
            yield one


def in_tiles(
    matrix_OI: Tensor,
    format: Format,
    instruction_set: str,
    threads: int = 1,
    into: Tensor | None = None,
    rounding: Rounding = Rounding.NOTHING,
) -> QuantizedMatrix | None:
    """A matrix of bf16 in tiles of int8 or int4, as `quantize` has it; or, where nothing is rounded to a format with groups, one that was of 4 bits
    with a scale for each group of inputs as that again: the same numbers, and scales that round to the same bf16. None: it was not.
    """
    rows, columns = matrix_OI.shape
    matrix_OI = matrix_OI.contiguous()
    whole = rounded_up(rows, TILE_OUTPUTS)
    size = quantized_bytes(format, rows, columns)
    tiles = tensors.empty((size,), tensors.uint8) if into is None else into
    assert tiles.nbytes == size and tiles.data_ptr() % 64 == 0, "what is made is aligned"
    scales, sums = tensors.empty((whole,), tensors.float32), tensors.empty((whole,), tensors.int32)
    panel_bytes = size * TILE_OUTPUTS // whole
    share = rounded_up(-(-rows // threads), TILE_OUTPUTS)

    def quantize_some(first: int) -> bool:
        end, panel = first + share, first // TILE_OUTPUTS
        result = library().penstock_cpu_quantize(
            instruction_set.encode(),
            int(format),
            int(rounding),
            address(matrix_OI[first:end]),
            min(share, rows - first),
            columns,
            address(tiles[panel * panel_bytes : (panel + share // TILE_OUTPUTS) * panel_bytes]),
            address(scales[first:end]),
            address(sums[first:end]),
        )
        if result != NO_GROUPS:
            succeeded(result)
        return bool(result != NO_GROUPS)

    with ThreadPoolExecutor(threads) as pool:
        are_made = list(pool.map(quantize_some, range(0, rows, share)))
    if not all(are_made):
        return None
    if format in GROUPED:
        return QuantizedMatrix(format, rows, columns, tiles, None, None)
    return QuantizedMatrix(format, rows, columns, tiles, scales, sums)
