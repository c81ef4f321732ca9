"""CUDA kernels on a processor: `emulated.cpp` with a kernel's file in it, in place of NVRTC and the driver."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from penstock_kernels.gpu import cuda

EMULATED = Path(__file__).with_name("emulated.cpp")
COMPILER = shutil.which("g++")
_folder = tempfile.TemporaryDirectory(prefix="penstock-emulated-")


class Kernel:
    """As `cuda.Kernel`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def launch(
        self, blocks: tuple[int, int], threads: int, arguments: Iterable[Any], shared: int = 0
    ) -> None:
        """Runs to its end. Memory that blocks share is as large as a GPU's, whatever `shared` says."""
        given = [
            ctypes.c_int(one)
            if isinstance(one, int)
            else ctypes.c_void_p(None if one is None else one.data_ptr())
            for one in arguments
        ]
        self._library.run(*map(ctypes.c_int, (*blocks, threads)), *given)


@cache
def kernel(file: str, name: str, device: torch.device, constants: tuple[tuple[str, int], ...]) -> Kernel:
    """As `cuda.kernel`."""
    del name, device
    folder = Path(_folder.name)
    label = "-".join(str(value) for _, value in constants)
    # What a block shares is a variable like another, and there is one block at a time.
    source = (
        (cuda.SOURCES / file)
        .read_text()
        .replace("extern __shared__", "extern")
        .replace("__shared__", "static")
    )
    (folder / f"{label}-{file}").write_text(source)
    library = folder / f"{label}.so"
    command = [
        str(COMPILER),
        "-std=c++20",
        "-O1",
        "-w",
        "-fPIC",
        "-shared",
        f'-DKERNEL="{folder}/{label}-{file}"',
    ]
    subprocess.run(
        [*command, *(f"-D{key}={value}" for key, value in constants), str(EMULATED), "-o", str(library)],
        check=True,
    )
    return Kernel(ctypes.CDLL(str(library)))
