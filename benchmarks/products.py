"""Products of the CPU engine alone, two builds of the kernels in turns in one process, beside what the machine can do.

    python benchmarks/products.py [--before REVISION] [--models m1b,m135,m15] [--formats bf16,int8,int4] [--rows 1,8,32,512]
        [--layers gated,down] [--seconds 2] [--threads 2] [--in-cache] [--isa avx512] [--before-isa avx512]

`after` is this working tree, `before` the revision, HEAD by default; with the same sources in both the ratio says what noise is. Needs an
x86 processor with the instructions of `--isa`, AVX-512 BF16 and VNNI by default, and the C++ compiler. Up to 32 rows weights come from memory, as far as the model is larger than
caches; more rows, and m15's, go through one matrix again and again. A turn is each build once, all weights read, and the product's instruction
from registers, so limits are of the same moment. Printed are medians of the turns, shares of the limit that binds (the longer of reading and
multiplying), and whether both builds gave the same bits: where they did not, as two instruction sets may not, it exits with 1. With one
thread it is processor time that counts, so that instructions can be compared beside other work, if not memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "kernels"))

import build_library  # noqa: E402

# Outputs, inputs, and whether half of the outputs open the others.
LAYERS = {
    "m1b": {"gated": (11264, 2048, True), "down": (2048, 5632, False)},
    "m135": {"gated": (3072, 576, True), "down": (576, 1536, False)},
    "m15": {"gated": (1536, 288, True), "down": (288, 768, False)},
}
MEGABYTES = {"m1b": 600, "m135": 200, "m15": 0}  # of weights that do not fit a cache
IN_CACHE_FROM = 33  # rows


def sources_of(revision: str, folder: Path) -> Path:
    """The kernels' sources of a revision, as files below the folder."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "kernels/csrc/cpu"], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "kernels" / "csrc" / "cpu"


def compile_program(before: Path, after: Path, folder: Path, isas: tuple[str, str]) -> Path:
    """The program of products.cpp with both builds in it, each for its instruction set. Raises subprocess.CalledProcessError."""
    program = str(ROOT / "benchmarks" / "products.cpp")
    flags = [*build_library.FLAGS, "-w"]
    kernels = [[*flags, *build_library.KERNEL_FLAGS, *build_library.X86[isa]] for isa in isas]
    jobs = [
        [*kernels[0], "-DPENSTOCK_ISA=before", f"-I{before}", "-c", program, "-o", f"{folder}/before.o"],
        [*kernels[1], "-DPENSTOCK_ISA=after", f"-I{after}", "-c", program, "-o", f"{folder}/after.o"],
        [*flags, f"-I{after}", "-c", program, "-o", f"{folder}/program.o"],
        [*flags, f"-I{after}", "-c", str(after / "team.cpp"), "-o", f"{folder}/team.o"],
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda job: subprocess.run([os.environ.get("CXX", "c++"), *job], check=True), jobs))
    objects = [f"{folder}/{name}.o" for name in ("before", "after", "program", "team")]
    made = folder / "products"
    subprocess.run([os.environ.get("CXX", "c++"), "-pthread", "-o", str(made), *objects], check=True)
    return made


def measured(
    program: Path, cell: tuple[str, int, int, int, bool], megabytes: int, options: argparse.Namespace
) -> str:
    """A line of the table."""
    weights, rows, outputs, inputs, gated = cell
    arguments = [weights, rows, outputs, inputs, int(gated), megabytes, options.threads, options.seconds]
    arguments.append(options.isa)
    answer = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False)
    if not answer.stdout:
        raise SystemExit(
            f"products: {' '.join(map(str, arguments))} ended with {answer.returncode}: has this processor {options.isa}?"
        )
    found = json.loads(answer.stdout)
    limit = max(found["read"] if megabytes else 0.0, found["multiply"])
    bound = "memory" if megabytes and found["read"] > found["multiply"] else "arithmetic"
    gigabytes, operations = found["bytes"] / 1e9, found["operations"] / 1e9
    options.failed |= not found["same"]
    return (
        f"| {weights} | {rows} | {outputs:,} x {inputs:,}{' gated' if gated else ''} | {'memory' if megabytes else 'cache'}"
        f" | {operations / found['before']:.0f} | {operations / found['after']:.0f} Gop/s, {gigabytes / found['after']:.1f} GB/s"
        f" | {found['before'] / found['after']:.3f} ({found['fastest_before'] / found['fastest_after']:.3f})"
        f" | {limit / found['before']:.2f}, {limit / found['after']:.2f} of {bound}"
        f" | {gigabytes / found['read']:.1f} GB/s, {operations / found['multiply']:.0f} Gop/s"
        f" | {found['turns']}{'' if found['same'] else ', OTHER BITS'} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="HEAD", help="a git revision (default: HEAD)")
    parser.add_argument("--models", default="m1b,m135,m15", help="shapes of which models")
    parser.add_argument("--formats", default="bf16,int8,int4", help="of the weights")
    parser.add_argument("--rows", default="1,8,32,512", help="tokens that are multiplied together")
    parser.add_argument("--layers", default="gated", help="of gated, down")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line; five turns at least")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--in-cache", action="store_true", help="one matrix again and again, whatever the model"
    )
    parser.add_argument("--isa", choices=list(build_library.X86), default="avx512")
    parser.add_argument("--before-isa", choices=list(build_library.X86), help="of `before` (default: --isa)")
    options = parser.parse_args()
    options.failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = sources_of(options.before, folder)
        program = compile_program(
            before, build_library.SOURCES, folder, (options.before_isa or options.isa, options.isa)
        )
        print(
            "| weights | rows | product | from | before, Gop/s | after | times as fast (fastest turns) | share of the limit | limits | turns |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for model in options.models.split(","):
            for layer in options.layers.split(","):
                for weights in options.formats.split(","):
                    for rows in map(int, options.rows.split(",")):
                        in_cache = options.in_cache or rows >= IN_CACHE_FROM
                        megabytes = 0 if in_cache else MEGABYTES[model]
                        print(
                            measured(program, (weights, rows, *LAYERS[model][layer]), megabytes, options),
                            flush=True,
                        )
    return int(options.failed)


if __name__ == "__main__":
    sys.exit(main())
