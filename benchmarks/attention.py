"""How fast the CPU engine's attention reads keys and values of long contexts, in each format of the cache: one step of decodes, nothing else.

    python benchmarks/attention.py [--shapes m135,m1b] [--rows 1,8] [--context 8192] [--formats bf16,int8,fp8_e4m3] [--seconds 1]

Layers are as many as no cache of the processor holds (256 MB of pages), their pages full of made-up numbers. Prints GB/s of the pages' bytes: the median
step's and the fastest one's. What memory gives is `../shared/peers/limits.c`'s to say, in the same minute. Needs an installed
penstock or PYTHONPATH.
"""

import argparse
import os
import statistics
import time

import numpy as np
import torch

from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import CpuProgram
from penstock_kernels.program import (
    PAGE_TOKENS,
    TILE_OUTPUTS,
    CacheFormat,
    Kind,
    Layout,
    Operation,
    Program,
    rounded_up,
)

# Heads of queries, of keys, and their size: of the models that ../shared/peers/make_models.py makes.
SHAPES = {"m15": (6, 6, 48), "m135": (9, 3, 64), "m1b": (32, 4, 64)}
HELD = 256e6


def pages_of(format: CacheFormat, tokens: int, kv_heads: int, size: int) -> torch.Tensor:
    """A layer's: small numbers, none of which is none."""
    dim = 2 * rounded_up(size, 32) if size % 32 == 0 else rounded_up(size, 32) + rounded_up(size, 16)
    if format == CacheFormat.BF16:
        return torch.randn(tokens, kv_heads * dim, dtype=torch.float32).bfloat16()
    codes = torch.randint(0, 256, (tokens // PAGE_TOKENS, kv_heads, PAGE_TOKENS * dim), dtype=torch.uint8)
    if format == CacheFormat.INT8:
        factors = torch.full((*codes.shape[:2], 2 * PAGE_TOKENS), 0.01).view(torch.uint8)
        codes = torch.cat((codes, factors), 2)
    else:
        codes &= 0xBB if format == CacheFormat.FP8_E5M2 else 0xB7
    return codes.contiguous().view(torch.bfloat16).reshape(tokens, -1)


def measure(
    shape: tuple[int, int, int], rows: int, context: int, format: CacheFormat, threads: int, seconds: float
) -> tuple[float, float]:
    """GB/s of the median step and of the fastest."""
    heads, kv_heads, size = shape
    width = (heads + 2 * kv_heads) * size
    program = Program()
    x = program.buffer("x", Layout.F32, width)
    table = torch.randn(64, rounded_up(width, TILE_OUTPUTS * 2)).bfloat16()
    program.body.append(Operation(Kind.EMBED, -1, x, columns=width, weight=table))
    queries = program.buffer("queries", Layout.QUERIES, heads * size)
    attended = program.buffer("attended", Layout.BF16, heads * size)
    tokens = rows * context
    first = pages_of(format, tokens, kv_heads, size)
    layers = max(2, round(HELD / first.nbytes))
    for layer in range(layers):
        at = {"layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        program.body.append(Operation(Kind.WRITE_KV, x, queries, **at))
        program.body.append(Operation(Kind.ATTENTION, queries, attended, **at, scale=size**-0.5))
    made = CpuProgram(program, cpu_engine.instruction_set(), threads)
    made.reserve(rows, rows, context)
    held = [first, *(first.clone() for _ in range(layers - 1))]
    for layer, pages in enumerate(held):
        made.set_cache(layer, pages, 0, format)
    numbers = np.arange(tokens // PAGE_TOKENS, dtype=np.int64).reshape(1, rows, -1).copy()
    columns = (np.arange(rows), np.full(rows, context - 1), np.ones(rows, np.int64))
    slots_R, first_R, counts_R = (column.astype(np.int64) for column in columns)
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < 4 or time.perf_counter() < until:
        begin = time.perf_counter()
        made.step(np.arange(rows, dtype=np.int64), slots_R, first_R, counts_R, numbers)
        took.append(time.perf_counter() - begin)
    size_held = sum(pages.nbytes for pages in held) / 1e9
    return size_held / statistics.median(took[1:]), size_held / min(took[1:])


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="m15,m135,m1b")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--formats", default="bf16,int8,fp8_e4m3,fp8_e5m2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    for shape in options.shapes.split(","):
        for rows in map(int, options.rows.split(",")):
            told = []
            for name in options.formats.split(","):
                format = CacheFormat[name.upper()]
                median, best = measure(
                    SHAPES[shape], rows, options.context, format, options.threads, options.seconds
                )
                told.append(f"{name} {median:.1f} ({best:.1f})")
            print(f"{shape:5} {rows} x {options.context}: {', '.join(told)} GB/s", flush=True)


if __name__ == "__main__":
    main()
