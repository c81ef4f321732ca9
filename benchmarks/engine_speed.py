"""Decode speed of the worker's engine alone, beside `transformers` `generate` in the same run.

    python benchmarks/engine_speed.py MODEL [--batches 1,8,32] [--tokens 128] [--prompt 32] [--dtype bfloat16]
        [--peers penstock,torch,fallback,deterministic,transformers] [--prefill 512]
        [--processor-time] [--quantize int8]

`penstock` is the model's recipe, on the CPU engine where that serves it, `torch` the same without it, `fallback` with the model run by transformers' classes.

No router, no gRPC: plans are made here, the result of every step is packed as for the wire. Decode speed is batch x (tokens - 1) / (time for all tokens - time for one). Needs PYTHONPATH or an
installed penstock. Prints one line per batch: median of the repetitions, and their range.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.engine.engine import Engine
from penstock.engine.plan import CONTINUE, NO_SNAPSHOT, SAMPLE, START, Plan, greedy_starts
from penstock.engine.preparation import prepare
from penstock.proto import penstock_pb2 as pb
from penstock.worker import keep_memory
from penstock_kernels import cpu_engine

Generate = Callable[[list[list[int]], int], None]
Clock = Callable[[], float]


def prepared_engine(folder: Path, dtype: torch.dtype, longest: int, **options: Any) -> Engine:
    """An engine with 64 slots for sequences of up to so many tokens."""
    keep_memory()
    config = json.loads((folder / "config.json").read_text())
    engine = Engine(config, folder, dtype, torch.device("cpu"), **options)
    began = time.perf_counter()
    prepared = prepare(
        engine,
        pb.PrepareRequest(
            max_slots=64, max_step_tokens=8192, max_sequence_tokens=longest + 16, memory_fraction=0.9
        ),
    )
    cost = prepared.cost
    print(
        f"prepare {time.perf_counter() - began:.3f} s; cost model {cost.fixed_ns / 1e6:.3f} ms"
        f" + {cost.per_token_ns / 1e3:.1f} us/token + {cost.per_context_token_ns / 1e3:.3f} us/context token"
    )
    return engine


def penstock(
    folder: Path,
    dtype: torch.dtype,
    longest: int,
    adapters_of: Callable[[int], list[int]] | None = None,
    **options: Any,
) -> Generate:
    """Generates on such an engine. `adapters_of`: of so many rows their adapters, counted from 1."""
    threads = torch.get_num_threads()
    engine = prepared_engine(folder, dtype, longest, **options)
    # As a worker does: torch only samples then.
    threads = 1 if engine.native is not None else threads
    none = np.zeros(0, np.uint32)
    tables = engine.tables(longest + 16).count

    def generate(prompts: list[list[int]], new: int) -> None:
        torch.set_num_threads(threads)
        rows = len(prompts)
        length = len(prompts[0])
        engine.clear()
        each = -(-(length + new) // 16)
        slots = np.arange(rows)
        starts = greedy_starts(rows)
        if engine.states is not None:
            starts = replace(starts, state_sources=np.full(rows, NO_SNAPSHOT, np.uint32))
        if adapters_of is not None:
            starts = replace(starts, adapters=np.array(adapters_of(rows), np.uint32))
        engine.step(
            Plan(1, none, slots, np.full(rows, START | SAMPLE, np.uint8), np.zeros(rows, np.int64),
                 np.full(rows, length), np.array(prompts, np.uint32).reshape(-1), np.full(rows, each),
                 np.arange(rows * each * tables, dtype=np.uint32), none, starts)
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


def transformers(folder: Path, dtype: torch.dtype) -> Generate:
    """`generate` with its default cache."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    reads_images = "vision_config" in json.loads((folder / "config.json").read_text())
    kind: Any = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
    return by_transformers(kind.from_pretrained(folder, dtype=dtype))


def by_transformers(model: Any) -> Generate:
    """`generate` of a model that is loaded."""

    def generate(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )

    return generate


def peer(name: str, folder: Path, dtype: torch.dtype, longest: int, **options: Any) -> Generate:
    """One of those that are measured, for sequences of up to so many tokens. `options`: of the engine that is `penstock`."""
    if name == "transformers":
        return transformers(folder, dtype)
    if name == "deterministic":
        return penstock(folder, dtype, longest, deterministic=True)
    if name == "torch":
        os.environ[cpu_engine.VARIABLE] = "none"
        made = penstock(folder, dtype, longest)
        del os.environ[cpu_engine.VARIABLE]
        return made
    if name == "penstock":
        return penstock(folder, dtype, longest, **options)
    return penstock(folder, dtype, longest, implementation={"fallback": "transformers"}.get(name, name))


def measure_prefill(
    generate: Generate, tokens: int, vocabulary: int, repetitions: int, clock: Clock
) -> list[float]:
    """Tokens of one prompt per second until its first token, of each repetition."""
    rng = random.Random(0)
    rates = []
    for _ in range(repetitions + 1):
        prompt = [rng.randrange(3, vocabulary) for _ in range(tokens)]
        begin = clock()
        generate([prompt], 1)
        rates.append(tokens / (clock() - begin))
    return rates[1:]


def measure(
    generate: Generate, batch: int, prompt: int, tokens: int, vocabulary: int, repetitions: int, clock: Clock
) -> list[float]:
    """Tokens per second while decoding, of each repetition."""
    rng = random.Random(0)

    def seconds(new: int) -> float:
        prompts = [[rng.randrange(3, vocabulary) for _ in range(prompt)] for _ in range(batch)]
        begin = clock()
        generate(prompts, new)
        return clock() - begin

    seconds(4)
    rates = []
    for _ in range(repetitions):
        one = min(seconds(1) for _ in range(2))
        rates.append(batch * (tokens - 1) / (seconds(tokens) - one))
    return rates


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=32, help="tokens before those that are generated")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prompt to time by itself")
    parser.add_argument("--quantize", default="", help="int8 or int4, of the peer penstock")
    parser.add_argument("--quantize-head", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of the peer penstock")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peers", default="penstock,transformers")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of one thread, on a machine that does other things as well",
    )
    arguments = parser.parse_args()
    clock = time.perf_counter
    if arguments.processor_time:
        clock = time.process_time
        os.environ["OMP_NUM_THREADS"] = "1"  # as the CPU engine is told of it
        torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    longest = max(arguments.prompt + arguments.tokens, arguments.prefill)
    options = {
        "quantize": arguments.quantize,
        "quantize_head": arguments.quantize_head,
        "cache_dtype": arguments.kv_cache_dtype,
    }
    peers = {
        name: peer(name, arguments.model, dtype, longest, **options) for name in arguments.peers.split(",")
    }
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    for name, generate in peers.items() if arguments.prefill else ():
        rates = measure_prefill(generate, arguments.prefill, vocabulary, 3 * arguments.repetitions, clock)
        median = statistics.median(rates)
        print(
            f"prefill {arguments.prefill} {name:13} {median:9.1f} tok/s  ({min(rates):.1f} .. {max(rates):.1f})"
        )
    for batch in map(int, arguments.batches.split(",")):
        medians = {}
        for name, generate in peers.items():
            rates = measure(
                generate, batch, arguments.prompt, arguments.tokens, vocabulary, arguments.repetitions, clock
            )
            medians[name] = statistics.median(rates)
            print(
                f"batch {batch:3} {name:13} {medians[name]:9.1f} tok/s  ({min(rates):.1f} .. {max(rates):.1f})"
            )
        first, *others = medians
        for other in others:
            print(f"batch {batch:3} {first} is {medians[first] / medians[other]:.2f} times {other}")


if __name__ == "__main__":
    main()
