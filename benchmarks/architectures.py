"""Speed of families that differ in attention, in their recurrent layers or in what feeds forward, beside `transformers` `generate`.

    python benchmarks/architectures.py [--only NAME ...] [--batches 1,8] [--prompts 32,500] [--tokens 32]

Each model has its family's shape with a width of 1,024 and 8 layers (60 to 500 million parameters), random weights in
bf16, and is made on the spot. As `engine_speed.py` measures it: no router, no gRPC. Prints tokens per second of one prompt of
each length, and while decoding behind prompts of that length: median of three rounds in turn, and the ratio.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine_speed import measure, measure_prefill, peer

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

from families import FAMILIES
from models import make

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
LATENT = {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}

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
    arguments = parser.parse_args()
    prompts = [int(count) for count in arguments.prompts.split(",")]
    for family in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder), FAMILIES[family] | SHAPES[family])
            peers = {
                name: peer(name, made, torch.bfloat16, max(prompts) + arguments.tokens)
                for name in ("penstock", "transformers")
            }
            for prompt in prompts:
                rounds = [
                    [measure_prefill(one, prompt, 32000, 1, CLOCK)[0] for one in peers.values()]
                    for _ in range(3)
                ]
                tell(f"{family:24} prompt {prompt:5}          ", rounds)
                for batch in map(int, arguments.batches.split(",")):
                    # In turn: what else the machine does meets both.
                    rounds = [
                        [
                            measure(one, batch, prompt, arguments.tokens, 32000, 1, CLOCK)[0]
                            for one in peers.values()
                        ]
                        for _ in range(3)
                    ]
                    tell(f"{family:24} prompt {prompt:5} batch {batch:3}", rounds)


def tell(what: str, rounds: list[list[float]]) -> None:
    """Prints a line of ours and theirs."""
    ours, theirs = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    print(f"{what}: {ours:8.1f} tok/s, transformers {theirs:8.1f}, ratio {ours / theirs:.2f}", flush=True)


if __name__ == "__main__":
    main()
