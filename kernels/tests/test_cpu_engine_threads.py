"""How many threads a program may have, and what is reserved for them."""

import os
import subprocess
import sys
from typing import Any

import pytest

from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import CpuProgram, NoCpuEngine
from penstock_kernels.program import Kind, Layout, Operation, Program
from test_cpu_engine import Bench, close, random

try:
    SETS = cpu_engine.instruction_sets()
except NoCpuEngine as error:
    pytest.skip(str(error), allow_module_level=True)

MOST_THREADS = 1024  # of the flag --worker-threads


@pytest.mark.tail
def test_as_many_threads_as_the_flag_takes_compute_together() -> None:
    table = random(64, 32).bfloat16().float()
    bench = Bench("generic", table, MOST_THREADS)
    rounded = bench.rounded()
    ids = list(range(8))
    close(bench.run(ids).rows(rounded, 8), table[:8])


NO_THREADS = """
import resource
from penstock_kernels.cpu_engine import CpuProgram, library
from penstock_kernels.program import Program
library()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
try:
    CpuProgram(Program(), "generic", 500)
except ValueError as error:
    print("refused:", error)
"""


def test_threads_that_the_system_does_not_give_are_an_error() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", NO_THREADS], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "unavailable" in ran.stdout, ran.stdout


def attending(heads: int, kv_heads: int, key_dim: int, value_dim: int, threads: int) -> CpuProgram:
    program = Program()
    queries = program.buffer("queries", Layout.QUERIES, heads * key_dim)
    attended = program.buffer("attended", Layout.BF16, heads * (value_dim or key_dim))
    sizes: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": key_dim,
        "value_dim": value_dim,
    }
    program.body.append(Operation(Kind.ATTENTION, queries, attended, scale=0.1, **sizes))
    return CpuProgram(program, "generic", threads)


@pytest.mark.parametrize(("threads", "sizes"), [(1, (64, 8, 128, 0)), (16, (128, 1, 576, 512))])
def test_nothing_is_reserved_for_contexts_that_are_not_divided(
    threads: int, sizes: tuple[int, int, int, int]
) -> None:
    """By one thread, and where a token's queries of one key head are more than a tile."""
    program = attending(*sizes, threads)
    short, long = (program.workspace_bytes(512, 64, longest) for longest in (4096, 131072))
    assert long - short < 16 << 20
