"""Compares a checkpoint, one file or sharded, with what a recipe asks for, and names all mismatches in one line.

Called by loaders, which say which tensors they want, in which shape, and which part of them. `load` has a loader ask
twice: first for nothing but shapes, which finds every contradiction before a byte is read, and then for the numbers,
which `penstock.loading.tensor_reader` copies.
"""

import math
import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from penstock import quantization
from penstock.adapters import merged
from penstock.errors import UnusableModel
from penstock.gguf.reading import Arranged
from penstock.loading.madvise import ask_for_huge_pages
from penstock.loading.memory import device_room
from penstock.loading.model_files import CONFIG, Contents, Stored, gigabytes, listed, read_json, weight_files
from penstock.loading.tensor_reader import DTYPES, FLOATS, TensorReader
from penstock.parallel.group import ALONE, TensorGroup
from penstock.quantization import codes, words
from penstock.telemetry import log
from penstock_kernels import tensors
from penstock_kernels.tensors import Dtype, Tensor

LARGE = 1 << 20
# Of a tensor that an adapter changes, so much is in fp32 at once.
CHANGED_BYTES = 16 << 20
# Tensors that may be missing beyond as many as there are, before it is not worth looking for more.
MISSING = 1000

# What is not copied out of the files.
DECODED = (codes.Matrix, words.Words, Arranged)

M = TypeVar("M")


def load(
    folder: Path,
    dtype: Any,
    device: Any,
    build: Callable[["Checkpoint"], M],
    trusted: bool = False,
    *,
    tells: bool = True,
    in_torch: bool = True,
    group: TensorGroup = ALONE,
) -> M:
    """What `build` makes of the checkpoint in `folder`. Raises UnusableModel, before anything is read if it can.

    `build` runs twice, and each time ends with `check_all_used`: first it gets tensors without numbers (a rehearsal). `device`: whose
    memory will hold what is made, torch's or `host.Processor`. `trusted` is the user's consent to pickled weights; `tells`: whether
    progress is logged. `in_torch`: of a model that torch runs. `group`: whose ranks load their parts at the same time.
    """
    with Checkpoint(folder, dtype, trusted) as checkpoint:
        build(checkpoint)
        free, are_free = group.room(device_room(device).free)
        if checkpoint.bytes_made > free:
            way_out = "; more shards (--num-shard) take less each" if group.free_bytes is None else ""
            raise UnusableModel(
                f"{folder}: this worker's weights take {gigabytes(checkpoint.bytes_made)} of memory, and "
                f"{gigabytes(free)} {are_free}{way_out}"
            )
        checkpoint.torch_device = device if in_torch else None
        with checkpoint.reading(tells):
            return build(checkpoint)


class Checkpoint:
    """The tensors of a model folder, by name, on the host. What does not fit is remembered for `check_all_used`.

    Until `reading` nothing is read: every tensor asked for has its shape and dtype only.
    """

    def __init__(self, folder: Path, dtype: Any, trusted: bool = False) -> None:
        """`dtype`: of what is asked for without one; torch's, or of `tensors`."""
        self.folder = folder
        self.dtype = tensors.as_dtype(dtype)
        self.is_rehearsal = True
        self.torch_device: Any = None
        """Where what is loaded goes, of a model that torch runs; None: it stays on the host, in numpy."""
        self.bytes_made = 0
        """Of all that `new` and `tensor` gave."""
        self.gives_back = False
        """Whether large tensors are on pages of their own, which the system has again when they are freed: of what is read to be
        converted, the allocator would keep holes that the next of its size just does not fit into."""
        self._files = weight_files(folder, trusted)
        self._reader = TensorReader(folder, self._files)
        self._stored = self._reader.stored
        self._merged = self._read_merged()
        self._config = quantization.with_what_is_beside(read_json(folder, CONFIG) or {}, folder)
        self._block = codes.block_of(self._config)
        self._has_codes = False
        self._used: dict[str, int] = {}
        self._copies: dict[tuple[str, str], bool] = {}
        self._plan = _Plan()
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._unusable: list[str] = []

    def _read_merged(self) -> merged.Merged | None:
        """The adapter that is merged into the model while it is read; None: there is none. What it has whole is from now on where it has it."""
        if not (self.folder / merged.FOLDER).is_dir():
            return None
        found = merged.Merged.read(
            self.folder, {words.whole_of(name): one for name, one in self._stored.items()}
        )
        for name in found.replaced:
            for part in words.parts_of(name):
                self._stored.pop(part, None)
        self._stored.update(found.replaced)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @contextmanager
    def reading(self, tells: bool) -> Iterator[None]:
        """From now on tensors have numbers. What was asked for before is read ahead."""
        self.is_rehearsal, self.bytes_made = False, 0
        warning = self.contents.warning
        if tells and warning is not None:
            log("WARN", warning, progress=True)
        with self._reader.reading(self._plan.ranges, self._plan.bytes, tells):
            yield

    @property
    def contents(self) -> Contents:
        """What the files hold."""
        return self._reader.contents

    @property
    def stored(self) -> dict[str, Stored]:
        """Where every tensor lies, by name."""
        return self._stored

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name."""
        return name in self._stored or words.is_there(name, self._stored)

    def is_copy(self, name: str, of: str, shape: tuple[int, ...]) -> bool:
        """Whether the tensor `name` has this shape and holds the first rows of the tensor `of` once more. What is made depends on it, so
        that both are read for it in a rehearsal, too. A matrix of codes is no copy, nor is what cannot be served.
        """
        ours, theirs = self._stored.get(name), self._stored.get(of)
        if ours is None or theirs is None or not {ours.dtype, theirs.dtype} <= FLOATS.keys():
            return False
        if self._merged is not None and not self._merged.changes.keys().isdisjoint((name, of)):
            return False
        if ours.shape != shape or theirs.shape[1:] != shape[1:] or theirs.shape[0] < shape[0]:
            return False
        if (name, of) not in self._copies:
            self._copies[name, of] = self._reader.are_equal(name, of)
        return self._copies[name, of]

    def tell_of_head(self, name: str, embedding: str) -> None:
        """Logs that the head `name` is kept, though config.json ties it to the embedding."""
        if not self.is_rehearsal:
            log(
                "WARN",
                f"config.json ties the head to the embedding (tie_word_embeddings), and {name} differs from {embedding}: it is kept",
                progress=True,
            )

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks a tensor that another rank reads."""
        self._accepts(name, shape, self.dtype)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors that were asked for, by whichever rank."""
        return sum(self._used.values())

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None = None,
        columns: list[slice] | None = None,
        dtype: Dtype | None = None,
    ) -> Tensor:
        """A new tensor with these ranges of the first and of the last dimension, in this order; None: the whole dimension.

        `shape` is that of the whole tensor in the file. Reads nothing else from the disk.
        """
        made = self.new(part_of(shape, rows, columns), dtype)
        self.fill(made, name, shape, rows, columns)
        return made

    def new(self, shape: tuple[int, ...], dtype: Dtype | None = None) -> Tensor:
        """Memory for what `fill` reads, which may be several tensors in one."""
        dtype = dtype or self.dtype
        size = math.prod(shape) * dtype.itemsize
        if self.gives_back and not self.is_rehearsal and size >= LARGE:
            # Private: pages that could be shared are small ones (`shmem_enabled`), whatever is asked for.
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            made = tensors.of_memory(np.frombuffer(pages, tensors.held_as(dtype)).reshape(shape), dtype)
        else:
            made = tensors.empty(shape, dtype, is_rehearsed=self.is_rehearsal)
        if not self.is_rehearsal:
            ask_for_huge_pages(made)
        self.bytes_made += made.nbytes
        return made

    def fill(
        self,
        into: Tensor,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None = None,
        columns: list[slice] | None = None,
    ) -> None:
        """Copies what `tensor` would give into memory of the same shape."""
        change = None if self._merged is None else self._merged.changes.get(name)
        if change is None or self.is_rehearsal:
            if change is not None:
                change.check(name, shape)
            self._fill(into, name, shape, rows, columns)
        else:
            self._fill_changed(into, change, name, shape, rows, columns)

    def _fill_changed(
        self,
        into: Tensor,
        change: merged.Change,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None,
        columns: list[slice] | None,
    ) -> None:
        """The same of a tensor that the merged adapter changes: in fp32, and rounded once."""
        at_once = max(CHANGED_BYTES // (4 * math.prod(shape[1:])), 1) if change.is_of_rows else shape[0]
        at = 0
        for some in [slice(0, shape[0])] if rows is None else rows:
            whole = some if change.is_of_rows else slice(0, shape[0])
            for begin in range(whole.start, whole.stop, at_once):
                end = min(begin + at_once, whole.stop)
                numbers = tensors.empty((end - begin, *shape[1:]), tensors.float32)
                self._fill(numbers, name, shape, [slice(begin, end)], None)
                change.apply(tensors.host(numbers), begin)
                taken = numbers if change.is_of_rows else numbers[some]
                across = [] if columns is None else [taken[..., range_] for range_ in columns]
                side = 0
                for part in across or [taken]:
                    piece = into[at : at + len(taken)]
                    if across:
                        piece = piece[..., side : side + part.shape[-1]]
                        side += part.shape[-1]
                    piece.copy_(part)
                    if not tensors.are_finite(piece):
                        self._reader.too_large.append(f"{name} (with the merged adapter)")
                at += len(taken)

    def _fill(
        self,
        into: Tensor,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None,
        columns: list[slice] | None,
    ) -> None:
        matrix = self._codes(name, shape)
        if not self._accepts(name, shape, into.dtype):
            return
        if isinstance(matrix, DECODED):
            held = self._stored[matrix.codes]
            if self.is_rehearsal:
                self._plan.add(held, into.numel() * (held.end - held.begin) // math.prod(shape))
            elif isinstance(matrix, codes.Matrix):
                self._reader.decode(into, matrix, rows, columns)
            elif isinstance(matrix, Arranged):
                self._reader.decode_arranged(into, matrix, rows, columns)
            else:
                self._reader.decode_words(into, matrix, rows, columns)
        elif self.is_rehearsal:
            stored = self._stored[name]
            self._plan.add(stored, into.numel() * DTYPES[stored.dtype].itemsize)
        else:
            self._reader.copy(into, name, rows, columns)

    def _codes(self, name: str, shape: tuple[int, ...]) -> codes.Matrix | words.Words | Arranged | str | None:
        arranged: Arranged | None = self.contents.arranged.get(name)
        if arranged is not None:
            return (
                arranged
                if arranged.shape == shape
                else f"{name} is {list(arranged.shape)}, not {list(shape)}"
            )
        found = words.find(name, shape, self._stored, self._config)
        return found or codes.find(name, shape, self._stored, self._block)

    def check_all_used(self, ignored: re.Pattern[str]) -> None:
        """Raises UnusableModel when the checkpoint is not what was asked for, with all that is wrong.

        Tensors that nobody asked for and `ignored` does not match are wrong, too: the model would not be what
        it seems.
        """
        extra = [name for name in self._stored if name not in self._used and not ignored.fullmatch(name)]
        if self._has_codes or any(codes.schemes(self._config)):
            extra = [
                name
                for name in extra
                if not re.fullmatch(codes.UNUSED, name)
                and not (words.may_be_idle(name, self._stored) and self._reader.is_zero(name))
            ]
        changes = () if self._merged is None else self._merged.changes
        unchanged = [name for name in changes if name not in self._used and not ignored.fullmatch(name)]
        # One that holds several parts was asked for several times.
        missing, misshapen, unusable = (
            list(dict.fromkeys(names)) for names in (self._missing, self._misshapen, self._unusable)
        )
        lacking = [self.contents.said_of_missing(name) for name in missing]
        wrong = [
            f"{what}: {listed(names)}"
            for names, what in (
                (lacking, f"lacks {_tensors(missing)}"),
                (misshapen, f"{_tensors(misshapen)} of another shape"),
                (unusable, f"{_tensors(unusable)} of a dtype that cannot be used"),
                (extra, f"{_tensors(extra)} without a place in the model"),
                (unchanged, f"a merged adapter for {_tensors(unchanged)} without a place in the model"),
            )
            if names
        ]
        if wrong:
            raise UnusableModel(f"{self._files.source} contradicts config.json: {'; '.join(wrong)}")
        for names, what, way_out in (
            (self._reader.not_numbers, "NaN or infinite numbers", ""),
            (self._reader.too_large, "numbers too large for the dtype served", "; choose another --dtype"),
        ):
            if names:
                raise UnusableModel(
                    f"{self._files.source}: {_tensors(names)} with {what}: {listed(names)}{way_out}"
                )

    def _accepts(self, name: str, shape: tuple[int, ...], wanted: Dtype) -> bool:
        matrix = self._codes(name, shape)
        if isinstance(matrix, DECODED) and wanted.is_floating_point:
            self._used |= dict.fromkeys(matrix.names, 0) | {matrix.codes: math.prod(shape)}
            self._has_codes = True
            self._miss_lost(words.parts_that_say_how(name))
            return True
        self._used[name] = math.prod(shape)
        if isinstance(matrix, str):
            self._misshapen.append(matrix)
            self._miss_lost(words.parts_of(name))
            return False
        stored = self._stored.get(name)
        if stored is None:
            self._missing.append(name)
            self._miss_lost(words.parts_of(name))
            if len(self._missing) > len(self._stored) + MISSING:
                raise UnusableModel(
                    f"{self._files.source} contradicts config.json: lacks more than {len(self._stored) + MISSING} "
                    f"tensors: {listed(self._missing)}"
                )
        elif stored.shape != shape:
            self._misshapen.append(f"{name} is {list(stored.shape)}, not {list(shape)}")
        elif stored.dtype not in (FLOATS if wanted.is_floating_point else DTYPES):
            self._unusable.append(f"{name} ({stored.dtype})")
            self._miss_lost(words.parts_of(name))
        else:
            return True
        return False

    def _miss_lost(self, names: list[str]) -> None:
        """Of what a matrix may be made of, remembers what the index and the files disagree about."""
        self._missing += filter(self.contents.is_lost, names)


class _Plan:
    """What a rehearsal asked for: parts of files in their order, and how much it will be."""

    def __init__(self) -> None:
        self.ranges: list[Stored] = []
        self.bytes = 0

    def add(self, stored: Stored, size: int) -> None:
        self.ranges.append(stored)
        self.bytes += size


def part_of(shape: tuple[int, ...], rows: list[slice] | None, columns: list[slice] | None) -> tuple[int, ...]:
    """What is left of a shape when only these ranges of its first and of its last dimension are taken."""
    left = list(shape)
    if rows is not None:
        left[0] = sum(some.stop - some.start for some in rows)
    if columns is not None:
        left[-1] = sum(some.stop - some.start for some in columns)
    return tuple(left)


def _tensors(names: list[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
