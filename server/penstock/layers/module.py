"""What every part of a model is, from a matrix to the whole: something that holds tensors and other parts.

One walk finds all of them, so that no part has to list what it holds.
"""

from collections.abc import Iterator

from torch import Tensor

import penstock_kernels as ops


class Module:
    """Holds tensors, other modules and lists of these as attributes."""

    __slots__ = ()

    def weights(self) -> list[Tensor]:
        """Every tensor that it and the modules below it hold, each once."""
        return list({id(found): found for found in _walk(self) if isinstance(found, Tensor)}.values())

    def set_tile(self, rows: int) -> None:
        """Has every product here and below done in pieces of `rows` rows (see `ops.linear`)."""
        for found in _walk(self):
            if isinstance(found, TiledModule):
                found.tile = rows


class TiledModule(Module):
    """Its products are done in pieces of `tile` rows; 0: whole."""

    __slots__ = ("tile",)

    def __init__(self) -> None:
        self.tile = 0


def _walk(held: object) -> Iterator[Tensor | Module]:
    """Depth first; what is held twice comes twice."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, Module):
        yield held
        slots = [name for kind in type(held).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in (*slots, *getattr(held, "__dict__", ())):
            yield from _walk(getattr(held, name))
    elif isinstance(held, list):
        for one in held:
            yield from _walk(one)
    elif isinstance(held, ops.ScoreModifiers) and held.sinks_H is not None:
        yield held.sinks_H  # what else is in it is computed
