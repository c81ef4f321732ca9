"""Adapters beside a model's matrices: which rows of which tensors a matrix holds, and so what each adapter adds to its products.

A recipe says nothing of adapters. It reads the model once more from a checkpoint without numbers, whose rows are numbered: where they end
up says how a family joins, reorders and divides what its files hold, and the rows of an adapter's B go the same way. A matrix whose
numbers are changed on the way has no such rows, and no adapter may change it.

Asked by the engine once the model is loaded. In numpy; must not import torch. Letters as in `decoder`; R the rank, K adapters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.adapters import Adapter, Pair
from penstock.adapters.names import tail_of
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.model_files import listed
from penstock.models import recipes
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder, Experts, FeedForward
from penstock.models.packing import matrices_of
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels import tensors
from penstock_kernels.program import TILE_OUTPUTS, rounded_up
from penstock_kernels.tensors import Dtype, Tensor

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

FLAG = "--lora-adapters"
NO_ADAPTERS = f"{FLAG}: encoder-decoders and models through transformers have no adapters"


@dataclass(frozen=True)
class Change:
    """What adapters add to the product of one matrix: of each (A x) B, zeros of those that leave it alone."""

    a_KRI: F32
    b_KOR: F32


Later = Callable[[], Change]


def matrices(decoder: Decoder) -> Iterator[Linear]:
    """Those that adapters may change, in an order that holds for every reading of a model."""
    for layer in decoder.layers:
        if layer.attention is not None:
            yield from matrices_of(layer.attention)
        dense: FeedForward | Experts | None = layer.feed_forward
        if isinstance(dense, Experts):
            dense = dense.shared
        if dense is not None:
            yield from (dense.up, dense.out)


def number_matrices(decoder: Decoder) -> None:
    """Writes to each which one it is, so that what is recorded of it can be found again."""
    for number, linear in enumerate(matrices(decoder)):
        linear.number = number


def changes(
    adapters: Sequence[Adapter], config: dict[str, Any], folder: Path, group: TensorGroup, trusted: bool
) -> list[Later | None]:
    """Of each of the `matrices` of a rank's part of the model how to make what adapters change of it, one after the other: all at once would be
    several times as large as the adapters are. None: nothing. Raises UnusableModel where an adapter changes what cannot be changed, or is of
    another shape than the model.
    """
    found = _held(config, folder, group, trusted)
    shape = recipes.read_config(config)
    assert isinstance(shape, DecoderConfig), "asked of decoders"
    elsewhere = set(range(shape.num_layers)) - set(shape.layers_of(group))
    modules = {source.module for held in found if held is not None for source in held.tensors()}
    of_adapters = [_by_module(adapter, modules, elsewhere) for adapter in adapters]
    return [None if held is None else held.change(adapters, of_adapters) for held in found]


def adaptable(config: dict[str, Any], folder: Path) -> dict[str, tuple[int, int]]:
    """The modules of a model that adapters may change, by the checkpoint's names, and of each its outputs and inputs."""
    held = [one for one in _held(config, folder, ALONE, False) if one is not None]
    return {source.module: (source.outputs, source.inputs) for one in held for source in one.tensors()}


def _held(config: dict[str, Any], folder: Path, group: TensorGroup, trusted: bool) -> "list[_Held | None]":
    with _Numbered(folder, trusted) as checkpoint:
        decoder = recipes.load_from(config, checkpoint, group)
        assert isinstance(decoder, Decoder), "asked of decoders"
        found = [_Held.of(linear, checkpoint) for linear in matrices(decoder)]
    # A tensor of which something else reads a part is not changed: that part would not be.
    seen: dict[int, list[I64]] = {}
    for held in found:
        for number, _, rows, _ in held.sources if held is not None else ():
            seen.setdefault(number, []).append(rows)
    changed = set(checkpoint.read_otherwise)
    for number, source in enumerate(checkpoint.sources):
        rows = np.unique(np.concatenate(seen.get(number, [np.zeros(0, np.int64)])))
        if len(rows) < source.rows:
            changed.add(source.module)
    return [None if held is None else held.without(changed) for held in found]


def _by_module(adapter: Adapter, modules: set[str], elsewhere: set[int]) -> dict[str, Pair]:
    """The adapter's pairs by the names of the checkpoint. Its own are those of the classes that it was trained with, which may stand below
    other names than in the files. `elsewhere`: layers of other stages.
    """
    of_tails: dict[str, str] = {tail_of(module): module for module in modules}
    made, unknown = {}, []
    for name, pair in adapter.pairs.items():
        tail = tail_of(name)
        module = name if name in modules else of_tails.get(tail, "")
        number = tail.partition(".")[0]
        if module:
            made[module] = pair
        elif tail == name or not number.isdecimal() or int(number) not in elsewhere:
            unknown.append(name)
    if unknown:
        raise UnusableModel(
            f"{FLAG} {adapter.name}: changes what adapters cannot change in this model: {listed(sorted(unknown))}. They change matrices of "
            "attention and of dense feed-forward layers"
        )
    return made


# Of what a row is: behind which tensor, which row of it, and what is left of both, so that a number that was computed with is known.
ROW_BITS, CHECK_BITS = 28, 12


def _numbers(tensor: int, rows: I64) -> I64:
    made = (np.int64(tensor + 1) << ROW_BITS) + rows
    return (made << CHECK_BITS) + (made * 2654435761 >> 7) % (1 << CHECK_BITS)


@dataclass(frozen=True)
class _Source:
    """A tensor of the checkpoint, or some of its columns."""

    module: str
    outputs: int
    inputs: int
    rows: int  # that were taken
    columns: I64


@dataclass(frozen=True)
class _Held:
    """Rows of a matrix: of tensors, each at a place among the matrix' rows."""

    outputs: int
    sources: list[tuple[int, _Source, I64, I64]]  # its number, itself, its rows, and where they are

    @classmethod
    def of(cls, linear: Linear, checkpoint: "_Numbered") -> "_Held | None":
        """None: its numbers are not those of the files, or not by whole rows."""
        weight = linear.weight_OI
        if tensors.is_rehearsed(weight) or weight.dtype != tensors.int64:
            return None
        whole_OI = tensors.host(weight)
        numbers_O: I64 = np.ascontiguousarray(whole_OI[:, 0])
        if whole_OI.strides[1] and (whole_OI != numbers_O[:, np.newaxis]).any():
            return None
        plain_O = numbers_O >> CHECK_BITS
        tensor_O, row_O = (plain_O >> ROW_BITS) - 1, plain_O & ((1 << ROW_BITS) - 1)
        found = []
        for tensor in np.unique(tensor_O).tolist():
            places = np.flatnonzero(tensor_O == tensor)
            if tensor < 0:
                if numbers_O[places].any():
                    return None
                continue  # rows of zeros
            rows = row_O[places]
            if tensor >= len(checkpoint.sources) or (_numbers(tensor, rows) != numbers_O[places]).any():
                return None
            source = checkpoint.sources[tensor]
            if len(source.columns) != whole_OI.shape[1] or int(rows.max()) >= source.outputs:
                return None
            found.append((tensor, source, rows, places))
        return cls(len(numbers_O), found)

    def tensors(self) -> Iterator[_Source]:
        """Those whose rows it holds."""
        return (source for _, source, _, _ in self.sources)

    def without(self, modules: set[str]) -> "_Held":
        """Without tensors of these."""
        return _Held(self.outputs, [one for one in self.sources if one[1].module not in modules])

    def change(self, adapters: Sequence[Adapter], of_adapters: list[dict[str, Pair]]) -> Later | None:
        """None: no adapter changes it."""
        changing = [
            [
                (by_module[source.module], source, rows, places)
                for _, source, rows, places in self.sources
                if source.module in by_module
            ]
            for by_module in of_adapters
        ]
        rank = max((sum(pair.rank for pair, _, _, _ in some) for some in changing), default=0)
        if rank == 0:
            return None
        for adapter, some in zip(adapters, changing, strict=True):
            for pair, source, _, _ in some:
                _check_shape(adapter, source, pair)
        return partial(self._made, changing, rounded_up(rank, TILE_OUTPUTS))

    def _made(self, changing: list[list[tuple[Pair, _Source, I64, I64]]], rank: int) -> Change:
        inputs = len(self.sources[0][1].columns)
        a_KRI = np.zeros((len(changing), rank, inputs), np.float32)
        b_KOR = np.zeros((len(changing), self.outputs, rank), np.float32)
        for a_RI, b_OR, some in zip(a_KRI, b_KOR, changing, strict=True):
            begin = 0
            for pair, source, rows, places in some:
                end = begin + pair.rank
                a_RI[begin:end] = pair.a_RI[:, source.columns]
                b_OR[places, begin:end] = pair.b_OR[rows]
                begin = end
        return Change(a_KRI, b_KOR)


def _check_shape(adapter: Adapter, source: _Source, pair: Pair) -> None:
    outputs, inputs = len(pair.b_OR), pair.a_RI.shape[1]
    if (outputs, inputs) != (source.outputs, source.inputs):
        raise UnusableModel(
            f"{FLAG} {adapter.name}: is of another model: {source.module} is changed as a matrix of {outputs} rows and {inputs} columns, and "
            f"has {source.outputs} and {source.inputs}"
        )


class _Numbered(Checkpoint):
    """A checkpoint without numbers but for those of rows: a matrix of it has in all columns which row of which tensor it is."""

    def __init__(self, folder: Path, trusted: bool) -> None:
        super().__init__(folder, tensors.bfloat16, trusted)
        self.sources: list[_Source] = []
        self.read_otherwise: set[str] = set()
        """Modules whose tensors are not in a matrix alone."""

    def new(self, shape: tuple[int, ...], dtype: Dtype | None = None) -> Tensor:
        """See Checkpoint: of a matrix a number for each row."""
        if len(shape) != 2 or (dtype is not None and dtype != self.dtype):
            return super().new(shape, dtype)
        rows = np.zeros((shape[0], 1), np.int64)
        return tensors.of_memory(np.lib.stride_tricks.as_strided(rows, shape, (8, 0)), tensors.int64)

    def fill(
        self,
        into: Tensor,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None = None,
        columns: list[slice] | None = None,
    ) -> None:
        """See Checkpoint."""
        if tensors.is_rehearsed(into):
            self.read_otherwise.add(name.removesuffix(".weight"))
            return super().fill(into, name, shape, rows, columns)
        if not self._accepts(name, shape, self.dtype):
            return None
        numbers, taken = (
            tensors.host(into),
            [_taken(*one) for one in zip(shape, (rows, columns), strict=True)],
        )
        # Of a matrix that is stored the other way round a column is one number.
        if numbers.strides[0] == 0:
            numbers, taken, shape = numbers.T, taken[::-1], shape[::-1]
        numbers[:, 0] = _numbers(len(self.sources), taken[0])
        outputs, inputs = shape
        self.sources.append(_Source(name.removesuffix(".weight"), outputs, inputs, len(taken[0]), taken[1]))
        return None


def _taken(size: int, ranges: list[slice] | None) -> I64:
    return np.arange(size) if ranges is None else np.concatenate([np.arange(size)[one] for one in ranges])
