"""What every part of a model is, from a matrix to the whole: something that holds tensors and other parts.

One walk finds all of them, so that no part has to list what it holds.
"""

from collections.abc import Iterator
from dataclasses import replace
from operator import is_
from typing import Any

import penstock_kernels as ops
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.packed_matrix import PackedMatrix
from penstock_kernels.tensors import is_tensor


class Module:
    """Holds tensors, other modules and lists of these as attributes."""

    __slots__ = ()

    def weights(self) -> list[Tensor]:
        """Every tensor that it and the modules below it hold, each once."""
        return list({id(found): found for found in _walk(self) if is_tensor(found)}.values())

    def to_torch(self, device: Any) -> None:
        """Has torch's tensors on the device in place of those on the host, here and below: what torch will run."""
        for name in _attributes(self):
            held = getattr(self, name)
            made = _in_torch(held, device)
            if made is not held:
                setattr(self, name, made)

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


def packed_matrices(model: object) -> list[PackedMatrix]:
    """Its matrices of 8 or 4 bits; none of what is no module."""
    return [found for found in _walk(model) if isinstance(found, PackedMatrix)]


def _attributes(module: Module) -> list[str]:
    slots = [name for kind in type(module).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(module, "__dict__", ())]


def _in_torch(held: object, device: Any) -> object:
    """What is held as torch has it: a tensor, or what has some in it; itself where nothing in it is new."""
    if isinstance(held, tensors.Tensor):
        return tensors.in_torch(held, device)
    if isinstance(held, Module):
        held.to_torch(device)
    elif isinstance(held, list):
        held[:] = [_in_torch(one, device) for one in held]
    elif isinstance(held, tuple):
        made = tuple(_in_torch(one, device) for one in held)
        return held if all(map(is_, made, held)) else made
    elif isinstance(held, ops.ScoreModifiers) and held.sinks_H is not None:
        return replace(held, sinks_H=tensors.in_torch(held.sinks_H, device))
    return held


def _walk(held: object) -> Iterator[Tensor | Module | PackedMatrix]:
    """Depth first; what is held twice comes twice."""
    if is_tensor(held):
        yield held
    elif isinstance(held, Module):
        yield held
        for name in _attributes(held):
            yield from _walk(getattr(held, name))
    elif isinstance(held, list):
        for one in held:
            yield from _walk(one)
    elif isinstance(held, PackedMatrix):
        yield held
        yield from held.parts
    elif isinstance(held, ops.ScoreModifiers) and held.sinks_H is not None:
        yield held.sinks_H  # what else is in it is computed
