"""Speed of families that differ in attention, in their recurrent layers or in what feeds forward, beside `transformers` `generate`.

    python benchmarks/architectures.py [--only NAME ...] [--batches 1,8] [--prompts 32,500] [--tokens 32] [--peers penstock,torch]
    python benchmarks/architectures.py [--only NAME ...] --behind 500,4000 [--batches 1,8] [--tokens 32] [--models FOLDER]
    python benchmarks/architectures.py [--only NAME ...] --contexts 1024,32768 [--batches 1,8]
    python benchmarks/architectures.py [--only NAME ...] --snapshots 512,4000 [--rounds 9]

Each model has its family's shape with a width of 1,024 and 8 layers (60 to 850 million parameters), random weights in
bf16, and is made on the spot. As `engine_speed.py` measures it: no router, no gRPC. Prints tokens per second of one prompt of
each length, and while decoding behind prompts of that length: median of three rounds in turn, and the ratio. `--peers`: those of
`engine_speed.py`, of which the first is compared with the second.

With `--behind` a text is made once a round, and the time of every token is kept, so that a prompt is read once for both of its figures
(tokens per second until the first token, and behind it): for prompts of which `transformers` reads a batch in a minute. With
`--models` models stay in a folder, and are found there; `--make` only makes them. `--shape` is JSON that replaces a part of each model's
shape, such as `{"num_attention_heads": 4}`: where `transformers` would need more memory than there is.

With `--contexts` it prints, without `transformers`, what a sequence of so many tokens takes in the cache, its state included,
and tokens per second of so many sequences while they decode behind them, the families in turn. What is in the cache is not
computed: pages of zeros are read as fast; where keys are chosen they are random, so that the choice is, too.

With `--snapshots` it prints what copies of recurrent states cost prompts of so many tokens: the time of one with copies where the
scheduler has them made (every 512 tokens, and behind the last whole block) over that of one without, in turns.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_speed import measure, measure_prefill, peer, prepared_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

from families import FAMILIES
from models import kind_of, make

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
    "Gemma 4 31B": {
        **WIDE,
        "head_dim": 64,
        "global_head_dim": 128,
        "num_global_key_value_heads": 2,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
    },
    "Gemma 4 E2B, E4B": {
        **WIDE,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "global_head_dim": 128,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 32000,
    },
    "Llama 4": {
        **WIDE,
        "head_dim": 64,
        "intermediate_size": 1024,
        "intermediate_size_mlp": 2816,
        "num_local_experts": 16,
        "moe_layers": [1, 3, 5, 7],
        "attention_chunk_size": 512,
        "floor_scale": 8192,
    },
    "GLM-4.5 Air": {
        **WIDE,
        "head_dim": 64,
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
    },
    "MiniMax M2": {
        **WIDE,
        "head_dim": 64,
        "rotary_dim": 32,
        "intermediate_size": 384,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "attn_type_list": [1] * 8,
    },
    "MiniMax-Text-01": {
        **WIDE,
        "head_dim": 64,
        "intermediate_size": 1024,
        "num_local_experts": 8,
        "block_size": 256,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
    },
    "Nemotron-H": {
        **WIDE,
        "head_dim": 64,
        "num_hidden_layers": 12,
        "hybrid_override_pattern": "M-M-M*M-M-M*",
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "chunk_size": 128,
    },
    "Falcon-H1": {
        **WIDE,
        "head_dim": 64,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_chunk_size": 256,
    },
    "Kimi Linear": {
        **WIDE,
        **LATENT,
        "num_key_value_heads": 16,
        "moe_intermediate_size": 384,
        "num_experts": 32,
        "num_experts_per_token": 4,
        "model_max_length": 8192,
        "linear_attn_config": {
            "full_attn_layers": [4, 8],
            "head_dim": 128,
            "kda_layers": [1, 2, 3, 5, 6, 7],
            "num_heads": 8,
            "short_conv_kernel_size": 4,
        },
    },
    # Published values are twice as long as keys; transformers 5.23 saves the three convolutions in equal parts, and so not these.
    "OLMo Hybrid": {
        **WIDE,
        "num_key_value_heads": 16,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_value_head_dim": 128,
    },
    "Inkling": {
        **WIDE,
        "head_dim": 64,
        "swa_head_dim": 64,
        "swa_num_attention_heads": 16,
        "swa_num_key_value_heads": 4,
        "sliding_window_size": 512,
        "d_rel": 16,
        "rel_extent": 1024,
        "log_scaling_n_floor": 131072,
        "layer_types": [*["hybrid_sliding"] * 5, "hybrid"] + ["hybrid_sliding", "hybrid"],
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6,
        "moe_intermediate_size": 384,
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "unpadded_vocab_size": 32000,
        "max_position_embeddings": 8192,
    },
    "LFM2-MoE": {
        **WIDE,
        "layer_types": ["conv", "conv", "full_attention", "conv"] * 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
    },
    "LFM3": {
        **WIDE,
        "head_dim": 64,
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"] * 2,
        "sliding_window": 512,
    },
    "Jamba": {
        **WIDE,
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "intermediate_size": 1024,
        "num_experts": 16,
        "mamba_dt_rank": 64,
    },
    "RecurrentGemma": {
        **WIDE,
        "head_dim": 64,
        "num_key_value_heads": 1,
        "intermediate_size": 5632,
        "attention_window_size": 512,
        "lru_width": 1024,
    },
    "Ling 3.0": {
        **WIDE,
        **LATENT,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "layer_group_size": 4,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
        "max_position_embeddings": 8192,
    },
    "Granite 4 (experts)": {
        **WIDE,
        "intermediate_size": 384,
        "shared_intermediate_size": 512,
        "num_local_experts": 32,
        "num_experts_per_tok": 6,
        "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_chunk_size": 256,
    },
    "Nemotron 3 (experts)": {
        **WIDE,
        "head_dim": 64,
        "num_hidden_layers": 12,
        "hybrid_override_pattern": "MEMEM*EMEM*E",
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "chunk_size": 128,
        "n_routed_experts": 32,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 384,
        "moe_shared_expert_intermediate_size": 768,
    },
    "Qwen 3.5 (experts)": {
        **OF_EXPERTS,
        **DELTA,
        "num_experts": 32,
        "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 384,
    },
    "Bamba": {
        **WIDE,
        "attn_layer_indices": [2, 5],
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_chunk_size": 256,
    },
    "Falcon Mamba": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "time_step_rank": 64,
    },
    "A.X K2": {
        **WIDE,
        **LATENT,
        **INDEX,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
        "max_position_embeddings": 8192,
    },
    "dots 3 Note": {
        **WIDE,
        **LATENT,
        **INDEX,
        "num_key_value_heads": 16,
        "head_dim": 96,
        "q_lora_rank": 384,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
        "sliding_window_size": 512,
        "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 8,
        "swa_q_lora_rank": 384,
        "swa_kv_lora_rank": 512,
        "swa_head_dim": 96,
        "swa_qk_nope_head_dim": 64,
        "swa_v_head_dim": 64,
        "n_routed_experts": 32,
        "moe_intermediate_size": 384,
        "moe_shared_expert_intermediate_size": 384,
        "max_position_embeddings": 8192,
    },
    "BLOOM": {
        "vocab_size": 32000,
        "n_embed": 1024,
        "hidden_size": 1024,
        "n_layer": 8,
        "num_attention_heads": 16,
        "seq_length": 4096,
    },
    "ERNIE 4.5": {**WIDE, "head_dim": 64},
    "ERNIE 4.5 MoE": {
        **WIDE,
        "moe_num_experts": 32,
        "moe_k": 6,
        "moe_intermediate_size": 384,
        "moe_layer_end_index": 7,
    },
    "Seed-OSS": {**WIDE, "head_dim": 64},
    "Hunyuan": {**WIDE, "head_dim": 64},
    "EXAONE 4": {
        **WIDE,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
    },
    "OLMo 3": {
        **WIDE,
        "num_key_value_heads": 16,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
        "rope_scaling": {**FAMILIES["OLMo 3"]["rope_scaling"], "original_max_position_embeddings": 1024},
    },
    "Ministral 3": {
        **WIDE,
        "head_dim": 64,
        "rope_parameters": {
            **FAMILIES["Ministral 3"]["rope_parameters"],
            "original_max_position_embeddings": 1024,
        },
    },
    "Apertus": {
        **WIDE,
        "rope_scaling": {**FAMILIES["Apertus"]["rope_scaling"], "original_max_position_embeddings": 1024},
    },
    "Arcee AFM": WIDE,
    "Granite 3 MoE": {**WIDE, "intermediate_size": 384, "num_local_experts": 32, "num_experts_per_tok": 8},
    "Nemotron, Minitron": {**WIDE, "head_dim": 64},
    "MiMo V2 Flash": {
        **WIDE,
        "head_dim": 96,
        "v_head_dim": 64,
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
        "sliding_window": 128,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
        "mlp_layer_types": ["dense", *["sparse"] * 7],
    },
    "Laguna XS": {
        **WIDE,
        "head_dim": 64,
        "num_attention_heads": 12,
        "num_attention_heads_per_layer": [12, 16, 16, 16] * 2,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
        "mlp_layer_types": ["dense", *["sparse"] * 7],
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 384,
        "sliding_window": 512,
    },
    "GLM-4.7 Flash": {
        **WIDE,
        **LATENT,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
        "mlp_layer_types": ["dense", *["sparse"] * 7],
    },
}
SHAPES["Nemotron 3 (latent experts)"] = {**SHAPES["Nemotron 3 (experts)"], "moe_latent_size": 512}


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
    parser.add_argument("--behind", default="", help="prompts of so many tokens, and decoding behind them")
    parser.add_argument(
        "--most",
        type=int,
        default=1 << 20,
        help="tokens of a batch's prompts, with --behind; larger ones are left out",
    )
    parser.add_argument("--models", type=Path, default=None, help="folder where models stay")
    parser.add_argument("--make", action="store_true", help="only make the models")
    parser.add_argument(
        "--shape", type=json.loads, default={}, help="JSON that replaces a part of each shape"
    )
    arguments = parser.parse_args()
    for family in arguments.only:
        SHAPES[family] = {**SHAPES[family], **arguments.shape}
    if arguments.make:
        for family in arguments.only:
            with model_of(family, arguments.models):
                pass
        return
    if arguments.behind:
        prompts, batches = (
            [int(count) for count in given.split(",")] for given in (arguments.behind, arguments.batches)
        )
        cells = [
            (prompt, batch)
            for prompt, batch in itertools.product(prompts, batches)
            if prompt * batch <= arguments.most
        ]
        for family in arguments.only:
            with model_of(family, arguments.models) as folder:
                behind_prompts(family, folder, cells, arguments.tokens, arguments.rounds)
        return
    if arguments.snapshots:
        prompts = list(map(int, arguments.snapshots.split(",")))
        snapshot_costs(arguments.only, prompts, arguments.rounds, arguments.models)
        return
    if arguments.contexts:
        contexts, batches = (
            [int(count) for count in given.split(",")] for given in (arguments.contexts, arguments.batches)
        )
        behind_contexts(arguments.only, contexts, batches, arguments.tokens, arguments.models)
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


@contextmanager
def model_of(family: str, models: Path | None) -> Iterator[Path]:
    """The folder of the family's model, which stays there if `models` is a folder."""
    with ExitStack() as stack:
        folder = models or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = folder / "".join(letter if letter.isalnum() else "_" for letter in family)
        yield made if made.exists() else make(made, FAMILIES[family] | SHAPES[family])


def behind_prompts(family: str, folder: Path, cells: list[tuple[int, int]], tokens: int, rounds: int) -> None:
    """Prints how fast the engine and transformers read prompts and decode behind them. `cells`: tokens of each prompt, and how many."""
    longest = max(prompt for prompt, _ in cells) + tokens
    threads = torch.get_num_threads()
    engine = prepared_engine(folder, torch.bfloat16, longest)
    runs = "CPU engine" if engine.native is not None else "torch"

    def ours(texts: list[list[int]]) -> list[float]:
        torch.set_num_threads(1 if engine.native is not None else threads)
        found = token_times(engine, texts, tokens, longest)
        torch.set_num_threads(threads)
        return found

    theirs = timed_transformers(folder, tokens)
    random = np.random.default_rng(0)
    for prompt, batch in cells:
        seen: list[list[tuple[float, float]]] = []
        for number in range(rounds + 1):
            length = 64 if number == 0 else prompt  # the first is not counted
            texts = random.integers(3, 32000, (batch, length)).tolist()
            times = [ours(texts), theirs(texts)]
            seen.append(
                [(batch * length / each[0], batch * (tokens - 1) / (each[-1] - each[0])) for each in times]
            )
        for at, what in enumerate(("read", "decode")):
            own, other = (statistics.median(one[peer][at] for one in seen[1:]) for peer in (0, 1))
            print(
                f"{family:18} ({runs}) prompt {prompt:5} batch {batch:2} {what:6}: {own:8.1f} tok/s, transformers {other:8.1f}, "
                f"ratio {own / other:.2f} ({rounds} rounds)",
                flush=True,
            )


def timed_transformers(folder: Path, tokens: int) -> Callable[[list[list[int]]], list[float]]:
    """Seconds until each token of `generate`."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    kind = kind_of(json.loads((folder / "config.json").read_text()))
    model: Any = kind.from_pretrained(folder, dtype=torch.bfloat16)

    class Watch(StoppingCriteria):
        """Is asked after each token."""

        def __init__(self) -> None:
            self.begin, self.times = CLOCK(), list[float]()

        def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            self.times.append(CLOCK() - self.begin)
            return torch.zeros(len(input_ids), dtype=torch.bool)

    def generate(prompts: list[list[int]]) -> list[float]:
        ids, watch = torch.tensor(prompts), Watch()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([watch]),
            )
        return watch.times

    return generate


def token_times(engine: Engine, prompts: list[list[int]], tokens: int, longest: int) -> list[float]:
    """Seconds until each token of all prompts, of which a step reads as many as it has room for."""
    engine.clear()
    rows, length = len(prompts), len(prompts[0])
    none, pages = np.zeros(0, np.uint32), pages_of(length, tokens)
    tables = engine.tables(longest + 16).count
    at_once = max(1, 8192 // length)
    times, begin, number = list[float](), CLOCK(), 0
    for first in range(0, rows, at_once):
        texts = prompts[first : first + at_once]
        count = len(texts)
        starts = greedy_starts(count)
        if engine.states is not None:
            starts = replace(starts, state_sources=np.full(count, NO_SNAPSHOT, np.uint32))
        blocks = np.arange(count * pages * tables, dtype=np.uint32) + first * pages * tables
        number += 1
        engine.step(
            Plan(number, none, np.arange(count) + first, np.full(count, START | SAMPLE, np.uint8), np.zeros(count, np.int64),
                 np.full(count, length), np.array(texts, np.uint32).reshape(-1), np.full(count, pages), blocks, none, starts)
        )  # fmt: skip
    times.append(CLOCK() - begin)
    flags, zeros = np.full(rows, CONTINUE | SAMPLE, np.uint8), np.zeros(rows, np.int64)
    for at in range(tokens - 1):
        positions = np.full(rows, length + at)
        engine.step(
            Plan(number + at + 1, none, np.arange(rows), flags, positions, np.ones(rows, np.int64), none, zeros, none, none, None)
        ).SerializeToString()  # fmt: skip
        times.append(CLOCK() - begin)
    return times


def behind_contexts(
    families: list[str], contexts: list[int], batches: list[int], tokens: int, models: Path | None
) -> None:
    """Measures the families in turn, three times."""
    longest = max(contexts) + tokens + 1
    engines: dict[str, Engine] = {}
    threads = torch.get_num_threads()
    for family in families:
        with model_of(family, models) as folder, tempfile.TemporaryDirectory() as longer:
            of_length(folder, Path(longer), longest + 16)
            engines[family] = prepared_engine(Path(longer), torch.bfloat16, longest)
        if "index_topk" in SHAPES[family]:
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


def of_length(folder: Path, longer: Path, positions: int) -> None:
    """The same model in another folder, made for so many positions."""
    for file in folder.iterdir():
        if file.name != "config.json":
            (longer / file.name).symlink_to(file)
    shape = json.loads((folder / "config.json").read_text())
    for part in (shape, shape.get("text_config", {})):
        names = ("max_position_embeddings", "seq_length", "model_max_length")
        part |= {name: positions for name in names if name in part}
    (longer / "config.json").write_text(json.dumps(shape))


def snapshot_costs(families: list[str], prompts: list[int], rounds: int, models: Path | None) -> None:
    """Prompts in one step each, with copies of the state and without."""
    for family in families:
        with model_of(family, models) as folder:
            engine = prepared_engine(folder, torch.bfloat16, max(prompts) + 16)
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
