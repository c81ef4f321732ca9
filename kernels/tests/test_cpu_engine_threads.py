"""How many threads a program may have, and what is reserved for them."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import CpuProgram, NoCpuEngine
from penstock_kernels.program import Kind, Layout, Operation, Program
from test_cpu_engine import LONGEST, Bench, close, random
from test_cpu_engine import attending as attends

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
    said = r"refused: thread \d+ of 500 cannot be made \(.*unavailable\): .*ulimit -u.*--worker-threads"
    assert re.match(said, ran.stdout), ran.stdout


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


@pytest.mark.parametrize("threads", [16, 64])
def test_what_is_reserved_for_long_contexts_grows_with_threads_alone(threads: int) -> None:
    """And not with threads times what all of them could attend to: of a million tokens some 40 MB a thread."""
    program = attending(28, 4, 128, 0, threads)
    short, long = (program.workspace_bytes(512, 64, longest) for longest in (4096, 1_010_000))
    assert long - short < threads * 60 << 20


@pytest.mark.parametrize("name", SETS)
def test_rows_that_find_no_room_for_parts_are_computed_whole_and_get_the_same(name: str) -> None:
    """Seven rows of three splits each for two threads and one key head: there is room for the parts of four."""
    rows, count, turns = 7, 85, 7
    table = random(640, 6 * 48)

    def outputs(threads: int) -> list[Any]:
        bench, attended = attends(name, table, 4, 1, 48)
        bench.threads = threads
        bench.caches[0] = bench.caches[0].repeat(rows, 1)
        found = []
        for first in [*range(0, turns * count, count), *range(turns * count, turns * count + 3)]:
            fed = count if first < turns * count else 1
            ids = [(3 * (first + at) + 50 * row) % 640 for row in range(rows) for at in range(fed)]
            made = bench.run(ids, [fed] * rows, [first] * rows)
            found.append(made.rows(attended, rows * fed).clone())
        return found

    assert LONGEST // 256 + 2 < 7
    for alone, together in zip(outputs(1), outputs(2), strict=True):
        assert alone.isfinite().all() and torch.equal(alone, together)
