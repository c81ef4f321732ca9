"""Speed of encoder-decoders on the CPU engine beside torch: reading an input, and decoding behind it.

    python benchmarks/encoder_decoders.py [--only NAME ...] [--batches 1,8] [--read 500] [--tokens 32] [--rounds 5]

Models have the shapes of published ones, random weights in bf16, and are made on the spot; as in `engine_speed.py` there is no router and no
gRPC. Prints tokens per second: of one input that is read, to the first token, and of so many sequences that decode behind inputs of
that length; median of rounds in turn, their range, and the ratio.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine_speed import prepared_engine
from penstock.engine.engine import Engine
from penstock.engine.plan import CONTINUE, SAMPLE, START, Plan, greedy_starts
from penstock_kernels import cpu_engine

VOCABULARY = 32000
T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
BART_BASE = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "max_position_embeddings": 1024,
}
# Class in transformers, and what its configuration says.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Flan-T5 base": ("T5", {**T5_BASE, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "BART base": ("Bart", BART_BASE),
}


def make(folder: Path, name: str) -> Path:
    """Its checkpoint."""
    kind, choices = SHAPES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, decoder_start_token_id=0, **choices
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).bfloat16()
    model.save_pretrained(folder)
    return folder


def speeds(engine: Engine, rows: int, read: int, tokens: int) -> tuple[float, float]:
    """Tokens per second: read, and decoded."""
    engine.clear()
    none = np.zeros(0, np.uint32)
    begins = -(-read // 16) * 16
    pages = -(-(begins + tokens + 1) // 16)
    slots, ones = np.arange(rows), np.ones(rows, np.int64)
    starts = replace(greedy_starts(rows), encoder_counts=np.full(rows, read, np.uint32))
    ids = np.random.default_rng(0).integers(5, VOCABULARY, rows * (begins + 1)).astype(np.uint32)
    began = time.perf_counter()
    engine.step(
        Plan(1, none, slots, np.full(rows, START | SAMPLE, np.uint8), np.zeros(rows, np.int64),
             np.full(rows, begins + 1), ids, np.full(rows, pages), np.arange(rows * pages, dtype=np.uint32),
             none, starts)
    )  # fmt: skip
    first = time.perf_counter()
    flags, zeros = np.full(rows, CONTINUE | SAMPLE, np.uint8), np.zeros(rows, np.int64)
    for at in range(1, tokens + 1):
        position = np.full(rows, begins + at)
        engine.step(Plan(at + 1, none, slots, flags, position, ones, none, zeros, none, none, None))
    return rows * read / (first - began), rows * tokens / (time.perf_counter() - first)


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--read", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    threads = torch.get_num_threads()
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder), name)
            engines = {}
            for runs in ("engine", "torch"):
                os.environ[cpu_engine.VARIABLE] = "none"
                if runs == "engine":
                    del os.environ[cpu_engine.VARIABLE]
                engines[runs] = prepared_engine(made, torch.bfloat16, 1000)
        for batch in map(int, arguments.batches.split(",")):
            rates: dict[str, list[tuple[float, float]]] = {runs: [] for runs in engines}
            for _ in range(arguments.rounds):
                for runs, engine in engines.items():  # in turn: what else the machine does meets both
                    torch.set_num_threads(1 if runs == "engine" else threads)
                    rates[runs].append(speeds(engine, batch, arguments.read, arguments.tokens))
            for number, what in enumerate(("reads", "decodes")):
                said, medians = [], []
                for runs, all_rates in rates.items():
                    some = sorted(rate[number] for rate in all_rates)
                    medians.append(statistics.median(some))
                    said.append(f"{runs} {medians[-1]:8.1f} tok/s ({some[0]:.1f} .. {some[-1]:.1f})")
                ratio = medians[0] / medians[1]
                print(
                    f"{name:14} {what:7} {batch} x {arguments.read}: {', '.join(said)}, ratio {ratio:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
