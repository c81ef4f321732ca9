"""Lets the CPU engine's tests run on another processor: a plugin of pytest, which puts a process in the library's place.

`PYTHONPATH=kernels/tests SERVED_LIBRARY="qemu-aarch64 -cpu max PROGRAM" pytest -p other_processor kernels/tests`, with the program of
`test_other_processors.py`, served_library.cpp with the library's objects. Python, torch and what they compute stay on this processor.
What a call of the library points to is copied there, and back behind it; `address` of cpu_engine.py tells how long it is.
"""

import atexit
import ctypes
import os
import shlex
import struct
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock_kernels import cpu_engine
from penstock_kernels.draws import DRAW_ROW

COMMAND = "SERVED_LIBRARY"
# Of these what was copied there stays, until the program ends.
MADE_OF, HAS = ("create",), ("set_cache", "set_state")


def spanned(array: Any) -> int:
    """Bytes from the first number to the end of the last one."""
    if isinstance(array, np.ndarray):
        one, steps = array.itemsize, list(array.strides)
    else:
        one = array.element_size()
        steps = [step * one for step in array.stride()]
    if 0 in array.shape:
        return 0
    return int(sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) + one)


def whole_of(array: Any) -> tuple[int, int]:
    """Address and bytes of the memory that it is a part of."""
    if not isinstance(array, np.ndarray):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.ctypes.data, array.nbytes


def at(address: int, size: int) -> Any:
    """Memory of this process."""
    return (ctypes.c_char * size).from_address(address)


class ServedLibrary:
    """What `cpu_engine.library()` gives, in another process."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.RLock()
        self._named = (
            threading.local()
        )  # arrays whose addresses this thread has asked for since its last call
        self._made_of: dict[int, list[int]] = {}  # by program: what to drop with it
        self._kept: dict[
            int, dict[int, tuple[int, int]]
        ] = {}  # by program and address here: address there, bytes

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        short = name.removeprefix("penstock_cpu_")
        if short == name:
            raise AttributeError(name)
        return lambda *arguments: self._call(short, arguments)

    def address(self, array: Any) -> int:
        """Instead of `cpu_engine.address`."""
        here = int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())
        if not hasattr(self._named, "arrays"):
            self._named.arrays = []
        self._named.arrays.append((here, spanned(array), array))
        return here

    def memory_at(self, there: int, size: int) -> memoryview:
        """Instead of `cpu_engine.memory_at`."""
        with self._lock:
            return memoryview(bytearray(self._get(there, size)))

    def _ask(self, name: str, *numbers: int, data: Any = b"") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("24s12q", name.encode(), *numbers, *[0] * (12 - len(numbers))))
        self._process.stdin.write(data)

    def _answer(self, size: int = 8) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.flush()
        found = self._process.stdout.read(size)
        assert len(found) == size, f"the other process ended: {self._process.wait()}"
        return found

    def _number(self, name: str, *numbers: int, data: Any = b"") -> int:
        self._ask(name, *numbers, data=data)
        return int(struct.unpack("q", self._answer())[0])

    def _put(self, data: Any) -> int:
        return self._number("put", memoryview(data).nbytes, data=data)

    def _get(self, there: int, size: int) -> bytes:
        self._ask("get", there, size)
        return self._answer(size)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return None  # a program that outlived it
        with self._lock:
            arrays, self._named.arrays = getattr(self._named, "arrays", []), []
            # Of arrays that begin at one place the longest.
            spans = {here: size for here, size, _ in sorted(arrays, key=lambda one: one[1])}
            if name in HAS:
                there = {here: self._keep(arguments[0], here, array) for here, _, array in arrays}
            else:
                there = {here: self._put(at(here, size)) for here, size in spans.items()}
            copied = [] if name in HAS else list(there.values())
            if name == "draw":
                self._put_counts(arguments, spans, there, copied)
            numbers, results = [], []
            for argument in arguments:
                given = argument
                if isinstance(argument, bytes):
                    given = self._put(argument + b"\0")
                    copied.append(given)
                elif isinstance(argument, ctypes.Array | ctypes.Structure | ctypes.c_int64):
                    given = self._put(self._translated(argument, there))
                    copied.append(given)
                    if isinstance(argument, ctypes.c_int64):
                        results.append((argument, given))
                numbers.append(there.get(given, given) or 0)
            kept = self._kept.get(arguments[0], {}) if name in ("read", "step", "move") else {}
            for here, (place, size) in kept.items():
                self._ask("set", place, size, data=at(here, size))
            result = self._number(name, *numbers)
            for here, (place, size) in kept.items():
                ctypes.memmove(here, self._get(place, size), size)
            for number, place in results:
                number.value = struct.unpack("q", self._get(place, 8))[0]
            if name in MADE_OF:
                self._made_of[result], self._kept[result] = copied, {}
                return result
            if name not in HAS:
                for here, size in spans.items():
                    ctypes.memmove(here, self._get(there[here], size), size)
            if name == "destroy":
                copied += self._made_of.pop(numbers[0])
                copied += [place for place, _ in self._kept.pop(numbers[0]).values()]
            for place in copied:
                self._ask("drop", place)
            if name in ("error", "instruction_sets"):
                return self._get(result, self._number("strlen", result))
            return result

    def _keep(self, program: int, here: int, array: Any) -> int:
        """The whole memory of an array, once, since others may share it."""
        begin, size = whole_of(array)
        kept = self._kept[program]
        if begin not in kept:
            kept[begin] = self._put(at(begin, size)), size
        return kept[begin][0] + here - begin

    def _put_counts(
        self, arguments: tuple[Any, ...], spans: dict[int, int], there: dict[int, int], copied: list[int]
    ) -> None:
        """What rows of a draw point to, and the rows that point there."""
        _, _, _, columns, draws = arguments
        rows = np.frombuffer(at(draws.rows, spans[draws.rows]), DRAW_ROW).copy()
        for field in ("prompt_counts", "output_counts"):
            for row in np.flatnonzero(rows[field]):
                rows[field][row] = self._put(at(int(rows[field][row]), columns * 4))
                copied.append(int(rows[field][row]))
        self._ask("set", there[draws.rows], rows.nbytes, data=rows.tobytes())
        del spans[draws.rows]  # stays as it is here

    def _translated(self, data: Any, there: dict[int, int]) -> bytes:
        """A structure, or several, whose pointers are to the other process' memory."""
        made = type(data).from_buffer_copy(data)
        for one in made if isinstance(made, ctypes.Array) else [made]:
            for name, type_ in getattr(one, "_fields_", ()):
                here = getattr(one, name)
                if type_ is ctypes.c_void_p and here is not None:
                    setattr(one, name, there[here])
        return bytes(made)


def pytest_configure() -> None:
    """Called by pytest."""
    served: Any = ServedLibrary(shlex.split(os.environ[COMMAND]))
    cpu_engine.library = lambda: served  # type: ignore[assignment]
    cpu_engine.address, cpu_engine.memory_at = served.address, served.memory_at
    atexit.register(served.close)
