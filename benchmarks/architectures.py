"""Speed of families that differ in attention, in their recurrent layers or in what feeds forward, beside `transformers` `generate`.

    python benchmarks/architectures.py [--only NAME ...] [--batches 1,8] [--prompts 32,500] [--tokens 32] [--peers penstock,torch]
    python benchmarks/architectures.py [--only NAME ...] --contexts 1024,32768 [--batches 1,8]
    python benchmarks/architectures.py [--only NAME ...] --snapshots 512,4000 [--rounds 9]

Each model has its family's shape with a width of 1,024 and 8 layers (60 to 500 million parameters), random weights in
bf16, and is made on the spot. As `engine_speed.py` measures it: no router, no gRPC. Prints tokens per second of one prompt of
each length, and while decoding behind prompts of that length: median of three rounds in turn, and the ratio. `--peers`: those of
`engine_speed.py`, of which the first is compared with the second.

With `--contexts` it prints, without `transformers`, what a sequence of so many tokens takes in the cache, its state included,
and tokens per second of so many sequences while they decode behind them, the families in turn. What is in the cache is not
computed: pages of zeros are read as fast; where keys are chosen they are random, so that the choice is, too.

With `--snapshots` it prints what copies of recurrent states cost prompts of so many tokens: the time of one with copies where the
scheduler has them made (every 512 tokens, and behind the last whole block) over that of one without, in turns.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_speed import measure, measure_prefill, peer, prepared_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

from families import FAMILIES
from models import make

from penstock.engine.engine import Engine
from penstock.engine.kv_cache import numbers_of, page_bytes
from penstock.engine.plan import CONTINUE, NO_SNAPSHOT, SAMPLE, START, Plan, greedy_starts
from penstock.engine.state_cache import state_bytes
from penstock.parallel.group import ALONE

CLOCK = time.perf_counter

WIDE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
OF_EXPERTS = {name: value for name, value in WIDE.items() if name != "intermediate_size"}  # and no others
LATENT = {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
INDEX = {"index_n_heads": 16, "index_head_dim": 64, "index_topk": 1024}

DELTA = {
    "head_dim": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
}

# What is different from the small model of the family's tests.
SHAPES: dict[str, dict[str, Any]] = {
    "LLaMA 3": WIDE,
    "Mistral, sliding window": {**WIDE, "sliding_window": 512},
    "Gemma 2": {**WIDE, "head_dim": 64, "sliding_window": 512},
    "Gemma 3": {**WIDE, "head_dim": 64, "sliding_window": 512},
    "Gemma 3n": {
        **WIDE,
        "head_dim": 64,
        "sliding_window": 512,
        "intermediate_size": [2816] * 8,
        "activation_sparsity_pattern": [0.95] * 3 + [0.0] * 5,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 32000,
        "laurel_rank": 64,
    },
    "Qwen 3": {**WIDE, "head_dim": 64},
    "Mixtral": {**WIDE, "num_local_experts": 8, "intermediate_size": 1024},
    "Qwen3-MoE": {**WIDE, "head_dim": 64, "num_experts": 32, "moe_intermediate_size": 384},
    "DeepSeek V2 Lite": {
        **WIDE,
        **LATENT,
        "num_key_value_heads": 16,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
    },
    # Real ones choose 2,048 keys: behind a prompt of 4,000 about as large a share of them is chosen here.
    "DeepSeek V3.2": {
        **WIDE,
        **LATENT,
        **INDEX,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
        "max_position_embeddings": 8192,
    },
    "GLM-5": {
        **WIDE,
        **LATENT,
        **INDEX,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
        "max_position_embeddings": 8192,
    },
    "Hunyuan 4": {
        **WIDE,
        **LATENT,
        **INDEX,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
        "max_position_embeddings": 8192,
        "mlp_layer_types": ["dense"] + ["sparse"] * 7,
        "indexer_types": ["full", "full", "shared", "shared", "shared", "full", "shared", "shared"],
    },
    # Blocks as published, where each key head chooses 16: behind a prompt of 4,000 about as large a share of the keys is chosen here as behind
    # one of 8,000 there.
    "MiniMax M3": {
        "text_config": {
            **FAMILIES["MiniMax M3"]["text_config"],
            **WIDE,
            "head_dim": 64,
            "rotary_dim": 32,
            "intermediate_size": 384,
            "dense_intermediate_size": 2816,
            "shared_intermediate_size": 384,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "max_position_embeddings": 8192,
            "swiglu_limit": 7.0,
            "moe_layer_freq": [0] + [1] * 7,
            "sparse_attention_config": {
                **FAMILIES["MiniMax M3"]["text_config"]["sparse_attention_config"],
                "sparse_index_dim": 64,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 8,
                "sparse_block_size": 128,
                "sparse_attention_freq": [0] + [1] * 7,
                "sparse_disable_index_value": [0] + [1] * 7,
            },
        },
    },
    # Window and rates as published, where 512 entries are chosen.
    "DeepSeek V4": {
        **OF_EXPERTS,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 384,
        "o_groups": 4,
        "o_lora_rank": 256,
        "index_n_heads": 16,
        "index_head_dim": 128,
        "index_topk": 128,
        "sliding_window": 128,
        "compress_ratios": [0, 128, 4, 128, 4, 128, 4, 0],
        "compress_rate_hca": 128,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
    },
    "GPT-OSS": {
        **WIDE,
        "num_local_experts": 8,
        "head_dim": 64,
        "intermediate_size": 1024,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
    },
    "Qwen3-Next": {**WIDE, **DELTA, "num_experts": 32, "moe_intermediate_size": 384},
    "Qwen 3.5": {**WIDE, **DELTA},
    # Of 512 blocks 64 are chosen, and the table of n-grams has 80,000 rows in place of 320 million.
    "Qwen 4": {
        **OF_EXPERTS,
        **DELTA,
        "num_key_value_heads": 2,
        "num_attention_heads": 8,
        "num_experts": 32,
        "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 384,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        "hc_lowrank": 320,
        "indexer_n_heads": 4,
        "indexer_head_dim": 128,
        "indexer_budget": 256,
        "ple_layer_ids": [2],
        "ple_embed_dim": 640,
        "ngram_vocab_size_base": 20000,
        "heads_per_ngram": 2,
    },
    "LFM2": {
        **WIDE,
        "block_dim": 1024,
        "block_ff_dim": 2816,
        "layer_types": ["conv", "conv", "full_attention", "conv"] * 2,
    },
    "Granite 4 (dense)": {
        **WIDE,
        "shared_intermediate_size": 2816,
        "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_chunk_size": 256,
    },
    "Mamba 2": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "num_heads": 32,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
    },
    "Mamba": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "time_step_rank": 64,
    },
    "RWKV 4": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "context_length": 8192,
        "rescale_every": 6,
    },
    "BLOOM": {
        "vocab_size": 32000,
        "n_embed": 1024,
        "hidden_size": 1024,
        "n_layer": 8,
        "num_attention_heads": 16,
        "seq_length": 4096,
    },
}


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompts", default="32,500")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--peers", default="penstock,transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contexts", default="", help="memory and decoding behind so many tokens")
    parser.add_argument("--snapshots", default="", help="prompts of so many tokens with copies of states")
    arguments = parser.parse_args()
    if arguments.snapshots:
        snapshot_costs(arguments.only, list(map(int, arguments.snapshots.split(","))), arguments.rounds)
        return
    if arguments.contexts:
        contexts, batches = (
            [int(count) for count in given.split(",")] for given in (arguments.contexts, arguments.batches)
        )
        behind_contexts(arguments.only, contexts, batches, arguments.tokens)
        return
    prompts = [int(count) for count in arguments.prompts.split(",")]
    for family in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder), FAMILIES[family] | SHAPES[family])
            peers = {
                name: peer(name, made, torch.bfloat16, max(prompts) + arguments.tokens)
                for name in arguments.peers.split(",")
            }
            for prompt in prompts:
                rounds = [
                    [measure_prefill(one, prompt, 32000, 1, CLOCK)[0] for one in peers.values()]
                    for _ in range(arguments.rounds)
                ]
                tell(f"{family:24} prompt {prompt:5}          ", list(peers), rounds)
                for batch in map(int, arguments.batches.split(",")):
                    # In turn: what else the machine does meets both.
                    rounds = [
                        [
                            measure(one, batch, prompt, arguments.tokens, 32000, 1, CLOCK)[0]
                            for one in peers.values()
                        ]
                        for _ in range(arguments.rounds)
                    ]
                    tell(f"{family:24} prompt {prompt:5} batch {batch:3}", list(peers), rounds)


def behind_contexts(families: list[str], contexts: list[int], batches: list[int], tokens: int) -> None:
    """Measures the families in turn, three times."""
    longest = max(contexts) + tokens + 1
    engines: dict[str, Engine] = {}
    threads = torch.get_num_threads()
    for family in families:
        shape = FAMILIES[family] | SHAPES[family]
        shape |= {name: longest + 16 for name in ("max_position_embeddings", "seq_length") if name in shape}
        with tempfile.TemporaryDirectory() as folder:
            engines[family] = prepared_engine(make(Path(folder), shape), torch.bfloat16, longest)
        if "index_topk" in shape:
            fill(engines[family], max(batches) * pages_of(max(contexts), tokens))
    for context, batch in itertools.product(contexts, batches):
        rates: dict[str, list[float]] = {family: [] for family in families}
        for _ in range(3):
            for family, engine in engines.items():
                torch.set_num_threads(1 if engine.native is not None else threads)
                rates[family].append(decode_behind(engine, context, tokens, longest, batch))
        for family, engine in engines.items():
            taken = sequence_bytes(engine, context, longest) / 2**20
            speed = statistics.median(rates[family])
            print(
                f"{family:24} context {context:6} batch {batch:3}: a sequence takes {taken:7.1f} MiB; {speed:7.1f} tok/s  "
                f"({min(rates[family]):.1f} .. {max(rates[family]):.1f})",
                flush=True,
            )


def snapshot_costs(families: list[str], prompts: list[int], rounds: int) -> None:
    """Prompts in one step each, with copies of the state and without."""
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            engine = prepared_engine(
                make(Path(folder), FAMILIES[family] | SHAPES[family]), torch.bfloat16, max(prompts) + 16
            )
        if engine.states is None:
            print(f"{family:24} keeps no state", flush=True)
            continue
        state = state_bytes(engine.model.config.state_shapes(ALONE), engine.arrays.itemsize)
        torch.set_num_threads(1)
        for prompt in prompts:
            places = sorted({*range(512, prompt, 512), (prompt - 1) // 16 * 16})
            saves = np.array([(0, at, number) for number, at in enumerate(places)], np.int64)
            times: list[tuple[float, float]] = [
                (read_prompt(engine, prompt, saves), read_prompt(engine, prompt, saves[:0]))
                for _ in range(rounds + 1)
            ][1:]
            ratios = sorted(ours / theirs for ours, theirs in times)
            print(
                f"{family:24} prompt {prompt:5}, {len(places)} copies of {state / 2**20:.2f} MiB: "
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} .. {ratios[-1]:.3f}) times as long as without; "
                f"{1000 * statistics.median(plain for _, plain in times):.0f} ms",
                flush=True,
            )


def read_prompt(engine: Engine, tokens: int, saves: Any) -> float:
    """Seconds of one step, which reads a prompt."""
    engine.clear()
    none = np.zeros(0, np.uint32)
    pages = -(-tokens // 16)
    blocks = np.arange(pages * engine.tables(tokens + 16).count, dtype=np.uint32)
    ids = np.random.default_rng(0).integers(3, 32000, tokens, dtype=np.uint32)
    flags, one = np.full(1, START | SAMPLE, np.uint8), np.ones(1, np.int64)
    starts = replace(greedy_starts(1), state_sources=np.full(1, NO_SNAPSHOT, np.uint32))
    plan = Plan(1, none, np.zeros(1, np.int64), flags, np.zeros(1, np.int64), one * tokens, ids, one * pages, blocks,
                none, starts, saves=saves)  # fmt: skip
    begin = CLOCK()
    engine.step(plan)
    return CLOCK() - begin


def sequence_bytes(engine: Engine, tokens: int, longest: int) -> int:
    """Of a sequence's pages and of its state."""
    tables, config = engine.tables(longest), engine.model.config
    itemsize = engine.arrays.itemsize
    page = page_bytes(tables, numbers_of(config.cached_layers(ALONE)), engine.model.cache_shape, itemsize)
    return tables.pages(tokens) * page + state_bytes(config.state_shapes(ALONE), itemsize)


def pages_of(context: int, tokens: int) -> int:
    """Of a sequence and table."""
    return -(-(context + tokens + 1) // 16)


def fill(engine: Engine, pages: int) -> None:
    """Random numbers in the cache's first pages."""
    some = torch.randn(1 << 22).bfloat16()
    for rows_NJD in engine.cache.tensors_NJD:
        if isinstance(rows_NJD, np.ndarray):
            flat, source = rows_NJD[: 16 * pages].reshape(-1), some.view(torch.int16).numpy().view(np.uint16)
        else:
            flat, source = rows_NJD[: 16 * pages].view(-1), some
        for begin in range(0, len(flat), len(source)):
            here = flat[begin : begin + len(source)]
            here[:] = source[: len(here)]


def decode_behind(engine: Engine, context: int, tokens: int, longest: int, rows: int) -> float:
    """Tokens per second of some sequences whose first `context` tokens are taken to be cached."""
    engine.clear()
    none = np.zeros(0, np.uint32)
    starts = greedy_starts(rows)
    if engine.states is not None:
        starts = replace(starts, state_sources=np.zeros(rows, np.uint32))
    pages = pages_of(context, tokens)
    blocks = np.arange(rows * pages * engine.tables(longest + 16).count, dtype=np.uint32)
    slots, ones = np.arange(rows), np.ones(rows, np.int64)
    engine.step(
        Plan(1, none, slots, np.full(rows, START | SAMPLE, np.uint8), np.full(rows, context), ones,
             np.full(rows, 5, np.uint32), np.full(rows, pages), blocks, none, starts)
    )  # fmt: skip
    flags, zeros = np.full(rows, CONTINUE | SAMPLE, np.uint8), np.zeros(rows, np.int64)
    begin = CLOCK()
    for at in range(1, tokens + 1):
        position = np.full(rows, context + at)
        engine.step(Plan(at + 1, none, slots, flags, position, ones, none, zeros, none, none, None))
    return tokens * rows / (CLOCK() - begin)


def tell(what: str, peers: list[str], rounds: list[list[float]]) -> None:
    """Prints a line of the first and the second."""
    ours, theirs = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    print(f"{what}: {ours:8.1f} tok/s, {peers[1]} {theirs:8.1f}, ratio {ours / theirs:.2f}", flush=True)


if __name__ == "__main__":
    main()
