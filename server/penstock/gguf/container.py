"""Reads what a GGUF file says before its numbers: metadata, and where each tensor lies. Must not import torch.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3: a header of counts, pairs of metadata, one entry for each tensor, and behind
them, aligned, the data. All that it counts is compared with the file's size before anything is made of it. The `gguf` package of llama.cpp's project reads such
files, too, and a vocabulary with one array for each token; it is what the tests compare with.
"""

import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import UnusableModel
from penstock.gguf.blocks import BLOCKS
from penstock.loading.model_files import Stored, counted, impostor, listed, open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Of a model in parts, each: "-00001-of-00003.gguf", counted from 1.
PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

LONGEST_KEY, LONGEST_NAME = 65_535, 1 << 16
# Of a vocabulary the largest known has a quarter of a million tokens and half a million merges.
MOST_PAIRS, MOST_TENSORS, MOST_ELEMENTS = 1 << 16, 1 << 20, 1 << 24
MOST_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

# Metadata's types: numbers as numpy has them, and the others.
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
BOOLEAN, STRING, ARRAY = 7, 8, 9
# Tensors' types, by ggml's numbers: plain numbers as safetensors calls them, and blocks.
TYPES = {
    0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16",
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
PLAIN_BYTES = {"F32": 4, "F16": 2, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F64": 8, "BF16": 2}


@dataclass(frozen=True)
class Header:
    """Of a model's file, or of all parts of one that is in several."""

    folder: Path
    """Where they are."""
    metadata: dict[str, Any]
    """Numbers, strings, booleans, and lists of these."""
    tensors: dict[str, Stored]
    """By the names that the file has. Shapes have the outermost dimension first, as safetensors has them. `dtype`: of plain numbers as
    safetensors calls it (F32, F16, BF16, ...), of blocks as ggml does (Q4_K, IQ4_XS, MXFP4, ...)."""


def read_header(path: Path) -> Header:
    """Of one file. Raises UnusableModel, in a line that names it."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(200)
            instead = impostor(start)
            if instead is not None:
                raise UnusableModel(f"{path.name}: {instead}")
            if start[:4] != MAGIC:
                raise _unsound(path, "it does not begin with GGUF")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
                return _Parser(path, memory, size).header()
    except OSError as error:
        raise UnusableModel(f"{path}: cannot be read: {error.strerror}") from error


def parts_of(file: Path) -> list[Path]:
    """All files of a model of which this is one, in their order. Raises UnusableModel, naming those that are missing."""
    found = PART.fullmatch(file.name)
    if found is None:
        return [file]
    number, count = int(found["number"]), int(found["count"])
    if not 1 <= number <= count:
        raise UnusableModel(f"{file.name}: there is no part {number} of {count}")
    every = [
        file.with_name(f"{found['name']}-{at:05}-of-{count:05}.gguf")
        for at in range(1, min(count, MOST_PAIRS) + 1)
    ]
    absent = [one.name for one in every if not one.exists()]
    if absent:
        raise UnusableModel(
            f"{file.name} is part of a model: {counted(absent, 'file')} missing: {listed(absent)}"
        )
    return every


def read_model(files: list[Path]) -> Header:
    """Of a model in one file or in parts: the metadata is the first one's. Raises UnusableModel."""
    headers = [read_header(file) for file in files]
    tensors: dict[str, Stored] = {}
    for at, (file, header) in enumerate(zip(files, headers, strict=True)):
        number, count = (header.metadata.get(f"split.{name}") for name in ("no", "count"))
        if len(files) > 1 and number is not None and (number, count) != (at, len(files)):
            raise UnusableModel(
                f"{file.name}: it says that it is part {str(number)[:20]} of {str(count)[:20]}, counted from 0"
            )
        twice = sorted(tensors.keys() & header.tensors.keys())
        if twice:
            raise UnusableModel(
                f"{file.name}: {counted(twice, 'tensor')} in another part as well: {listed(twice)}"
            )
        tensors |= header.tensors
    return Header(headers[0].folder, headers[0].metadata, tensors)


def _unsound(path: Path, why: str) -> UnusableModel:
    # Names in a file may hold anything, and the line goes to logs and terminals.
    why = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in why[:600])
    return UnusableModel(f"{path.name}: not a sound GGUF file: {why}")


class _Parser:
    """Goes through one file's header from its begin."""

    def __init__(self, path: Path, memory: mmap.mmap, size: int) -> None:
        self._path, self._memory, self._size = path, memory, size
        self._at = 4

    def header(self) -> Header:
        version = self._number("<I")
        if version not in VERSIONS:
            is_turned = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise self._unsound(
                "its numbers are big-endian, which are not read"
                if is_turned
                else f"version {version} is not read"
            )
        tensor_count, pair_count = self._number("<Q"), self._number("<Q")
        for count, most, what in (
            (tensor_count, MOST_TENSORS, "tensors"),
            (pair_count, MOST_PAIRS, "pairs of metadata"),
        ):
            if count > most:
                raise self._unsound(f"{count} {what}, and at most {most} are read")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string(LONGEST_KEY, "a key")
            if key in metadata:
                raise self._unsound(f"{key} is in it twice")
            metadata[key] = self._value(self._number("<I"), key)
        entries = [self._entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self._unsound(
                f"general.alignment is {str(alignment)[:40]}, and it has to be a power of two"
            )
        return Header(
            self._path.parent,
            metadata,
            self._places(entries, -(-self._at // alignment) * alignment, alignment),
        )

    def _places(
        self, entries: list[tuple[str, tuple[int, ...], str, int]], data: int, alignment: int
    ) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for name, shape, dtype, offset in entries:
            if name in found:
                raise self._unsound(f"the tensor {name[:200]} is in it twice")
            begin = data + offset
            end = begin + self._bytes_of(name, shape, dtype)
            if offset % alignment:
                raise self._unsound(f"the tensor {name[:200]} is not aligned to {alignment} bytes")
            if end > self._size:
                raise self._unsound(f"it is cut short: {self._size} bytes of {end} or more")
            found[name] = Stored(self._path.name, dtype, shape, begin, end)
        last = 0
        for name, one in sorted(found.items(), key=lambda pair: pair[1].begin):
            if one.begin < last:
                raise self._unsound(f"the tensor {name[:200]} lies within another one")
            last = one.end
        return found

    def _bytes_of(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        numbers = 1
        for dimension in shape:
            numbers *= dimension
        if dtype in PLAIN_BYTES:
            return numbers * PLAIN_BYTES[dtype]
        block = BLOCKS.get(dtype)
        if block is None:
            return 0  # refused by whoever asks for it, by its name
        if shape[-1] % block.numbers:
            raise self._unsound(
                f"{name[:200]} has rows of {shape[-1]} numbers, and blocks of {dtype} have {block.numbers}"
            )
        return numbers // block.numbers * block.bytes

    def _entry(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string(LONGEST_NAME, "the name of a tensor")
        count = self._number("<I")
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self._unsound(f"the tensor {name[:200]} has {count} dimensions")
        shape = tuple(self._number("<Q") for _ in range(count))[::-1]
        if any(not 1 <= dimension < 1 << 40 for dimension in shape):
            raise self._unsound(f"the tensor {name[:200]} is {list(shape)}")
        kind, offset = self._number("<I"), self._number("<Q")
        if kind not in TYPES:
            raise self._unsound(f"the tensor {name[:200]} is of type {kind}, which is not known")
        return name, shape, TYPES[kind], offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(self._size, key)
        if kind == BOOLEAN:
            return bool(self._take(1, key)[0])
        if kind in NUMBERS:
            return np.frombuffer(self._take(int(NUMBERS[kind][2]), key), NUMBERS[kind])[0].item()
        if kind != ARRAY:
            raise self._unsound(f"{key} is of type {kind}, which is not known")
        kind, count = self._number("<I"), self._number("<Q")
        if count > MOST_ELEMENTS:
            raise self._unsound(f"{key} has {count} elements, and at most {MOST_ELEMENTS} are read")
        if kind == STRING:
            return [self._string(self._size, key) for _ in range(count)]
        if kind in (BOOLEAN, *NUMBERS):
            form = NUMBERS.get(kind, "<u1")
            found = np.frombuffer(self._take(count * int(form[2]), key), form).tolist()
            return [bool(one) for one in found] if kind == BOOLEAN else found
        raise self._unsound(f"{key} is an array of type {kind}, which is not read")

    def _number(self, form: str) -> int:
        found: int = struct.unpack(form, self._take(struct.calcsize(form), "its header"))[0]
        return found

    def _string(self, longest: int, what: str) -> str:
        length = self._number("<Q")
        if length > longest:
            raise self._unsound(f"{what} would have {length} bytes")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self._unsound(f"{what} is not UTF-8") from error

    def _take(self, count: int, what: str) -> bytes:
        if self._at + count > self._size:
            raise self._unsound(f"it is cut short: {what} goes on behind its end, at {self._size} bytes")
        self._at += count
        return self._memory[self._at - count : self._at]

    def _unsound(self, why: str) -> UnusableModel:
        return _unsound(self._path, why)
