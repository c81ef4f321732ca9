"""Decode speed of the worker's engine alone, beside `transformers` `generate` in the same run.

    python benchmarks/engine_speed.py MODEL [--batches 1,8,32] [--tokens 128] [--dtype bfloat16] [--no-peer]
                                      [--deterministic]

No router, no gRPC: plans are made here, the result of every step is packed as for the wire. Prompts have 32
tokens; decode speed is batch x (tokens - 1) / (time for all tokens - time for one). Needs PYTHONPATH or an
installed penstock. `--deterministic` adds an engine of that kind, to see what it costs. Prints one line per batch: median of the repetitions, and their range.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.engine import Engine
from penstock.plan import CONTINUE, SAMPLE, START, Plan, Starts
from penstock.preparation import prepare
from penstock.proto import penstock_pb2 as pb
from penstock.worker import keep_memory

PROMPT = 32


def starts(rows: int) -> Starts:
    """Greedy."""
    ones, zeros = np.ones(rows, np.float32), np.zeros(rows, np.float32)
    none, nothing = np.zeros(0, np.uint32), np.zeros(rows, np.uint32)
    return Starts(
        np.zeros(rows, np.uint64), zeros, nothing, ones, ones, zeros, ones, zeros, zeros, nothing, nothing, nothing,
        none, nothing, none, np.zeros(0, np.float32), nothing, nothing, none, zeros, nothing, none,
    )  # fmt: skip


def penstock(
    folder: Path, dtype: torch.dtype, tokens: int, deterministic: bool = False
) -> Callable[[list[list[int]], int], None]:
    """Generates on an engine with 64 slots."""
    keep_memory()
    config = json.loads((folder / "config.json").read_text())
    engine = Engine(config, folder, dtype, torch.device("cpu"), deterministic=deterministic)
    began = time.perf_counter()
    prepared = prepare(
        engine,
        pb.PrepareRequest(
            max_slots=64, max_step_tokens=2048, max_sequence_tokens=PROMPT + tokens + 16, memory_fraction=0.9
        ),
    )
    cost = prepared.cost
    print(
        f"prepare {time.perf_counter() - began:.3f} s; cost model {cost.fixed_ns / 1e6:.3f} ms"
        f" + {cost.per_token_ns / 1e3:.1f} us/token + {cost.per_context_token_ns / 1e3:.3f} us/context token"
    )
    none = np.zeros(0, np.uint32)

    def generate(prompts: list[list[int]], new: int) -> None:
        rows = len(prompts)
        length = len(prompts[0])
        engine.clear()
        each = -(-(length + new) // 16)
        slots = np.arange(rows)
        engine.step(
            Plan(1, none, slots, np.full(rows, START | SAMPLE, np.uint8), np.zeros(rows, np.int64),
                 np.full(rows, length), np.array(prompts, np.uint32).reshape(-1), np.full(rows, each),
                 np.arange(rows * each, dtype=np.uint32), none, starts(rows))
        )  # fmt: skip
        flags, ones, zeros = (
            np.full(rows, CONTINUE | SAMPLE, np.uint8),
            np.ones(rows, np.int64),
            np.zeros(rows, np.int64),
        )
        for at in range(new - 1):
            plan = Plan(
                at + 2, none, slots, flags, np.full(rows, length + at), ones, none, zeros, none, none, None
            )
            engine.step(plan).SerializeToString()

    return generate


def transformers(folder: Path, dtype: torch.dtype) -> Callable[[list[list[int]], int], None]:
    """`generate` with its default cache."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def generate(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )

    return generate


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    peers = {"penstock": penstock(arguments.model, dtype, arguments.tokens)}
    if not arguments.no_peer:
        peers["transformers"] = transformers(arguments.model, dtype)
    if arguments.deterministic:
        peers["deterministic"] = penstock(arguments.model, dtype, arguments.tokens, deterministic=True)
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    rng = random.Random(0)

    def seconds(generate: Callable[[list[list[int]], int], None], batch: int, new: int) -> float:
        prompts = [[rng.randrange(3, vocabulary) for _ in range(PROMPT)] for _ in range(batch)]
        begin = time.perf_counter()
        generate(prompts, new)
        return time.perf_counter() - begin

    for batch in map(int, arguments.batches.split(",")):
        medians = {}
        for name, generate in peers.items():
            seconds(generate, batch, 4)
            rates = []
            for _ in range(arguments.repetitions):
                one = min(seconds(generate, batch, 1) for _ in range(2))
                rates.append(
                    batch * (arguments.tokens - 1) / (seconds(generate, batch, arguments.tokens) - one)
                )
            medians[name] = statistics.median(rates)
            print(
                f"batch {batch:3} {name:13} {medians[name]:9.1f} tok/s  ({min(rates):.1f} .. {max(rates):.1f})"
            )
        for name, median in medians.items():
            if name != "penstock":
                print(f"batch {batch:3} penstock / {name} {medians['penstock'] / median:.2f}")


if __name__ == "__main__":
    main()
