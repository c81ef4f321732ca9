"""Copies tensors out of a checkpoint's files, converts them, and looks for what is no number.

Used by `penstock.loading.checkpoint`, which knows what is wanted. What lies in one piece is read to where it stays. The
rest is copied out of the mapped file, which is then let go of, so that memory holds one copy.
"""

import math
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import UnusableModel
from penstock.gguf.layout import Made
from penstock.gguf.reading import Arranged
from penstock.loading.contents import catalogue
from penstock.loading.host import NEEDS_TORCH, threads_of
from penstock.loading.madvise import let_go
from penstock.loading.model_files import Contents, Stored, WeightFiles, check_present, sort_out
from penstock.loading.read_ahead import Progress, ReadAhead
from penstock.quantization.codes import EXPONENTS, TABLES, Matrix, powers
from penstock.quantization.words import Words
from penstock_kernels import tensors
from penstock_kernels.tensors import HostArray, Tensor, host

FLOATS = {
    "F64": tensors.float64,
    "F32": tensors.float32,
    "BF16": tensors.bfloat16,
    "F16": tensors.float16,
}
WHOLE = {
    "I64": tensors.int64,
    "I32": tensors.int32,
    "I16": tensors.int16,
    "I8": tensors.int8,
    "U8": tensors.uint8,
    "BOOL": tensors.boolean,
}
DTYPES = FLOATS | WHOLE
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Bytes that are copied, converted and looked through at once: they stay in the processor's caches.
PIECE = 4 << 20
COPIERS = 4


class TensorReader:
    """The files of one checkpoint. Tensors with numbers that cannot be served are remembered by name."""

    def __init__(self, folder: Path, files: WeightFiles) -> None:
        self.folder = folder
        self.not_numbers: list[str] = []  # NaN or infinite
        self.too_large: list[str] = []  # for the dtype that is served
        self._files = files
        self._maps: dict[str, HostArray] = {}  # of bytes
        self._open: dict[str, int] = {}  # descriptors
        self._mapped: dict[str, tuple[int, int]] = {}  # addresses
        self._pickled: dict[str, Tensor] = {}
        self.contents = self._read_pickles() if files.pickled else catalogue(folder, files)
        self.stored = self.contents.stored
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: ReadAhead | None = None
        self._progress: Progress | None = None

    def close(self) -> None:
        """Lets go of the files."""
        self._maps.clear()
        self._pickled.clear()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    @contextmanager
    def reading(self, ranges: list[Stored], total: int, tells: bool) -> Iterator[None]:
        """What is copied within is read ahead, by several threads: `ranges` of files in this order, `total` bytes.
        `tells`: whether progress is logged.
        """
        self._progress = Progress(total, tells)
        self._ahead = ReadAhead(self.folder, [] if self._files.pickled else ranges)
        try:
            with ThreadPoolExecutor(min(threads_of(0), COPIERS)) as self._pool:
                yield
        finally:
            self._ahead.stop()
            self._ahead = self._progress = self._pool = None

    def copy(self, made: Tensor, name: str, rows: list[slice] | None, columns: list[slice] | None) -> None:
        """Copies these ranges of a tensor's first and of its last dimension into memory of the host."""
        if self._ahead is not None:
            self._ahead.begin(self.stored[name])
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

    def are_equal(self, name: str, other: str) -> bool:
        """Whether a tensor's rows are the first ones of another tensor. Reads piece by piece, up to the first that differs."""
        ours, theirs = self._source(name), self._source(other)
        count = max(PIECE * len(ours) // max(ours.nbytes, 1), 1)
        for at in range(0, len(ours), count):
            pieces = ours[at : at + count], theirs[at : at + count][: len(ours) - at]
            mine, others = pieces if ours.dtype == theirs.dtype else [piece.float() for piece in pieces]
            if not np.array_equal(host(mine), host(others)):
                return False
            for one, piece in zip((name, other), pieces, strict=True):
                self._let_go(self.stored[one].file, piece)
        return True

    def is_zero(self, name: str) -> bool:
        """Whether all numbers of a tensor are 0."""
        return self.stored[name].dtype in DTYPES and not host(self._source(name)).any()

    def decode(
        self, made: Tensor, matrix: Matrix, rows: list[slice] | None, columns: list[slice] | None
    ) -> None:
        """Copies what these ranges of a matrix of codes stand for, as `copy` does with numbers."""
        if self._ahead is not None:
            self._ahead.begin(self.stored[matrix.codes])
        codes = self._bytes(matrix.codes).reshape(self.stored[matrix.codes].shape)
        if matrix.is_turned:
            assert columns is None, "nobody divides the outputs of such experts"
            codes, made = codes.swapaxes(1, 2), made.transpose(1, 2)
        codes = codes.reshape(matrix.stored_shape)
        scales_oi = self._scales(matrix, None) if codes.ndim == 2 else None
        at = 0
        for some in [slice(0, matrix.shape[0])] if rows is None else rows:
            if scales_oi is not None:
                into = made[at : at + some.stop - some.start]
                self._decode(into, codes, some, scales_oi, matrix, columns)
            else:
                for place in range(some.start, some.stop):
                    self._decode_stack(made[at + place - some.start], codes[place], place, matrix, columns)
            at += some.stop - some.start
        self._let_go_of(matrix.names)

    def _decode_stack(
        self, made: Tensor, codes: HostArray, place: int, matrix: Matrix, columns: list[slice] | None
    ) -> None:
        """One of the first dimension, of which no more scales than its own are decoded: those of all experts may take gigabytes."""
        sides, grid = matrix.shape[-2:], matrix.grid[-2:]
        scales = np.broadcast_to(self._scales(matrix, place), (*matrix.shape[1:-2], *grid)).reshape(-1, *grid)
        matrices = [made] if made.dim() == 2 else made.view(-1, *sides)
        for one, codes_OB, scales_oi in zip(
            matrices, codes.reshape(-1, *codes.shape[-2:]), scales, strict=True
        ):
            self._decode(one, codes_OB, slice(0, sides[0]), scales_oi, matrix, columns)

    def _decode(
        self,
        made: Tensor,
        codes_OB: HostArray,
        rows: slice,
        scales_oi: HostArray,
        matrix: Matrix,
        columns: list[slice] | None,
    ) -> None:
        """These rows of one matrix, piece by piece."""
        side, name = 0, matrix.codes
        inputs_I = None if matrix.inputs is None else host(self._source(matrix.inputs).float())
        for range_ in [slice(0, matrix.shape[-1])] if columns is None else columns:
            wide = range_.stop - range_.start
            count = max(PIECE // (4 * max(wide, 1)), 1)

            def take(begin: int, side: int = side, range_: slice = range_, wide: int = wide) -> Tensor | None:
                """What cannot be served, as it was before the conversion."""
                piece = slice(begin, min(begin + count, rows.stop))  # noqa: B023
                piece_RB = codes_OB[matrix.stored_rows(piece)]
                decoded = matrix.decoded(piece_RB, scales_oi, piece, range_, inputs_I)
                numbers = tensors.of_memory(decoded, tensors.float32)
                into = made[begin - rows.start : piece.stop - rows.start, side : side + wide]
                into.copy_(numbers)
                if piece_RB.flags.c_contiguous:
                    self._let_go(self.stored[name].file, tensors.of_memory(piece_RB, tensors.uint8))
                return None if tensors.are_finite(into) else numbers

            begins = range(rows.start, rows.stop, count)
            at_once = self._pool.map if len(begins) > 1 and self._pool is not None else map
            for begin, wrong in zip(begins, at_once(take, begins), strict=True):
                if wrong is not None:
                    self._note_not_finite(name, wrong)
                done = min(count, rows.stop - begin)
                self._go_on(done * wide * math.prod(matrix.stored_shape) // math.prod(matrix.shape))
            side += wide
        if matrix.is_turned:  # of which no piece is in one piece of the file
            self._let_go(self.stored[name].file, tensors.of_memory(codes_OB.T, tensors.uint8))

    def decode_words(
        self, made: Tensor, matrix: Words, rows: list[slice] | None, columns: list[slice] | None
    ) -> None:
        """The same of a matrix of whole numbers in words, and of a stack of them (X, O, I)."""
        if self._ahead is not None:
            self._ahead.begin(self.stored[matrix.codes])
        parts = {
            name: self._bytes(name).view(np.uint32).reshape(self.stored[name].shape)
            for name in matrix.names
            if name != matrix.scales
        }
        parts[matrix.scales] = host(self._source(matrix.scales).float())
        if made.dim() == 3:
            each = made.shape[1]
            rows = None if rows is None else [slice(one.start * each, one.stop * each) for one in rows]
            parts = {name: part.reshape(-1, part.shape[-1]) for name, part in parts.items()}
            made = made.view(-1, made.shape[-1])
        matrix = matrix.in_order_of(parts)
        count, wide = max(PIECE // (4 * matrix.shape[1]) // 32 * 32, 32), matrix.shape[1]
        pieces, at = [], 0
        for some in [slice(0, matrix.shape[0])] if rows is None else rows:
            for begin in range(some.start, some.stop, count):
                piece = slice(begin, min(begin + count, some.stop))
                pieces.append((piece, at + begin - some.start))
            at += some.stop - some.start

        def take(one: tuple[slice, int]) -> list[Tensor]:
            """What cannot be served, as it was before the conversion."""
            (piece, at), wrong = one, []
            side, into = 0, made[at : at + piece.stop - piece.start]
            for range_ in [slice(0, wide)] if columns is None else columns:
                across = range_.stop - range_.start
                numbers = tensors.of_memory(matrix.decoded(parts, piece, range_), tensors.float32)
                into[:, side : side + across].copy_(numbers)
                if not tensors.are_finite(into[:, side : side + across]):
                    wrong.append(numbers)
                side += across
            if matrix.holds_rows:
                words = parts[matrix.codes][piece].view(np.uint8)
                self._let_go(self.stored[matrix.codes].file, tensors.of_memory(words, tensors.uint8))
            return wrong

        at_once = self._pool.map if len(pieces) > 1 and self._pool is not None else map
        for wrong in at_once(take, pieces):
            for numbers in wrong:
                self._note_not_finite(matrix.codes, numbers)
        self._go_on(made.numel() * matrix.bits // 8)
        self._let_go_of(matrix.names)

    def decode_arranged(
        self, made: Tensor, arranged: Arranged, rows: list[slice] | None, columns: list[slice] | None
    ) -> None:
        """The same of a tensor of a GGUF file."""
        if self._ahead is not None:
            self._ahead.begin(self.stored[arranged.codes])
        for held in arranged.stored.values():
            self._map(held.file)  # here, and not in several threads at once
        count = max(PIECE // (4 * math.prod(arranged.shape[1:])), 1)
        if isinstance(arranged.made_of, Made) and not arranged.made_of.is_stack:
            count = arranged.shape[0]  # all of it is made for any of it
        pieces, at = [], 0
        for some in [slice(0, arranged.shape[0])] if rows is None else rows:
            for begin in range(some.start, some.stop, count):
                piece = slice(begin, min(begin + count, some.stop))
                pieces.append((piece, at + begin - some.start))
            at += some.stop - some.start

        def take(one: tuple[slice, int]) -> list[Tensor]:
            """What cannot be served, as it was before the conversion."""
            (piece, at), wrong, side = one, [], 0
            for range_ in [slice(0, arranged.shape[-1])] if columns is None else columns:
                into = made[at : at + piece.stop - piece.start]
                if columns is not None:
                    into = into[..., side : side + range_.stop - range_.start]
                    side += range_.stop - range_.start
                numbers = tensors.of_memory(arranged.decoded(self._map, piece, range_), tensors.float32)
                into.copy_(numbers)
                if not tensors.are_finite(into):
                    wrong.append(numbers)
            return wrong

        at_once = self._pool.map if len(pieces) > 1 and self._pool is not None else map
        for wrong in at_once(take, pieces):
            for numbers in wrong:
                self._note_not_finite(arranged.codes, numbers)
        held = self.stored[arranged.codes]
        self._go_on((held.end - held.begin) * made.numel() // math.prod(arranged.shape))
        for one in arranged.stored.values():
            self._let_go(one.file, tensors.of_memory(self._map(one.file)[one.begin : one.end], tensors.uint8))

    def _bytes(self, name: str) -> HostArray:
        """A tensor of codes, without its shape."""
        if self._files.pickled:
            return host(self._pickled[name]).reshape(-1).view(np.uint8)
        stored = self.stored[name]
        return self._map(stored.file)[stored.begin : stored.end]

    def _scales(self, matrix: Matrix, place: int | None) -> HostArray:
        """In fp32, as their grid; of this one of the first dimension alone, without it, or of all."""
        stored = self.stored[matrix.scales]

        def mine(parts: Any) -> Any:  # an array, or a tensor
            return parts if place is None else parts[place if len(parts) > 1 else 0]

        if stored.dtype in EXPONENTS:
            held_as = stored.shape if matrix.is_turned else matrix.grid
            exponents = mine(self._bytes(matrix.scales).reshape(held_as))
            return powers(exponents.swapaxes(-1, -2) if matrix.is_turned else exponents)
        if matrix.factor is None:
            return host(mine(self._source(matrix.scales).view(matrix.grid)).float())
        codes = mine(self._bytes(matrix.scales).reshape(stored.shape))
        scales: HostArray = np.take(TABLES[stored.dtype], codes, mode="clip")
        scales = scales.swapaxes(-1, -2) if matrix.is_turned else scales
        factors = host(self._source(matrix.factor).float()).reshape(-1)
        factor = factors[0] if place is None else mine(factors)
        combine = np.divide if matrix.divides else np.multiply
        combine(scales, factor, out=scales)
        return scales

    def _source(self, name: str) -> Tensor:
        """The whole tensor as it is stored; its pages are read when they are touched."""
        if self._files.pickled:
            return self._pickled[name]
        stored = self.stored[name]
        raw = self._map(stored.file)[stored.begin : stored.end]
        dtype = DTYPES[stored.dtype]
        if stored.begin % dtype.itemsize:  # in old files nothing is aligned
            raw = raw.copy()
        return tensors.of_memory(raw, tensors.uint8).view(dtype).view(stored.shape)

    def _map(self, file: str) -> HostArray:
        """A file's bytes."""
        if file not in self._maps:
            self._open[file] = descriptor = os.open(self.folder / file, os.O_RDONLY)
            memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
            self._maps[file] = mapped = np.frombuffer(memory, np.uint8)
            begin = mapped.__array_interface__["data"][0]
            self._mapped[file] = (begin, begin + mapped.nbytes)
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
        take = partial(self._take, self.stored[name].file)
        at_once = self._pool.map if len(pieces) > 1 and self._pool is not None else map
        for (_, piece), finite in zip(pieces, at_once(take, pieces), strict=True):
            if not finite:
                self._note_not_finite(name, piece)
            self._go_on(piece.nbytes)

    def _take(self, file: str, piece: tuple[Tensor, Tensor]) -> bool:
        """Copies and converts one piece: (memory, what of the file goes there). Whether all numbers are finite."""
        into, stored = piece
        source = self._read(file, piece) if file in self._open and stored.is_contiguous() else stored
        if source is not into:
            into.copy_(source)
        finite = tensors.are_finite(into)
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
        read = into if there else self._scratch(stored)
        left = host(read).reshape(-1).view(np.uint8).data
        while left:
            count = os.preadv(self._open[file], [left], at)
            if count == 0:
                raise UnusableModel(f"{self.folder / file} was cut short while it was read")
            left, at = left[count:], at + count
        return read

    def _scratch(self, like: Tensor) -> Tensor:
        """Memory of this thread. Always the same: what is taken and given back between weights that stay leaves holes."""
        kept: HostArray | None = getattr(self._own, "read", None)
        if kept is None or kept.nbytes < like.nbytes:
            kept = host(tensors.empty((like.nbytes,), tensors.uint8))
            self._own.read = kept
        return tensors.of_memory(kept[: like.nbytes], tensors.uint8).view(like.dtype).view(like.shape)

    def _let_go(self, file: str, piece: Tensor) -> None:
        """Takes the pages that a piece was read from out of this process's memory."""
        lowest, highest = self._mapped.get(file, (0, 0))
        first, length = piece.data_ptr(), piece.stride(0) * len(piece) * piece.element_size()
        if lowest <= first and first + length <= highest:
            let_go(first, first + length)

    def _let_go_of(self, names: tuple[str, ...]) -> None:
        """The same of whole tensors."""
        for name in names:
            self._let_go(self.stored[name].file, tensors.of_memory(self._bytes(name), tensors.uint8))

    def _note_not_finite(self, name: str, source: Tensor) -> None:
        # Infinite after the conversion only?
        self._note(name, self.too_large if tensors.are_finite(source) else self.not_numbers)

    def _note(self, name: str, wrong: list[str]) -> None:
        shown = f"{name} ({self.stored[name].file})"
        if shown not in wrong:
            wrong.append(shown)

    def _go_on(self, count: int) -> None:
        """So many bytes more of the files are copied."""
        if self._ahead is not None and self._progress is not None:
            self._ahead.go_on(count)
            self._progress.go_on(count)

    def _read_pickles(self) -> Contents:
        every: list[tuple[str, Stored]] = []
        check_present(self.folder, self._files)
        pickled = _reader_of_pickles()
        for file in self._files.names:
            of_file, mapped = pickled.read(self.folder / file)
            if mapped:
                self._mapped[file] = (
                    min(tensor.data_ptr() for tensor in of_file.values()),
                    max(tensor.data_ptr() + tensor.nbytes for tensor in of_file.values()),
                )
            for name, tensor in of_file.items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                known = next((name for name, one in DTYPES.items() if str(one) == dtype), None)
                if known is not None and self._files.gives(name, file):
                    self._pickled[name] = tensors.of_torch(tensor)
                every.append((name, Stored(file, known or dtype, tuple(tensor.shape), 0, tensor.nbytes)))
        return sort_out(self._files, every)


def _reader_of_pickles() -> Any:
    """Only torch reads such files as what they are."""
    try:
        from penstock.loading import pickled
    except ImportError as error:
        raise UnusableModel("pickled weights (pytorch_model.bin)" + NEEDS_TORCH) from error
    return pickled
