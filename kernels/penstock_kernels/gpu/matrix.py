"""One row times a matrix: what every product of a lone decode is, and memory's rate alone decides about. `matrix.linear`, which comes here.

A program sums a few outputs by itself over all inputs. The tiles were measured on an H200 with Llama 8B's matrices (benchmarks/RESULTS.md), where
cuBLAS reads them at 60 to 98 % of what a copy reaches, and these programs at 79 to 105 %. Inside of a model not yet run on a GPU: tested in
Triton's interpreter and compiled for GPUs. Therefore `takes` looks at the kernel once in each process before it is used (`first_use`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.gpu.first_use import agrees, relative_error

BLOCK_O, BLOCK_I, WARPS = 4, 1024, 2
FEWEST_INPUTS = 512


def takes(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> bool:
    """Whether the kernel is for these shapes, and gives what torch gives of a small input of them."""
    inputs = weight_OI.shape[1]
    if len(x_TI) != 1 or inputs < FEWEST_INPUTS or weight_OI.stride(1) != 1 or x_TI.stride(1) != 1:
        return False
    shape = (inputs, bias_O is not None, x_TI.dtype)
    return agrees("linear", shape, lambda: _error(*shape, x_TI.device))


def linear(x_1I: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """See `matrix.linear`. Summed in fp32. Numbers of a row of the matrix are neighbours."""
    outputs, inputs = weight_OI.shape
    out_1O = x_1I.new_empty((1, outputs))
    _row_product[(-(-outputs // BLOCK_O),)](
        x_1I, weight_OI, weight_OI if bias_O is None else bias_O.contiguous(), out_1O, outputs, inputs, weight_OI.stride(0),
        HAS_BIAS=bias_O is not None, IS_WHOLE=inputs % BLOCK_I == 0 and outputs % BLOCK_O == 0, BLOCK_O=BLOCK_O,
        BLOCK_I=BLOCK_I, num_warps=WARPS,
    )  # fmt: skip
    return out_1O


@triton.jit
def _row_product(
    x_ptr, weight_ptr, bias_ptr, out_ptr, outputs, inputs, weight_row,
    HAS_BIAS: tl.constexpr, IS_WHOLE: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    i = tl.arange(0, BLOCK_I)
    is_real_O = o < outputs
    sums_OI = tl.zeros((BLOCK_O, BLOCK_I), tl.float32)
    weight_at = weight_ptr + o[:, None].to(tl.int64) * weight_row + i[None, :]
    for at in range(0, inputs, BLOCK_I):
        # Nobody reads a weight again in this step.
        if IS_WHOLE:
            x_I = tl.load(x_ptr + at + i)
            weight_OI = tl.load(weight_at, eviction_policy="evict_first")
        else:
            is_real_I = at + i < inputs
            x_I = tl.load(x_ptr + at + i, mask=is_real_I, other=0.0)
            is_real_OI = is_real_O[:, None] & is_real_I[None, :]
            weight_OI = tl.load(weight_at, mask=is_real_OI, other=0.0, eviction_policy="evict_first")
        sums_OI += weight_OI.to(tl.float32) * x_I.to(tl.float32)[None, :]
        weight_at += BLOCK_I
    made_O = tl.sum(sums_OI, 1)
    if HAS_BIAS:
        made_O += tl.load(bias_ptr + o, mask=is_real_O, other=0.0).to(tl.float32)
    tl.store(out_ptr + o, made_O.to(out_ptr.dtype.element_ty), mask=is_real_O)


def _error(inputs: int, has_bias: bool, dtype: torch.dtype, device: torch.device) -> float:
    """Of whole blocks of outputs, and of one output more, beside products in fp64."""
    return max(_error_of(outputs, inputs, has_bias, dtype, device) for outputs in (2 * BLOCK_O, BLOCK_O + 1))


def _error_of(outputs: int, inputs: int, has_bias: bool, dtype: torch.dtype, device: torch.device) -> float:
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn).to(device, dtype)

    x_1I, weight_OI, bias_O = normal(1, inputs), normal(outputs, inputs), normal(outputs)
    wanted_1O = x_1I.double() @ weight_OI.double().T + (bias_O.double() if has_bias else 0.0)
    ours_1O = linear(x_1I, weight_OI, bias_O if has_bias else None)
    # Beside what the result's dtype rounds away.
    return relative_error(ours_1O.double(), wanted_1O) - torch.finfo(dtype).eps
