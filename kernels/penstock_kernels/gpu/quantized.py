"""Products with matrices of 8 and 4 bits on a GPU. `quantized.quantized_linear`, which comes here; `quantized.cu` says how they are computed."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from penstock_kernels.gpu import cuda
from penstock_kernels.gpu.first_use import agrees, relative_error
from penstock_kernels.packed_matrix import TILE, PackedMatrix, chunk, packed, unpacked

FILE = "quantized.cu"
MOST_ROWS = 64  # of one kernel's product; for more the matrix is written out
MOST_ARRIVALS = 1 << 16
SLABS = 3


@dataclass(frozen=True)
class Shape:
    """Of a block: see `quantized.cu`. `blocks`: how many there should be on each multiprocessor, at least."""

    tiles: int
    across: int
    along: int
    ahead: int
    blocks: int


# By bits and eights of rows: the fastest of some on an H200 with Llama 8B's matrices (benchmarks/RESULTS.md).
SHAPES = {
    4: {1: Shape(1, 1, 8, 4, 2), 2: Shape(2, 4, 1, 2, 2), 4: Shape(2, 4, 1, 2, 2), 8: Shape(2, 4, 1, 4, 1)},
    8: {1: Shape(1, 1, 8, 4, 2), 2: Shape(1, 4, 1, 4, 4), 4: Shape(2, 4, 1, 4, 2), 8: Shape(2, 4, 1, 4, 1)},
}


def takes(matrix: PackedMatrix) -> bool:
    """Whether kernels give what the definition gives, of a small matrix like this one. The first time they are compiled, which takes seconds."""
    shape = (matrix.bits, matrix.group, matrix.offsets is not None)
    return agrees("quantized linear", shape, lambda: _error(*shape, matrix.words.device))


def linear(x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None) -> Tensor:
    """See `quantized.quantized_linear`."""
    if len(x_TI) > MOST_ROWS:
        return F.linear(x_TI, written_out(matrix), bias_O)
    return rows_product(x_TI.contiguous(), matrix, bias_O)


def rows_product(
    x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, shape: Shape | None = None
) -> Tensor:
    """Of at most MOST_ROWS rows."""
    tokens, device = len(x_TI), x_TI.device
    out_TO = x_TI.new_empty((tokens, matrix.outputs))
    if not tokens:
        return out_TO
    eights = 1 << max(-(-tokens // 8) - 1, 0).bit_length()
    shape = shape or SHAPES[matrix.bits][eights]
    tiles, chunks = -(-matrix.outputs // TILE), matrix.inputs // chunk(matrix.bits)
    blocks = -(-tiles // (shape.tiles * shape.across))
    wanted = shape.blocks * _multiprocessors(device)
    # Each warp has some chunks to itself.
    splits = max(min(-(-wanted // blocks), chunks // (2 * shape.along * shape.ahead)), 1)
    split_chunks = -(-chunks // splits)
    splits = -(-chunks // split_chunks)
    partial = arrived = None
    if splits > 1:
        size = blocks * splits * shape.across * shape.tiles * eights * 128
        partial = torch.empty(size, dtype=torch.float32, device=device)
        arrived = _arrivals(device)
    kernel = cuda.kernel(
        FILE,
        "rows_product",
        device,
        constants(matrix.bits, matrix.group, matrix.offsets is not None, eights, shape),
    )
    given = (matrix.words, matrix.scales, matrix.offsets, bias_O, x_TI, out_TO, partial, arrived)
    sizes = (tokens, matrix.outputs, matrix.inputs, tiles, split_chunks)
    threads, shared = 32 * shape.across * shape.along, shared_bytes(matrix.bits, eights, shape)
    kernel.launch((blocks, splits), threads, (*given, *sizes), shared)
    return out_TO


def constants(
    bits: int, group: int, has_zeros: bool, eights: int, shape: Shape | None = None
) -> tuple[tuple[str, int], ...]:
    """That `quantized.cu` is compiled with. `eights`: of rows of x; 0: the matrix is written out."""
    made = {"BITS": bits, "GROUP": group, "ZEROS": int(has_zeros), "NT": eights}
    if shape is not None:
        made |= {"MT": shape.tiles, "WR": shape.across, "WK": shape.along, "AHEAD": shape.ahead}
    return tuple(made.items())


def shared_bytes(bits: int, eights: int, shape: Shape) -> int:
    """Of a block: slabs of x, and then sums in their place."""
    slabs = SLABS * 8 * eights * shape.along * shape.ahead * chunk(bits) * 2 if eights > 1 else 0
    return max(slabs, (shape.along - 1) * shape.across * shape.tiles * eights * 4 * 32 * 4)


def written_out(matrix: PackedMatrix) -> Tensor:
    """What the matrix stands for: (O, I) in bf16."""
    device = matrix.words.device
    out_OI = torch.empty((matrix.outputs, matrix.inputs), dtype=torch.bfloat16, device=device)
    tiles, chunks = -(-matrix.outputs // TILE), matrix.inputs // chunk(matrix.bits)
    known = constants(matrix.bits, matrix.group, matrix.offsets is not None, 0)
    given = (matrix.words, matrix.scales, matrix.offsets, out_OI, matrix.outputs, matrix.inputs, tiles)
    cuda.kernel(FILE, "written_out", device, known).launch((-(-tiles * chunks // 4), 1), 128, given)
    return out_OI


_arrived: dict[torch.device, Tensor] = {}


def _arrivals(device: torch.device) -> Tensor:
    """Counters of blocks, zero between products: the last block sets its own back."""
    if device not in _arrived:
        _arrived[device] = torch.zeros(MOST_ARRIVALS, dtype=torch.int32, device=device)
    return _arrived[device]


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _error(bits: int, group: int, has_zeros: bool, device: torch.device) -> float:
    """Of products of few and many rows, beside what rounding to bf16 takes away, and of the matrix written out."""
    drawn = torch.Generator().manual_seed(0)
    outputs, inputs = 40, 8192
    _arrivals(device)  # which no graph shall make
    codes = torch.randint(1, 1 << bits, (outputs, inputs), generator=drawn, dtype=torch.uint8)
    scales = torch.rand((outputs, inputs // (group or inputs)), generator=drawn) + 0.5
    zeros = torch.randint(0, 16, scales.shape, generator=drawn, dtype=torch.uint8) if has_zeros else None
    kept = scales.squeeze(1) if bits == 8 else scales.bfloat16()
    matrix = packed(codes.to(device), kept.to(device), None if zeros is None else zeros.to(device), bits)
    weight_OI = unpacked(matrix)
    bias_O = torch.randn(outputs, generator=drawn).to(device, torch.bfloat16)
    worst = 0.0 if torch.equal(written_out(matrix), weight_OI) else 1.0
    for tokens in (1, 8, 16, 32, MOST_ROWS):
        x_TI = torch.randn((tokens, inputs), generator=drawn).to(device, torch.bfloat16)
        wanted_TO = x_TI.double() @ weight_OI.double().T + bias_O.double()
        found_TO = linear(x_TI, matrix, bias_O).double()
        worst = max(worst, relative_error(found_TO, wanted_TO) - torch.finfo(torch.bfloat16).eps)
    return worst
