"""Matrices of the model, whole or this rank's part of them. Several that read the same input are one: their
rows one after another.
"""

from torch import Tensor

import penstock_kernels as ops
from penstock.parallel import ALONE, TensorGroup


class Linear:
    """x W^T + b with W (O, I) and b (O,) or None. Where the rows are divided, O is this rank's part."""

    __slots__ = ("bias_O", "tile", "weight_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight_OI = weight_OI
        self.bias_O = bias_O
        self.tile = 0  # see `set_tile`

    def __call__(self, x_TI: Tensor) -> Tensor:
        """(T, I) to (T, O)."""
        return ops.linear(x_TI, self.weight_OI, self.bias_O, self.tile)

    def tensors(self) -> list[Tensor]:
        """What it holds."""
        return [t for t in (self.weight_OI, self.bias_O) if t is not None]


def set_tile(part: object, tile: int) -> None:
    """Has every product of the model, or of a part of it, done in pieces of `tile` rows (see `ops.linear`).

    Goes through lists and the attributes of the project's own objects, and sets those called `tile`.
    """
    if isinstance(part, (list, tuple)):
        for one in part:
            set_tile(one, tile)
    elif type(part).__module__.startswith("penstock."):
        if hasattr(part, "tile"):
            part.tile = tile
        slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*slots, *getattr(part, "__dict__", ())}:
            set_tile(getattr(part, name, None), tile)


class Embedding:
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
        return self.group.add_up(found_TE.masked_fill_(elsewhere_T.unsqueeze(1), 0))
