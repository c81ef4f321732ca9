"""Matrices of the model, whole or this rank's part of them. Several that read the same input are one: their
rows one after another.
"""

import penstock_kernels as ops
from penstock.layers.module import Module, TiledModule
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels.later import Tensor
from penstock_kernels.packed_matrix import PackedMatrix
from penstock_kernels.program import QuantizedMatrix


class Linear(TiledModule):
    """x W^T + b with W (O, I) and b (O,) or None. Where the rows are divided, O is this rank's part. Of a matrix that was
    quantized, for the CPU engine or for a GPU (`packed`), `weight_OI` has no rows.
    """

    __slots__ = ("bias_O", "packed", "quantized", "weight_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        super().__init__()
        self.weight_OI = weight_OI
        self.bias_O = bias_O
        self.quantized: QuantizedMatrix | None = None
        self.packed: PackedMatrix | None = None

    @property
    def outputs(self) -> int:
        """O."""
        if self.quantized is not None:
            return self.quantized.rows
        return len(self.weight_OI) if self.packed is None else self.packed.outputs

    @property
    def inputs(self) -> int:
        """I, of a quantized matrix too."""
        return self.weight_OI.shape[1]

    def __call__(self, x_TI: Tensor) -> Tensor:
        """(T, I) to (T, O)."""
        if self.packed is not None:
            return ops.quantized_linear(x_TI, self.packed, self.bias_O, self.tile)
        return ops.linear(x_TI, self.weight_OI, self.bias_O, self.tile)

    def in_fp32(self, x_TI: Tensor) -> Tensor:
        """The same, and no product is rounded to the dtype of what it is made of. Those of a packed matrix are, which is rounded itself."""
        if self.packed is not None:
            return self(x_TI).float()
        return ops.long_linear(x_TI, self.weight_OI, self.bias_O, self.tile)


class OpenedLinear(Linear):
    """A matrix whose outputs are multiplied with gates, which it reads behind its inputs: (T, I and O) to (T, O)."""

    __slots__ = ()

    def __call__(self, x_TI: Tensor) -> Tensor:
        """See above."""
        inputs = x_TI.shape[-1] - self.outputs
        given_TO = super().__call__(x_TI[:, :inputs].contiguous())
        return given_TO.mul_(x_TI[:, inputs:])


class Embedding(Module):
    """Rows of a table (V, E); of a divided table this rank holds `rows`, and the ranks add up what they found."""

    __slots__ = ("group", "rows", "weight_VE")

    def __init__(self, weight_VE: Tensor, rows: range | None = None, group: TensorGroup = ALONE) -> None:
        self.weight_VE = weight_VE
        self.rows = rows
        self.group = group

    def __call__(self, ids_T: Tensor) -> Tensor:
        """(T,) int64 to (T, E)."""
        if self.rows is None or self.group.size == 1:
            return ops.embedding(ids_T, self.weight_VE)
        here_T = ids_T - self.rows.start
        elsewhere_T = (here_T < 0) | (here_T >= len(self.rows))
        found_TE = ops.embedding(here_T.masked_fill(elsewhere_T, 0), self.weight_VE)
        return self.group.all_reduce(found_TE.masked_fill_(elsewhere_T.unsqueeze(1), 0))
