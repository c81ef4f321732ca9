"""Matrices of the model, whole or this rank's part of them. Several that read the same input are one: their
rows one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

    __slots__ = ("adapted", "bias_O", "number", "packed", "quantized", "weight_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        super().__init__()
        self.adapted: LowRank | None = None
        self.number = -1  # among those that adapters may change
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
            made_TO = ops.quantized_linear(x_TI, self.packed, self.bias_O, self.tile)
        else:
            made_TO = ops.linear(x_TI, self.weight_OI, self.bias_O, self.tile)
        return made_TO if self.adapted is None else self.adapted.add(x_TI, made_TO)

    def in_fp32(self, x_TI: Tensor) -> Tensor:
        """The same, and no product is rounded to the dtype of what it is made of. Those of a packed matrix are, which is rounded itself."""
        if self.packed is not None:
            return self(x_TI).float()
        return ops.long_linear(x_TI, self.weight_OI, self.bias_O, self.tile)


@dataclass(slots=True)
class AdaptedRows:
    """Which tokens of the step that runs have which adapter: numbers from 0, and the tokens, or None: all. Shared by all matrices of a model."""

    groups: Sequence[tuple[int, Tensor | None]] = ()


class LowRank(TiledModule):
    """What adapters add to a matrix' product: B_k A_k x for tokens with adapter k, with A (K, R, I) and B (K, O, R)."""

    __slots__ = ("a_KRI", "b_KOR", "rows")

    def __init__(self, a_KRI: Tensor, b_KOR: Tensor, rows: AdaptedRows) -> None:
        super().__init__()
        self.a_KRI, self.b_KOR, self.rows = a_KRI, b_KOR, rows

    def add(self, x_TI: Tensor, made_TO: Tensor) -> Tensor:
        """Adds it in place."""
        for number, tokens in self.rows.groups:
            read_TI = x_TI if tokens is None else x_TI.index_select(0, tokens)
            low_TR = ops.linear(read_TI, self.a_KRI[number], None, self.tile)
            added_TO = ops.linear(low_TR, self.b_KOR[number], None, self.tile)
            if tokens is None:
                made_TO.add_(added_TO)
            else:
                made_TO.index_add_(0, tokens, added_TO)
        return made_TO


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
