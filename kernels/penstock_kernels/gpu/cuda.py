"""Kernels in CUDA C++ (the files .cu beside this): compiled by NVRTC, which comes with torch, when they are first used, and launched through the driver.

For what Triton cannot say: which lane has which number of a product. A kernel is known by its file and its constants.
"""

import ctypes
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).parent
USUAL_SHARED = 40 << 10  # what a block may have without asking, less what a kernel has of its own
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_lock = threading.Lock()


class CudaError(RuntimeError):
    """What NVRTC or the driver says."""


def compiled(file: str, constants: tuple[tuple[str, int], ...], architecture: int) -> bytes:
    """Machine code of a source for GPUs of an architecture (90: H100). Raises CudaError."""
    library = nvrtc()
    source = (SOURCES / file).read_bytes()
    program = ctypes.c_void_p()
    _ended(
        library.nvrtcCreateProgram(ctypes.byref(program), source, file.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        options = [
            f"--gpu-architecture=sm_{architecture}",
            "--std=c++17",
            *(f"-D{name}={value}" for name, value in constants),
        ]
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            said = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, said)
            raise CudaError(f"{file} {dict(constants)}: {said.value.decode(errors='replace')[:2000]}")
        size = ctypes.c_size_t()
        _ended(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        made = ctypes.create_string_buffer(size.value)
        _ended(library.nvrtcGetCUBIN(program, made), "nvrtcGetCUBIN")
        return made.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


class Kernel:
    """A function that a device has loaded."""

    def __init__(
        self, file: str, name: str, constants: tuple[tuple[str, int], ...], device: torch.device
    ) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        code = compiled(file, constants, 10 * major + minor)
        self._driver = _driver()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # which makes the device's context this thread's
            module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
            _ended(self._driver.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
            found = self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode())
            _ended(found, "cuModuleGetFunction")
        self._shared = USUAL_SHARED

    def launch(
        self, blocks: tuple[int, int], threads: int, arguments: Iterable[Any], shared: int = 0
    ) -> None:
        """On the current stream. Arguments: tensors, None (no pointer) and ints of 32 bits. `shared`: bytes of memory that a block asks for."""
        if shared > self._shared:
            of = self._driver.cuFuncSetAttribute(self._function, MOST_SHARED, shared)
            _ended(of, f"cuFuncSetAttribute ({shared} bytes of shared memory)")
            self._shared = shared
        values: list[Any] = [
            ctypes.c_int(one)
            if isinstance(one, int)
            else ctypes.c_void_p(None if one is None else one.data_ptr())
            for one in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launched = self._driver.cuLaunchKernel(
            self._function, *blocks, 1, threads, 1, 1, shared, stream, places, None
        )
        _ended(launched, "cuLaunchKernel")


_kernels: dict[tuple[Any, ...], Kernel] = {}


def kernel(file: str, name: str, device: torch.device, constants: tuple[tuple[str, int], ...]) -> Kernel:
    """The same one for the same constants. Raises CudaError."""
    key = (file, name, device, constants)
    found = _kernels.get(key)
    if found is None:
        with _lock:
            found = _kernels.get(key)
            if found is None:
                found = _kernels[key] = Kernel(file, name, constants, device)
    return found


def _ended(result: int, what: str) -> None:
    if result:
        raise CudaError(f"{what} ends with {result}")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(str(error)) from error


@cache
def nvrtc() -> ctypes.CDLL:
    """The compiler, of torch's own version of CUDA: beside torch, or where the system has it. Raises CudaError."""
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    beside = Path(torch.__file__).resolve().parents[1] / "nvidia"
    errors = []
    for path in (*sorted(map(str, beside.glob(f"*/lib/{name}"))), name):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            errors.append(str(error))
    raise CudaError("; ".join(errors))
