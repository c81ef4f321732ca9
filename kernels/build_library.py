"""Builds the CPU engine, csrc/cpu, into penstock_kernels/ with the C++ compiler at hand: `python kernels/build_library.py`.

Called by `make install` and, through `kernels/build_backend.py`, by pip. One object for each instruction set of the
compiler's target, of which those that the compiler does not know are left out; the others are compiled for any processor of
the architecture. Without a compiler it says so in one line and succeeds: the server then computes with torch. The variable
CXX names a compiler.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc" / "cpu"
LIBRARY = HERE / "penstock_kernels" / "libpenstock_cpu.so"

FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
# Memory is read as what it holds, numbers of several types; and no operation traps.
KERNEL_FLAGS = [
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
]

AVX2 = ["-mavx2", "-mfma"]
AVX512BW = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
AVX512BW += ["-mprefer-vector-width=512", "-DPENSTOCK_AVX512"]
AVX512VNNI = [*AVX512BW, "-mavx512vnni"]
AVX512 = [*AVX512VNNI, "-mavx512bf16"]
# Before registers are given out, GCC moves loads so far ahead of the products that there are not registers enough.
NEON = ["-fno-schedule-insns", "-DPENSTOCK_NEON"]
X86 = {
    "avx2": AVX2,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx512bw": AVX512BW,
    "avx512vnni": AVX512VNNI,
    "avx512": AVX512,
    "amx": [*AVX512, "-mamx-tile", "-mamx-bf16", "-DPENSTOCK_AMX"],
}
ARM = {
    "neon": [*NEON, "-march=armv8.2-a+dotprod"],
    "i8mm": [*NEON, "-march=armv8.2-a+dotprod+bf16+i8mm", "-DPENSTOCK_I8MM"],
}
# By the first part of what the compiler calls its target.
INSTRUCTION_SETS = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}


def main() -> int:
    """Builds when something is newer than the library."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or ""]
    if not compiler[0]:
        print(
            "penstock: no C++ compiler: the CPU engine is not built, and CPUs compute with torch",
            file=sys.stderr,
        )
        return 0
    sources = [*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"), Path(__file__)]
    if LIBRARY.exists() and LIBRARY.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            build(compiler, Path(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            print(getattr(error, "stderr", None) or error, file=sys.stderr)
            print(
                f"penstock: {compiler[0]} cannot build the CPU engine, and CPUs compute with torch",
                file=sys.stderr,
            )
            return 1
    return 0


def build(compiler: list[str], folder: Path) -> None:
    """Compiles and links. Raises subprocess.CalledProcessError."""
    objects = compile_all(compiler, folder)
    made = folder / LIBRARY.name
    run([*compiler, "-shared", "-pthread", "-Wl,-z,defs", "-o", str(made), *objects])
    # Beside its place and then into it: a server that runs keeps the one that it has.
    beside = LIBRARY.with_suffix(f".{os.getpid()}")
    shutil.copyfile(made, beside)
    beside.replace(LIBRARY)


def compile_all(compiler: list[str], folder: Path) -> list[str]:
    """Compiles into the folder. Returns the objects. Raises subprocess.CalledProcessError."""
    target = run([*compiler, "-dumpmachine"]).split("-")[0]
    sets = {"generic": [], **INSTRUCTION_SETS.get(target, {})}
    sets = {name: flags for name, flags in sets.items() if knows(compiler, flags, folder)}
    defined = [f"-DPENSTOCK_HAS_{name.upper()}" for name in sets]
    jobs = [
        ([*FLAGS, *KERNEL_FLAGS, *flags, f"-DPENSTOCK_ISA={name}"], "kernels.cpp", f"kernels_{name}.o")
        for name, flags in sets.items()
    ]
    jobs += [
        ([*FLAGS, *defined], f"{name}.cpp", f"{name}.o")
        for name in (
            "api",
            "attending",
            "check",
            "divided",
            "entries",
            "inbox",
            "isa",
            "operations",
            "plan",
            "program",
            "ranks",
            "residuals",
            "run",
            "sampling",
            "slot_sampling",
            "step",
            "team",
        )
    ]

    def compile_one(job: tuple[list[str], str, str]) -> None:
        flags, source, target = job
        run([*compiler, *flags, "-c", str(SOURCES / source), "-o", str(folder / target)])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, jobs))
    return [str(folder / target) for _, _, target in jobs]


def knows(compiler: list[str], flags: list[str], folder: Path) -> bool:
    """Whether the compiler takes these flags."""
    empty = folder / "empty.cpp"
    empty.touch()
    tried = subprocess.run(
        [*compiler, *FLAGS, *flags, "-c", str(empty), "-o", str(folder / "empty.o")],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def run(command: list[str]) -> str:
    """What the command said. Raises subprocess.CalledProcessError with it."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
