"""Reads checkpoints, one file or sharded, and says in one line what is wrong with them.

Called by recipes, which say which tensors they want, in which shape, and which part of them. `load` has a recipe
ask twice: first for nothing but shapes, which finds every contradiction before a byte is read, and then for the
numbers. What lies in one piece is read to where it stays. The rest is copied out of the mapped file, which is then let
go of, so that memory holds one copy.
"""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor

from penstock import pickled
from penstock.errors import UnusableModel
from penstock.kv_cache import device_room
from penstock.memory import ask_for_huge_pages, let_go
from penstock.model_files import (
    Stored,
    catalogue,
    check_present,
    compare,
    gigabytes,
    listed,
    weight_files,
)
from penstock.telemetry import log

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
WHOLE = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPES = FLOATS | WHOLE
NAMES = {dtype: name for name, dtype in DTYPES.items()}

META = torch.device("meta")
# Bytes that are copied, converted and looked through at once: they stay in the processor's caches.
PIECE = 4 << 20
# How far reading from the disk is ahead of the copying, and in which steps the system is asked to.
AHEAD = 256 << 20
STEP = 128 << 10
QUIET_SECONDS = 3.0
COPIERS = 4

M = TypeVar("M")


def load(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    build: Callable[["Checkpoint"], M],
    trusted: bool = False,
    *,
    tells: bool = True,
) -> M:
    """What `build` makes of the checkpoint in `folder`. Raises UnusableModel, before anything is read if it can.

    `build` runs twice, and each time ends with `check_all_used`: first it gets tensors without numbers, on torch's
    device meta. `trusted` is the user's consent to pickled weights; `tells`: whether progress is logged.
    """
    with Checkpoint(folder, dtype, META, trusted) as checkpoint:
        build(checkpoint)
        free = device_room(device).free
        if checkpoint.bytes_made > free:
            raise UnusableModel(
                f"{folder}: this worker's weights take {gigabytes(checkpoint.bytes_made)} of memory, and "
                f"{gigabytes(free)} are free; more shards (--num-shard) take less each"
            )
        with checkpoint.reading(device, tells):
            return build(checkpoint)


class Checkpoint:
    """The tensors of a model folder, by name. What does not fit is remembered for `check_all_used`.

    On the device meta nothing is read: every tensor asked for has its shape and dtype only.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, trusted: bool = False) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self.bytes_made = 0
        """Of all that `new` and `tensor` gave."""
        self._files = weight_files(folder, trusted)
        self._maps: dict[str, Tensor] = {}
        self._open: dict[str, int] = {}  # descriptors
        self._mapped: dict[str, tuple[int, int]] = {}  # addresses
        self._pickled: dict[str, Tensor] = {}
        self._stored = self._read_pickles() if self._files.pickled else catalogue(folder, self._files)
        self._used: dict[str, int] = {}
        self._plan = _Plan()
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._unusable: list[str] = []
        self._not_numbers: list[str] = []
        self._too_large: list[str] = []
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: _ReadAhead | None = None
        self._progress: _Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maps.clear()
        self._pickled.clear()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    @contextmanager
    def reading(self, device: torch.device, tells: bool) -> Iterator[None]:
        """From now on tensors have numbers and are on `device`. What was asked for before is read ahead."""
        self.device, self.bytes_made = device, 0
        self._progress = _Progress(self._plan.bytes, tells)
        self._ahead = _ReadAhead(self.folder, [] if self._files.pickled else self._plan.ranges)
        # Threads that wait for each other's pieces asleep: torch's own spin, and on a busy machine that made
        # loading ten times slower.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(min(threads, COPIERS)) as self._pool:
                yield
        finally:
            torch.set_num_threads(threads)
            self._ahead.stop()
            self._ahead = self._progress = self._pool = None

    @property
    def stored(self) -> dict[str, Stored]:
        """Where every tensor lies, by name."""
        return self._stored

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name."""
        return name in self._stored

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
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """A new tensor of these ranges of its first and of its last dimension, in this order; None: all of it.

        `shape` is that of the whole tensor in the file. Reads nothing else from the disk.
        """
        made = self.new(part_of(shape, rows, columns), dtype)
        self.fill(made, name, shape, rows, columns)
        return made

    def new(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Memory on the device for what `fill` reads, which may be several tensors in one."""
        made = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
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
        if not self._accepts(name, shape, into.dtype):
            return
        stored = self._stored[name]
        if self.device == META:
            self._plan.add(stored, into.numel())
            return
        if self._ahead is not None:
            self._ahead.begin(stored)
        if self.device.type == "cpu":
            self._copy_ranges(into, name, rows, columns)
        else:
            host = torch.empty(into.shape, dtype=into.dtype)
            self._copy_ranges(host, name, rows, columns)
            into.copy_(host)

    def check_all_used(self, ignored: re.Pattern[str]) -> None:
        """Raises UnusableModel when the checkpoint is not what was asked for, with all that is wrong.

        Tensors that nobody asked for and `ignored` does not match are wrong, too: the model would not be what
        it seems.
        """
        extra = [name for name in self._stored if name not in self._used and not ignored.fullmatch(name)]
        # One that holds several parts was asked for several times.
        missing, misshapen, unusable = (
            list(dict.fromkeys(names)) for names in (self._missing, self._misshapen, self._unusable)
        )
        wrong = [
            f"{what}: {listed(names)}"
            for names, what in (
                (missing, f"lacks {_tensors(missing)}"),
                (misshapen, f"{_tensors(misshapen)} of another shape"),
                (unusable, f"{_tensors(unusable)} of a dtype that cannot be used"),
                (extra, f"{_tensors(extra)} without a place in the model"),
            )
            if names
        ]
        if wrong:
            raise UnusableModel(f"{self._files.source} contradicts config.json: {'; '.join(wrong)}")
        if self._not_numbers:
            raise UnusableModel(
                f"{self._files.source}: {_tensors(self._not_numbers)} with NaN or infinite numbers: "
                f"{listed(self._not_numbers)}"
            )
        if self._too_large:
            raise UnusableModel(
                f"{self._files.source}: {_tensors(self._too_large)} with numbers too large for the dtype served: "
                f"{listed(self._too_large)}; choose another --dtype"
            )

    def _copy_ranges(
        self, made: Tensor, name: str, rows: list[slice] | None, columns: list[slice] | None
    ) -> None:
        source = self._source(name)
        if source.dim() == 0:
            self._copy(made.view(1), source.view(1), name)
            return
        at = 0
        for some in [slice(0, len(source))] if rows is None else rows:
            count = some.stop - some.start
            if columns is None:
                self._copy(made[at : at + count], source[some], name)
            else:
                side = 0
                for range_ in columns:
                    wide = range_.stop - range_.start
                    into = made[at : at + count, ..., side : side + wide]
                    self._copy(into, source[some.start : some.stop, ..., range_], name)
                    side += wide
            at += count

    def _accepts(self, name: str, shape: tuple[int, ...], wanted: torch.dtype) -> bool:
        self._used[name] = math.prod(shape)
        stored = self._stored.get(name)
        if stored is None:
            self._missing.append(name)
        elif stored.shape != shape:
            self._misshapen.append(f"{name} is {list(stored.shape)}, not {list(shape)}")
        elif stored.dtype not in (FLOATS if wanted.is_floating_point else DTYPES):
            self._unusable.append(f"{name} ({stored.dtype})")
        else:
            return True
        return False

    def _source(self, name: str) -> Tensor:
        """The whole tensor as it is stored; its pages are read when they are touched."""
        if self._files.pickled:
            return self._pickled[name]
        stored = self._stored[name]
        raw = self._map(stored.file)[stored.begin : stored.end]
        dtype = DTYPES[stored.dtype]
        if stored.begin % dtype.itemsize:  # in old files nothing is aligned
            raw = raw.clone()
        return raw.view(dtype).view(stored.shape)

    def _map(self, file: str) -> Tensor:
        """A file's bytes."""
        if file not in self._maps:
            path = self.folder / file
            mapped = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
            self._maps[file], self._open[file] = mapped, os.open(path, os.O_RDONLY)
            self._mapped[file] = (mapped.data_ptr(), mapped.data_ptr() + mapped.nbytes)
        return self._maps[file]

    def _copy(self, made: Tensor, source: Tensor, name: str) -> None:
        """Copies and converts piece by piece, and looks for what is no number."""
        if not source.numel():
            return
        count = len(source)
        rows = PIECE * count // source.nbytes
        if rows == 0 and source.dim() > 1:
            for into, row in zip(made, source, strict=True):
                self._copy(into, row, name)
            return
        begins = range(0, count, max(rows, 1))
        pieces = [(made[at : at + begins.step], source[at : at + begins.step]) for at in begins]
        take = partial(self._take, self._stored[name].file)
        at_once = self._pool.map if len(pieces) > 1 and self._pool is not None else map
        for (_, piece), finite in zip(pieces, at_once(take, pieces), strict=True):
            if not finite:
                self._note_not_finite(name, piece)
            if self._ahead is not None and self._progress is not None:
                self._ahead.go_on(piece.nbytes)
                self._progress.go_on(piece.nbytes)

    def _take(self, file: str, piece: tuple[Tensor, Tensor]) -> bool:
        """Copies and converts one piece: (memory, what of the file goes there). Whether all numbers are finite."""
        into, stored = piece
        source = self._read(file, piece) if file in self._open and stored.is_contiguous() else stored
        if {source.dtype, into.dtype} == {torch.float16, torch.bfloat16}:
            # By way of float32 it is ten times as fast.
            floats = self._scratch("floats", source, torch.float32)
            into.copy_(floats.copy_(source))
        elif source is not into:
            into.copy_(source)
        finite = not into.dtype.is_floating_point or _is_finite(into)
        if source is stored:
            self._let_go(file, source)
        return finite

    def _read(self, file: str, piece: tuple[Tensor, Tensor]) -> Tensor:
        """Reads a piece of a file, if it can to where it stays: there are no faults for pages of a mapping then."""
        into, stored = piece
        begin, _ = self._mapped[file]
        at = stored.data_ptr() - begin
        if not 0 <= at < self._maps[file].nbytes:  # a copy, of what is not aligned
            return stored
        there = into.dtype == stored.dtype and into.is_contiguous()
        read = into if there else self._scratch("read", stored, stored.dtype)
        left = read.as_strided((read.numel(),), (1,)).view(torch.uint8).numpy().data
        while left:
            count = os.preadv(self._open[file], [left], at)
            if count == 0:
                raise UnusableModel(f"{self.folder / file} was cut short while it was read")
            left, at = left[count:], at + count
        return read

    def _scratch(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Memory of this thread. Always the same: what is taken and given back between weights that stay leaves holes."""
        kept = getattr(self._own, name, None)
        if kept is None or kept.nbytes < like.numel() * dtype.itemsize:
            kept = torch.empty(like.numel() * dtype.itemsize, dtype=torch.uint8)
            setattr(self._own, name, kept)
        return kept[: like.numel() * dtype.itemsize].view(dtype).view(like.shape)

    def _let_go(self, file: str, piece: Tensor) -> None:
        """Takes the pages that a piece was read from out of this process's memory."""
        lowest, highest = self._mapped.get(file, (0, 0))
        first, length = piece.data_ptr(), piece.stride(0) * len(piece) * piece.element_size()
        if lowest <= first and first + length <= highest:
            let_go(first, first + length)

    def _note_not_finite(self, name: str, source: Tensor) -> None:
        shown = f"{name} ({self._stored[name].file})"
        # Infinite after the conversion only?
        names = self._too_large if bool(torch.isfinite(source).all()) else self._not_numbers
        if shown not in names:
            names.append(shown)

    def _read_pickles(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        twice: list[str] = []
        check_present(self.folder, self._files)
        for file in self._files.names:
            tensors, mapped = pickled.read(self.folder / file)
            if mapped:
                self._mapped[file] = (
                    min(tensor.data_ptr() for tensor in tensors.values()),
                    max(tensor.data_ptr() + tensor.nbytes for tensor in tensors.values()),
                )
            for name, tensor in tensors.items():
                if name in found:
                    twice.append(f"{name} ({found[name].file}, {file})")
                self._pickled[name] = tensor
                dtype = NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
                found[name] = Stored(file, dtype, tuple(tensor.shape), 0, tensor.nbytes)
        compare(self._files, {name: stored.file for name, stored in found.items()}, twice)
        return found


class _Plan:
    """What a rehearsal asked for: parts of files in their order, and how much it will be."""

    def __init__(self) -> None:
        self.ranges: list[Stored] = []
        self.bytes = 0

    def add(self, stored: Stored, numbers: int) -> None:
        self.ranges.append(stored)
        self.bytes += numbers * DTYPES[stored.dtype].itemsize


class _ReadAhead:
    """Asks the system for what is wanted next, so that copying does not wait for the disk at every page."""

    def __init__(self, folder: Path, ranges: list[Stored]) -> None:
        self._folder = folder
        self._ranges = ranges
        self._starts = [0]
        for stored in ranges:
            self._starts.append(self._starts[-1] + stored.end - stored.begin)
        self._next = 0
        self._within = threading.Condition()
        self._done = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="read ahead", daemon=True)
        if ranges:
            self._thread.start()

    def begin(self, stored: Stored) -> None:
        """This one is being copied now."""
        if self._next < len(self._ranges) and self._ranges[self._next] is stored:
            self._set(self._starts[self._next])
            self._next += 1

    def go_on(self, count: int) -> None:
        """So many bytes of it were copied."""
        self._set(self._done + count)

    def _set(self, done: int) -> None:
        with self._within:
            self._done = done
            self._within.notify()

    def stop(self) -> None:
        with self._within:
            self._stopped = True
            self._within.notify()
        if self._ranges:
            self._thread.join()

    def _run(self) -> None:
        files: dict[str, int] = {}
        try:
            for start, stored in zip(self._starts, self._ranges, strict=False):
                file = files.get(stored.file)
                if file is None:
                    file = files[stored.file] = os.open(self._folder / stored.file, os.O_RDONLY)
                for begin in range(stored.begin, stored.end, STEP):
                    with self._within:
                        while start + begin - stored.begin > self._done + AHEAD and not self._stopped:
                            self._within.wait()
                        if self._stopped:
                            return
                    os.posix_fadvise(file, begin, min(STEP, stored.end - begin), os.POSIX_FADV_WILLNEED)
        except OSError:  # it is a help only; who copies meets the same trouble, and says so
            return
        finally:
            for file in files.values():
                os.close(file)


class _Progress:
    """Log lines for whoever waits for a long load."""

    def __init__(self, total: int, tells: bool) -> None:
        self._total = total
        self._tells = tells
        self._done = 0
        self._began = self._said = time.monotonic()

    def go_on(self, count: int) -> None:
        """So many bytes more were read."""
        self._done += count
        now = time.monotonic()
        if now - self._said < QUIET_SECONDS or not self._tells:
            return
        self._said = now
        log(
            "INFO",
            f"loading weights: {self._done / max(self._total, 1):.0%} of {gigabytes(self._total)}, "
            f"{gigabytes(self._done / (now - self._began))}/s",
            progress=True,
        )


def part_of(shape: tuple[int, ...], rows: list[slice] | None, columns: list[slice] | None) -> tuple[int, ...]:
    """What is left of a shape when only these ranges of its first and of its last dimension are taken."""
    left = list(shape)
    if rows is not None:
        left[0] = sum(some.stop - some.start for some in rows)
    if columns is not None:
        left[-1] = sum(some.stop - some.start for some in columns)
    return tuple(left)


def _is_finite(piece: Tensor) -> bool:
    """A sum is not finite when one of its terms is not, and costs little; it may overflow without that."""
    return bool(torch.isfinite(piece.sum())) or bool(torch.isfinite(piece).all())


def _tensors(names: list[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
