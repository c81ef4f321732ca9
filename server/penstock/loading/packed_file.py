"""A file of tensors that is mapped at a start: written whole or not at all, and believed only where it is this user's own.

Layout: `HEAD`, that is a magic, the format, and where the directory begins, its length and its SHA-256; the tensors from `FIRST` on, each
at a multiple of 64 bytes; the directory, JSON. Knows no model: `penstock.models.packed_cache` says what the tensors are (`content`) and
what they were made of (`key`). Must not import torch.
"""

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.loading.model_files import gigabytes, kind_of
from penstock_kernels.program import HostArray

MAGIC = b"PENSTOCK-PACKED\n"
FORMAT = 2
HEAD = struct.Struct("<16sQQQ32s")
FIRST, ALIGNMENT = 4096, 64
LONGEST_DIRECTORY = 100_000_000
# While it is written; a lock says whether somebody still does.
PARTIAL = ".partial"
DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(np.uint16),  # numpy has no such numbers, and they are moved only
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Bytes that are written at once, and that the disk may lag behind: a server that takes requests meanwhile shares it.
PIECE, BEHIND = 8 << 20, 256 << 20
# Of the disk, that is left to others.
ROOM_TO_LEAVE = 1 << 30


class NotUsable(Exception):
    """Why a file is not used, in words that follow its name. `is_old`: it is sound, of other weights or another version."""

    def __init__(self, why: str, is_old: bool = False) -> None:
        super().__init__(why)
        self.is_old = is_old


@dataclass(frozen=True)
class Packed:
    """What was read: the tensors are in the mapped file."""

    content: dict[str, Any]
    tensors: list[HostArray]
    nbytes: int


def why_not_own(status: os.stat_result, user: int) -> str | None:
    """Why a file is not to be believed by `user`, whose weights it would be: only they, or root, may have written it."""
    if not stat.S_ISREG(status.st_mode):
        return f"is {kind_of(status.st_mode)}, not a file"
    if status.st_uid not in (user, 0):
        return f"belongs to another user ({status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def read(path: Path, key: str) -> Packed:
    """Maps the file at `path`, which was written with the same `key`. Raises FileNotFoundError and NotUsable."""
    descriptor = open_own(path)
    try:
        directory, size = _directory(descriptor)
        if directory["key"] != key:
            raise NotUsable("is of another version of the model or of Penstock", is_old=True)
        # For `remove_unused`: used now, and in use as long as it is mapped.
        with suppress(OSError):  # root's
            os.utime(descriptor)
        with suppress(OSError):  # on a system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_WILLNEED)
        return Packed(directory["content"], list(_tensors(mapped, directory["tensors"])), size)
    except OSError as error:
        raise NotUsable(f"cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise NotUsable("is damaged") from error
    finally:
        os.close(descriptor)


def folder_of_model(path: Path) -> str | None:
    """The folder of the model that a file is of, as `write` was told; None: it cannot be said."""
    return _said_by(path, "model")


def key_of(path: Path) -> str | None:
    """The key that a file was written with; None: there is none that is believed."""
    return _said_by(path, "key")


def _said_by(path: Path, name: str) -> str | None:
    try:
        descriptor = open_own(path)
    except (OSError, NotUsable):
        return None
    try:
        return str(_directory(descriptor)[0][name])
    except (OSError, NotUsable, KeyError, ValueError):
        return None
    finally:
        os.close(descriptor)


def remove_unused(path: Path, for_days: float) -> bool:
    """Removes a file that nobody has mapped, and that no start has used for so long. Whether it did."""
    try:
        unused = time.time() - path.stat().st_mtime >= for_days * 86_400
        if not unused or _is_locked(path):
            return False
        path.unlink()
    except OSError:
        return False
    return True


def write(path: Path, model: Path, key: str, content: dict[str, Any], tensors: list[HostArray]) -> int | None:
    """Puts a file at `path`, in the place of one that may be there, and returns its size; None: another process is writing it.
    Raises OSError. What others left half-written is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_theirs = False
    for partial in path.parent.glob(f"*{PARTIAL}"):
        if not _is_locked(partial):
            partial.unlink(missing_ok=True)
        elif partial.name.startswith(f"{path.name}."):
            is_theirs = True
    if is_theirs:
        return None
    places, end = _places(tensors)
    directory = {"key": key, "model": str(model), "content": content, "tensors": places}
    text = json.dumps(directory).encode()
    head = HEAD.pack(MAGIC, FORMAT, end, len(text), hashlib.sha256(text).digest())
    size = end + len(text)
    free = shutil.disk_usage(path.parent).free
    if free < size + ROOM_TO_LEAVE:
        raise OSError(errno.ENOSPC, f"{gigabytes(size)} are needed, and {gigabytes(free)} are free")
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=PARTIAL, dir=path.parent)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(descriptor, memoryview(head), 0)
        behind = 0
        for (_, _, begin), tensor in zip(places, tensors, strict=True):
            _write(descriptor, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data, begin)
            behind += tensor.nbytes
            if behind > BEHIND:
                os.fdatasync(descriptor)
                behind = 0
        _write(descriptor, memoryview(text), end)
        os.fsync(descriptor)
        os.rename(name, path)
    except FileNotFoundError:  # removed by one that began before the lock was taken, and writes now
        return None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return size


def open_own(path: Path) -> int:
    """A descriptor of a file that is believed. Raises FileNotFoundError and NotUsable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise NotUsable(why) from error
    why_not = why_not_own(os.fstat(descriptor), os.geteuid())
    if why_not is not None:
        os.close(descriptor)
        raise NotUsable(why_not)
    return descriptor


def _directory(descriptor: int) -> tuple[dict[str, Any], int]:
    """The directory, and the size of the file."""
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, HEAD.size, 0)
    if len(head) < HEAD.size:
        raise NotUsable(f"is cut short: it has {size} bytes")
    magic, number, begin, length, digest = HEAD.unpack(head)
    if magic != MAGIC:
        raise NotUsable("is no file of packed weights")
    if number != FORMAT:
        raise NotUsable(f"is of another format ({number}, not {FORMAT})", is_old=True)
    if size < begin + length:
        raise NotUsable(f"is cut short: {size} bytes of {begin + length}")
    text = os.pread(descriptor, min(length, LONGEST_DIRECTORY), begin)
    if size > begin + length or hashlib.sha256(text).digest() != digest:
        raise NotUsable("is damaged: its directory is not what was written")
    directory = json.loads(text)
    if not isinstance(directory, dict):
        raise NotUsable("is damaged")
    return directory, size


def _tensors(mapped: mmap.mmap, places: list[tuple[str, list[int], int]]) -> Iterator[HostArray]:
    whole = np.frombuffer(mapped, np.uint8)
    for name, shape, begin in places:
        dtype = DTYPES[name]
        end = begin + math.prod(shape) * dtype.itemsize
        if begin % ALIGNMENT or not 0 <= begin <= end <= len(whole):
            raise NotUsable("is damaged")
        yield whole[begin:end].view(dtype).reshape(shape)


def _places(tensors: list[HostArray]) -> tuple[list[tuple[str, list[int], int]], int]:
    """(dtype, shape, first byte) of each, and where the last ends."""
    places, end = [], FIRST
    for tensor in tensors:
        places.append((NAMES[tensor.dtype], list(tensor.shape), end))
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


def _write(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(descriptor, data[:PIECE], at)
        data, at = data[count:], at + count


def _is_locked(path: Path) -> bool:
    """Whether somebody writes the file, or has it mapped. It is opened for writing, which on NFS a lock needs (flock(2))."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # of a system without locks nothing is known
        return False
    finally:
        os.close(descriptor)
    return False
