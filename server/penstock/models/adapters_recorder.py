"""Adapters in a program of the CPU engine: in front of each product that some change, what they add to it. Works on a recording, so that one of
the packed cache has adapters, too. Must not import torch. Letters as in `adapting`.
"""

from collections.abc import Sequence

import numpy as np

from penstock.models.adapting import Change, Later
from penstock.models.packing import aligned_halves, one_matrix, packed
from penstock_kernels import tensors, tiles
from penstock_kernels.program import (
    BYTE_INPUTS,
    Epilogue,
    Format,
    Kind,
    Layout,
    Operation,
    Program,
    rounded_up,
)
from penstock_kernels.tensors import host


def add_adapters(program: Program, changes: Sequence[Later | None], instruction_set: str) -> None:
    """`changes`: of each of the model's matrices, by its number in the program's products."""
    body: list[Operation] = []
    added = set()
    for operation in program.body:
        change = changes[operation.matrix] if operation.matrix >= 0 else None
        if change is not None:
            assert operation.kind == Kind.LINEAR and operation.second < 0
            body += _adapt(program, operation, change(), instruction_set)
            added.add(operation.matrix)
        body.append(operation)
    missing = {number for number, change in enumerate(changes) if change is not None} - added
    assert not missing, f"no product is that of the matrices {sorted(missing)}"
    program.body = body


def _adapt(program: Program, product: Operation, change: Change, instruction_set: str) -> list[Operation]:
    """The products with A and B, of which the last one writes what the product adds."""
    count, rank, _ = change.a_KRI.shape
    source = program.buffers[product.source]
    a_KRI = np.pad(change.a_KRI, ((0, 0), (0, 0), (0, source.width - change.a_KRI.shape[2])))
    # Half a tile of B's inputs may be beyond the rank: nobody writes there, and it stays zeros.
    low = program.buffer(f"adapters' low rank {rank}", Layout.BF16, rank)
    down = Operation(Kind.ADAPT, product.source, low, rows=rank, experts=count)
    one_OI = one_matrix(tensors.of(a_KRI, tensors.bfloat16))
    if source.layout == Layout.BYTES:  # what the model's own products read is in whole numbers there
        made = tiles.quantize(one_OI, Format.INT8, instruction_set)
        down.format, down.columns = made.format, rounded_up(source.width, BYTE_INPUTS)
        down.weight, down.scales, down.sums = host(made.tiles), host(made.scales), host(made.sums)
    else:
        down.weight = host(packed(one_OI))
        down.columns = down.weight.shape[1]
    b_KOR = tensors.of(change.b_KOR, tensors.bfloat16)
    if product.epilogue == Epilogue.GATE:
        b_KOR = aligned_halves(b_KOR, 1)
    outputs = b_KOR.shape[1]
    assert outputs == product.rows, f"{outputs} rows of a product of {product.rows}"
    product.second = program.buffer(f"adapters' {outputs}", Layout.F32, outputs)
    up = Operation(Kind.ADAPT, low, product.second, rows=outputs, experts=count)
    up.weight = host(packed(one_matrix(b_KOR)))
    up.columns = up.weight.shape[1]
    return [down, up]
