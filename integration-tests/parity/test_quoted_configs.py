"""Published config.json files, as other projects quote them in tests and documents: the recipe reads each, with the sizes that it says.

Found on 2026-11-27 by searching public repositories for a model_type. Published files themselves were not at hand, and a quotation may leave
out keys: `of_class` says which of them come from transformers' class then. What is beside each is all that was found of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config


@dataclass(frozen=True)
class Quoted:
    """Of a published config.json. `architecture` and `model_type` are the file's own, where the text model is in a part of it."""

    model_type: str
    architecture: str
    text: dict[str, Any]
    of_class: tuple[str, ...] = ()
    is_part: bool = False


SPARSE = [0] * 3 + [1] * 57  # layers of MiniMax M3
KDA = [at for at in range(1, 27) if at % 4]
LFM3_PERIOD = ["full_attention", "conv", "sliding_attention", "conv"]
LING = {
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5,
    "gated_attention_proj_granularity_type": "head_wise",
    "head_dim": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 157184,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6000000,
    "rope_interleave": True,
    "short_conv_kernel_size": 4,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
}
GRANITE_4_H = [
    *["mamba"] * 5,
    *(["attention"] + ["mamba"] * 9) * 3,
    "attention",
    *["mamba"] * 4,
]
MINIMAX_BRANCHES = ("full_attention", "linear_attention", "mlp")
NEMOTRON_NANO_2 = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
V4_RATES = [0, 0, *[4, 128] * 20, 4, 0]  # the last is of the layer that predicts further tokens
NEMOTRON_3 = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NEMOTRON_BLOCKS = {"M": "mamba", "E": "moe", "*": "attention"}
INKLING = {
    "model_max_length": 1048576,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "d_rel": 16,
    "rel_extent": 1024,
    "log_scaling_n_floor": 128000,
    "log_scaling_alpha": 0.1,
    "dense_mlp_idx": 2,
    "use_sconv": True,
    "sconv_kernel_size": 4,
    "swa_head_dim": 128,
    "sliding_window_size": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "vocab_size": 201024,
    "unpadded_vocab_size": 200058,
}
QUOTED: dict[str, Quoted] = {
    # A Rust server's test of "a trimmed dots.llm1.inst config".
    "dots.llm1": Quoted(
        "dots1",
        "Dots1ForCausalLM",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 62,
            "intermediate_size": 10944,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-05,
            "vocab_size": 152064,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "max_position_embeddings": 32768,
            "rope_theta": 10000000,
            "scoring_func": "sigmoid",
            "attention_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    # Tests of a Go library and of an evaluation tool, which agree but for the positions (196,608 and 204,800).
    "MiniMax M2": Quoted(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        {
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_mtp": True,
            "num_mtp_modules": 3,
            "mtp_transformer_layers": 1,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "rotary_dim": 64,
            "rope_theta": 5000000,
            "attn_type_list": [1] * 62,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        },
    ),
    # Four tests of converters and servers, which agree; two of an article that explains the file.
    "MiniMax M3": Quoted(
        "minimax_m3_vl",
        "MiniMaxM3SparseForConditionalGeneration",
        {
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 200064,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-6,
            "use_gemma_norm": True,
            "rope_theta": 5000000,
            "rotary_dim": 64,
            "partial_rotary_factor": 0.5,
            "hidden_act": "swigluoai",
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "tie_word_embeddings": False,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "routed_scaling_factor": 2.0,
            "moe_layer_freq": SPARSE,
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_score_type": "max",
                "sparse_init_block": 0,
                "sparse_local_block": 1,
                "sparse_disable_index_value": SPARSE,
                "sparse_attention_freq": SPARSE,
            },
        },
        is_part=True,
    ),
    # A benchmark's test (with four layers), a server's (which has 43), and another server's, which has the file whole.
    "DeepSeek V4 Flash": Quoted(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        {
            "hidden_size": 4096,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 43,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "o_lora_rank": 1024,
            "o_groups": 8,
            "qk_rope_head_dim": 64,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "topk_method": "noaux_tc",
            "scoring_func": "sqrtsoftplus",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "index_topk": 512,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "num_hash_layers": 3,
            "num_nextn_predict_layers": 1,
            "sliding_window": 128,
            "swiglu_limit": 10.0,
            "vocab_size": 129280,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 16,
                "original_max_position_embeddings": 65536,
                "type": "yarn",
            },
            "compress_rope_theta": 160000,
            "compress_ratios": V4_RATES,
            "tie_word_embeddings": False,
        },
    ),
    # A trainer's test of the file, in the words of its first name, and a server's command with the text's part of it.
    "Qwen3.8-Flash-Next": Quoted(
        "qwen3_8_flash_next",
        "Qwen3_8FlashNextForConditionalGeneration",
        {
            "model_type": "qwen3_8_flash_next_text",
            "attention_bias": False,
            "eos_token_id": 248044,
            "full_attention_interval": 4,
            "hc_count": 4,
            "hc_lowrank": 320,
            "head_dim": 256,
            "heads_per_ngram": 8,
            "hidden_act": "silu",
            "hidden_size": 2560,
            "indexer_budget": 2048,
            "indexer_compress_ratio": 4,
            "indexer_head_dim": 128,
            "indexer_kv_heads": 1,
            "indexer_n_heads": 4,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 12,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "linear_value_head_dim": 128,
            "make_ngram_vocab_size_divisible_by": 128,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 640,
            "mtp": {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1},
            "mtp_num_hidden_layers": 1,
            "ngram_size": 3,
            "ngram_vocab_size_base": 20000000,
            "num_attention_heads": 24,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "output_gate_type": "sigmoid",
            "partial_rotary_factor": 0.25,
            "ple_conv_kernel_size": 4,
            "ple_embed_dim": 2560,
            "ple_layer_ids": [2],
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000000,
                "rope_type": "default",
            },
            "shared_expert_intermediate_size": 640,
            "split_ngram_parts": 128,
            "tie_word_embeddings": False,
            "vocab_size": 248320,
        },
        is_part=True,
    ),
    # A runtime's test; of the rotation, which it leaves out, the recipe's own defaults.
    "Laguna XS 2.1": Quoted(
        "laguna",
        "LagunaForCausalLM",
        {
            "vocab_size": 100352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": 512,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "mlp_only_layers": [0],
            "moe_routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
            "gating": "per-head",
            "max_position_embeddings": 262144,
            "layer_types": ["full_attention", *["sliding_attention"] * 3] * 10,
            "mlp_layer_types": ["dense", *["sparse"] * 39],
            "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
        },
    ),
    # The same benchmark's, and a trainer's, which has 61 layers, three of them dense.
    "DeepSeek V3.2": Quoted(
        "deepseek_v32",
        "DeepseekV32ForCausalLM",
        {
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "n_group": 8,
            "topk_group": 4,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "index_topk": 2048,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "vocab_size": 129280,
        },
    ),
    # A catalogue's copy of a conversion of GLM-5.3, trimmed, and a quantizer's check of "official config geometry" (width and layers).
    "GLM-5": Quoted(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        {
            "hidden_size": 6144,
            "num_hidden_layers": 78,
            "hidden_act": "silu",
            "index_topk": 2048,
            "kv_lora_rank": 512,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 64,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 2048,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_method": "noaux_tc",
        },
        of_class=(
            "vocab_size",
            "intermediate_size",
            "moe_intermediate_size",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "index_head_dim",
            "index_n_heads",
            "first_k_dense_replace",
            "routed_scaling_factor",
            "max_position_embeddings",
        ),
    ),
    # A Rust engine's test of "the released 48B config", and a converter's, which has both lists of layers and head_dim.
    "Kimi Linear 48B": Quoted(
        "kimi_linear",
        "KimiLinearForCausalLM",
        {
            "hidden_act": "silu",
            "q_lora_rank": None,
            "mla_use_nope": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "topk_group": 1,
            "moe_layer_freq": 1,
            "tie_word_embeddings": False,
            "hidden_size": 2304,
            "num_hidden_layers": 27,
            "vocab_size": 163840,
            "rms_norm_eps": 1e-5,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 72,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_experts": 256,
            "num_experts_per_token": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1024,
            "routed_scaling_factor": 2.446,
            "moe_renormalize": True,
            "first_k_dense_replace": 1,
            "intermediate_size": 9216,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": KDA,
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
    ),
    # The catalogue's copy of a model of that size, trimmed, and a trainer's check (layers, width, vocabulary).
    "Qwen 3.5 27B": Quoted(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        {
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "vocab_size": 248320,
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16,
            "head_dim": 256,
            "hidden_act": "silu",
            "linear_conv_kernel_dim": 4,
            "linear_num_value_heads": 48,
            "mamba_ssm_dtype": "float32",
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000000,
                "rope_type": "default",
            },
        },
        of_class=(
            "intermediate_size",
            "linear_num_key_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "max_position_embeddings",
        ),
    ),
    # The catalogue's copy of google/gemma-4-31B-it, trimmed, and a server's test, which has the sizes.
    "Gemma 4 31B": Quoted(
        "gemma4_text",
        "Gemma4ForCausalLM",
        {
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "vocab_size": 262144,
            "head_dim": 256,
            "attention_k_eq_v": True,
            "enable_moe_block": False,
            "final_logit_softcapping": 30.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "num_attention_heads": 32,
            "num_experts": None,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-6,
            "sliding_window": 1024,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
        },
        of_class=("num_hidden_layers", "layer_types", "hidden_size_per_layer_input"),
    ),
    # A Rust server's test and two of Swift libraries, which agree.
    "Gemma 4 E2B": Quoted(
        "gemma4_text",
        "Gemma4ForCausalLM",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": None,
            "attention_k_eq_v": False,
            "sliding_window": 512,
            "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "intermediate_size": 6144,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "final_logit_softcapping": 30.0,
            "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
        },
    ),
    # A loader's check of the 8-bit artifact's file, and a planner's test, which has the layers ("from the Hub, 2026-09-28").
    "Nemotron 3.5 Lightning": Quoted(
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            "num_hidden_layers": 52,
            "hidden_size": 2688,
            "vocab_size": 131072,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "n_groups": 8,
            "mamba_ssm_cache_dtype": "float32",
            "time_step_min": 0.001,
            "time_step_max": 0.1,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "num_nextn_predict_layers": 1,
            "mtp_layers_block_type": ["attention", "moe"],
            "max_position_embeddings": 262144,
            "layers_block_type": [NEMOTRON_BLOCKS[letter] for letter in NEMOTRON_3],
        },
        of_class=("intermediate_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    ),
    # A Rust engine's test of a pinned file, whose feed-forward layers are 4,608 wide in the end.
    "LFM2 350M": Quoted(
        "lfm2",
        "Lfm2ForCausalLM",
        {
            "hidden_size": 1024,
            "block_dim": 1024,
            "conv_dim": 1024,
            "intermediate_size": 6656,
            "block_ff_dim": 6656,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "block_use_swiglu": True,
            "conv_bias": False,
            "conv_L_cache": 3,
            "num_attention_heads": 16,
            "num_heads": 16,
            "num_key_value_heads": 8,
            "num_hidden_layers": 16,
            "vocab_size": 65536,
            "rope_theta": 1000000.0,
            "tie_embedding": True,
            "norm_eps": 1e-5,
            "block_norm_eps": 1e-5,
            "max_position_embeddings": 128000,
        },
    ),
    # Two notes that name the file's fields, and a model's card in a cost model; of its experts the widths are not quoted.
    "Qwen3-Next 80B": Quoted(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "num_experts": 512,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
        of_class=(
            "vocab_size",
            "intermediate_size",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "num_experts_per_tok",
        ),
    ),
    # A cost model's tests, which read it off the published file in August 2026.
    "Granite 4.0 H Tiny": Quoted(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 40,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "vocab_size": 100352,
            "tie_word_embeddings": True,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_expand": 2,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 256,
            "max_position_embeddings": 131072,
            "layer_types": GRANITE_4_H,
        },
    ),
    # The same tests: "verbatim from the published config.json".
    "Granite 4.0 H 1B": Quoted(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 40,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 4096,
            "shared_intermediate_size": 4096,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "vocab_size": 100352,
            "tie_word_embeddings": True,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_expand": 2,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 256,
            "max_position_embeddings": 131072,
            "layer_types": GRANITE_4_H,
        },
    ),
    # The same tests; the factors, which they do not read, are the class's.
    "Falcon-H1 7B": Quoted(
        "falcon_h1",
        "FalconH1ForCausalLM",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 44,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "intermediate_size": 12288,
            "vocab_size": 130048,
            "tie_word_embeddings": False,
            "mamba_d_state": 256,
            "mamba_n_groups": 1,
            "mamba_n_heads": 24,
            "mamba_d_head": 128,
            "mamba_d_ssm": 3072,
            "mamba_expand": 2,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 128,
            "max_position_embeddings": 262144,
        },
    ),
    # The same tests, and an exporter's, which has the file whole.
    "Falcon Mamba 7B": Quoted(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "intermediate_size": 8192,
            "vocab_size": 65024,
            "tie_word_embeddings": False,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 256,
            "expand": 16,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "residual_in_fp32": True,
        },
    ),
    # An exporter's test, with the file's address.
    "Jamba 1.5 Mini": Quoted(
        "jamba",
        "JambaForCausalLM",
        {
            "attn_layer_offset": 4,
            "attn_layer_period": 8,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_dt_rank": 256,
            "mamba_expand": 2,
            "mamba_proj_bias": False,
            "max_position_embeddings": 262144,
            "num_attention_heads": 32,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_logits_to_keep": 1,
            "rms_norm_eps": 1e-06,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_mamba_kernels": False,
            "vocab_size": 65536,
        },
    ),
    # transformers' test of MiniMax-VL-01, whose text is MiniMax-Text-01; the same numbers lie in a library's file in transformers' words.
    "MiniMax-Text-01": Quoted(
        "minimax_text_01",
        "MiniMaxText01ForCausalLM",
        {
            "attn_type_list": [int(at % 8 == 7) for at in range(80)],
            "head_dim": 128,
            "hidden_size": 6144,
            "intermediate_size": 9216,
            **{f"layernorm_{kind}_alpha": 3.5565588200778455 for kind in MINIMAX_BRANCHES},
            **{f"layernorm_{kind}_beta": 1.0 for kind in MINIMAX_BRANCHES},
            "max_position_embeddings": 10240000,
            "num_attention_heads": 64,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 80,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "postnorm": True,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000000,
            "rotary_dim": 64,
            "shared_intermediate_size": 0,
            "shared_moe_mode": "sigmoid",
            "sliding_window": None,
            "tie_word_embeddings": False,
            "vocab_size": 200064,
        },
    ),
    # Tests of a speech model within another engine, a training script and two estimates of memory, which agree.
    "Nemotron Nano 9B v2": Quoted(
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            "vocab_size": 131072,
            "hidden_size": 4480,
            "intermediate_size": 15680,
            "num_hidden_layers": 56,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": 131072,
            "hybrid_override_pattern": NEMOTRON_NANO_2,
            "mamba_num_heads": 128,
            "mamba_head_dim": 80,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
        },
    ),
    # A Rust engine's test: "the real google/recurrentgemma-2b/config.json".
    "RecurrentGemma 2B": Quoted(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        {
            "_block_types": ["recurrent", "recurrent", "attention"],
            "attention_bias": False,
            "attention_window_size": 2048,
            "conv1d_width": 4,
            "embeddings_scale_by_sqrt_dim": True,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2560,
            "intermediate_size": 15360,
            "logits_soft_cap": 30.0,
            "lru_width": 2560,
            "num_attention_heads": 10,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "vocab_size": 256000,
        },
    ),
    # Two tests, one of which has the text's part of both files "field by field".
    "Inkling": Quoted(
        "inkling_mm_model",
        "InklingForConditionalGeneration",
        {
            **INKLING,
            "hidden_size": 6144,
            "num_hidden_layers": 66,
            "num_attention_heads": 64,
            "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 16,
            "local_layer_ids": [at for at in range(66) if at % 6 != 5],
            "dense_intermediate_size": 24576,
            "intermediate_size": 3072,
        },
        is_part=True,
    ),
    "Inkling Small": Quoted(
        "inkling_mm_model",
        "InklingForConditionalGeneration",
        {
            **INKLING,
            "hidden_size": 4096,
            "num_hidden_layers": 42,
            "num_attention_heads": 32,
            "swa_num_attention_heads": 32,
            "swa_num_key_value_heads": 8,
            "local_layer_ids": [at for at in range(42) if at % 6 != 5],
            "dense_intermediate_size": 16384,
            "intermediate_size": 2048,
        },
        is_part=True,
    ),
    # The file as a registry of models shows it, but for its last lines, which are cut off there.
    "LFM3 1.7B": Quoted(
        "lfm3",
        "Lfm3ForCausalLM",
        {
            "conv_L_cache": 7,
            "conv_bias": False,
            "head_dim": 128,
            "hidden_size": 2048,
            "intermediate_size": 7680,
            "layer_types": ["conv", "conv", *LFM3_PERIOD * 5, "full_attention", "conv"],
            "max_position_embeddings": 262144,
            "norm_eps": 1e-05,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.5,
                    "rope_theta": 1000000.0,
                    "rope_type": "default",
                },
                "sliding_attention": {"rope_theta": 10000, "rope_type": "default"},
            },
            "sliding_window": 256,
            "tie_word_embeddings": True,
        },
        of_class=("vocab_size",),
    ),
    # A page that a tool writes of the file of Olmo-Hybrid-7B says all but its feed-forward layers, positions and epsilon.
    "OLMo Hybrid 7B": Quoted(
        "olmo_hybrid",
        "OlmoHybridForCausalLM",
        {
            "hidden_size": 3840,
            "num_hidden_layers": 32,
            "num_attention_heads": 30,
            "num_key_value_heads": 30,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8,
            "linear_num_key_heads": 30,
            "linear_num_value_heads": 30,
            "linear_key_head_dim": 96,
            "linear_value_head_dim": 192,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
            "rope_parameters": {"rope_type": None},
        },
        of_class=("intermediate_size", "max_position_embeddings", "rms_norm_eps"),
    ),
    # A Rust server's test of "the Ling-3.0-flash-int4 config facts".
    "Ling 3.0 Flash": Quoted(
        "bailing_hybrid",
        "BailingMoeV3ForCausalLM",
        {
            **LING,
            "num_hidden_layers": 42,
            "hidden_size": 2560,
            "first_k_dense_replace": 2,
            "intermediate_size": 6144,
            "num_attention_heads": 32,
            "q_lora_rank": None,
            "rotary_dim": 64,
            "num_experts": 512,
            "moe_intermediate_size": 768,
            "moe_shared_expert_intermediate_size": 768,
            "layer_group_size": 6,
        },
        of_class=("max_position_embeddings",),
    ),
    # A Swift library's test of "the Ling-3.0-tiny configuration".
    "Ling 3.0 Tiny": Quoted(
        "bailing_hybrid",
        "BailingMoeV3ForCausalLM",
        {
            **LING,
            "hidden_size": 1536,
            "intermediate_size": 4608,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "max_position_embeddings": 131072,
            "layer_group_size": 4,
            "qk_head_dim": 192,
            "q_lora_rank": 256,
            "use_qk_norm": True,
            "first_k_dense_replace": 1,
            "num_experts": 128,
            "moe_intermediate_size": 512,
            "moe_shared_expert_intermediate_size": 512,
            "moe_router_enable_expert_bias": True,
        },
    ),
    # An app's test has the file of Edge0-8B, a model of Ling 3.0's code, whole; here what the recipe could read of it.
    "Edge0 8B": Quoted(
        "bailing_hybrid",
        "BailingMoeV3ForCausalLM",
        {
            **LING,
            "expert_swiglu_limit_list": None,
            "first_k_dense_replace": 1,
            "group_norm_size": 1,
            "hidden_act": "silu",
            "hidden_size": 1536,
            "intermediate_size": 4608,
            "layer_group_size": 4,
            "linear_silu": True,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 512,
            "moe_router_enable_expert_bias": True,
            "moe_shared_expert_intermediate_size": 512,
            "num_attention_heads": 16,
            "num_experts": 128,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "num_kv_heads_for_linear_attn": 0,
            "num_nextn_predict_layers": 0,
            "partial_rotary_factor": 0.5,
            "q_lora_rank": 256,
            "qk_head_dim": 192,
            "rope_parameters": {
                "partial_rotary_factor": 0.5,
                "rope_theta": 6000000,
                "rope_type": "default",
            },
            "rotary_dim": 64,
            "scale_router_input": False,
            "score_function": "sigmoid",
            "scoring_func": "sigmoid",
            "share_expert_swiglu_limit_list": None,
            "topk_method": "noaux_tc",
            "up_proj_norm": False,
            "use_bias": False,
            "use_kda_lora": False,
            "use_mla_nope": False,
            "use_nGPT": False,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "value_norm": False,
        },
    ),
    # The file itself, as a search for documentation has it (ibm-fms/Bamba-9B-1.8T; that of Bamba-9B says the same).
    "Bamba 9B": Quoted(
        "bamba",
        "BambaForCausalLM",
        {
            "attn_layer_indices": [9, 18, 27],
            "attn_rotary_emb": 64,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_dt_rank": 256,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "mamba_proj_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_logits_to_keep": 1,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": False,
            "use_mamba_kernels": True,
            "vocab_size": 128256,
        },
    ),
    # The file of a model that was trained on from it (MerlinSafety/HybridIntelligence-0.5B), with all factors.
    "Falcon-H1 0.5B": Quoted(
        "falcon_h1",
        "FalconH1ForCausalLM",
        {
            "attention_bias": False,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 0.9375,
            "attn_layer_indices": None,
            "embedding_multiplier": 5.656854249492381,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "key_multiplier": 0.39062499999999994,
            "lm_head_multiplier": 0.0390625,
            "mamba_chunk_size": 128,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_ssm": 1536,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 24,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": False,
            "mamba_rms_norm": False,
            "mamba_use_mlp": True,
            "max_position_embeddings": 16384,
            "mlp_bias": False,
            "mlp_expansion_factor": 8,
            "mlp_multipliers": [0.8838834764831844, 0.5859375],
            "num_attention_heads": 8,
            "num_hidden_layers": 36,
            "num_key_value_heads": 2,
            "projectors_bias": False,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 100000000000.0, "rope_type": "default"},
        },
        of_class=("vocab_size", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier"),
    ),
    # Tests of Megatron Bridge.
    "MiMo 7B": Quoted(
        "mimo",
        "MiMoForCausalLM",
        {
            "attention_bias": True,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 640000.0,
            "tie_word_embeddings": False,
            "vocab_size": 151680,
        },
    ),
}

# What the decoder has of what a file says.
READ: dict[str, Callable[[DecoderConfig], object]] = {
    "num_hidden_layers": lambda read: read.num_layers,
    "hidden_size": lambda read: read.width,
    "vocab_size": lambda read: read.vocab_size,
    "num_attention_heads": lambda read: read.heads,
    "num_key_value_heads": lambda read: read.kv_heads,
    "max_position_embeddings": lambda read: read.max_positions,
    "rope_theta": lambda read: read.ropes[0].theta if read.ropes else None,
    "sliding_window": lambda read: max(window.size for window in read.windows if window is not None),
    "kv_lora_rank": lambda read: read.latent and read.latent.rank,
    "q_lora_rank": lambda read: read.latent and read.latent.query_rank,
    "qk_nope_head_dim": lambda read: read.latent and read.latent.plain_dim,
    "v_head_dim": lambda read: read.latent and read.latent.value_dim,
    "num_kv_shared_layers": lambda read: sum(layer.keys_of is not None for layer in read.layers),
    "moe_intermediate_size": lambda read: experts(read).width,
    "num_experts_per_tok": lambda read: experts(read).routing.per_token,
    "num_experts_per_token": lambda read: experts(read).routing.per_token,
    "num_experts": lambda read: experts(read).count,
    "routed_scaling_factor": lambda read: experts(read).routing.scale,
    "rms_norm_eps": lambda read: read.norm.eps,
    "n_routed_experts": lambda read: experts(read).count,
    "num_local_experts": lambda read: experts(read).count,
    "first_k_dense_replace": lambda read: [layer.experts is None for layer in read.layers].index(False),
}


def has_experts(read: DecoderConfig) -> bool:
    return any(layer.experts is not None for layer in read.layers)


def experts(read: DecoderConfig) -> Any:
    """Of the first layer that has some."""
    return next(layer.experts for layer in read.layers if layer.experts is not None)


def read_of(model: str) -> DecoderConfig:
    """What its recipe reads, with what the class says of the rest."""
    quoted = QUOTED[model]
    stated: dict[str, Any] = {}
    if quoted.of_class:
        transformers: Any = import_module("transformers")
        full = transformers.CONFIG_MAPPING[quoted.model_type]().to_dict()
        stated = {name: full[name] for name in quoted.of_class if full.get(name) is not None}
    whole = {**stated, **quoted.text}
    whole = {"text_config": whole} if quoted.is_part else whole
    read = read_config({**whole, "model_type": quoted.model_type, "architectures": [quoted.architecture]})
    assert isinstance(read, DecoderConfig)
    return read


@pytest.mark.tail
@pytest.mark.parametrize("model", QUOTED)
def test_a_recipe_reads_what_is_quoted_of_a_published_file(model: str) -> None:
    quoted, read = QUOTED[model], read_of(model)
    # Sizes that are another number here: of compressed keys, of no experts, and of Inkling, whose rows without a token are left out and
    # whose experts for every token are counted with the others.
    others = {
        **dict.fromkeys(("q_lora_rank", "rope_theta", "sliding_window") if any(read.compressed) else ()),
        **dict.fromkeys(("num_local_experts", "num_experts_per_tok") if not has_experts(read) else ()),
        **(
            {"vocab_size": 200058, "num_experts_per_tok": 8, "n_routed_experts": 258}
            if "Inkling" in model
            else {}
        ),
    }
    for name, found in READ.items():
        expected = others.get(name, quoted.text.get(name))
        if expected is not None:
            assert found(read) == expected, name


def test_what_is_quoted_of_layers_is_read() -> None:
    """Which layers of published files attend, to what, and which keep a state."""

    kimi = read_of("Kimi Linear 48B")
    assert [at for at, layer in enumerate(kimi.layers, 1) if layer.recurrent is not None] == KDA
    assert kimi.latent is not None and kimi.latent.rope_dim == 64
    assert not any(layer.rope for layer in kimi.layers)
    m3 = read_of("MiniMax M3")
    assert m3.index is not None and (m3.index.block, m3.index.most) == (128, 16)
    assert [layer.experts is not None for layer in m3.layers] == [frequency == 1 for frequency in SPARSE]
    e2b = read_of("Gemma 4 E2B")
    assert [layer.keys_of for layer in e2b.layers[15:20]] == [13, 13, 13, 13, 14]
    assert [layer.feed_forward for layer in e2b.layers] == ([6144] * 15 + [12288] * 20)
    lfm2 = read_of("LFM2 350M")
    assert lfm2.feed_forward == 4608
    granite = read_of("Granite 4.0 H Tiny")
    assert [at for at, layer in enumerate(granite.layers) if layer.attends] == [5, 15, 25, 35]
    assert all(layer.experts is not None for layer in granite.layers)
    assert not any(layer.experts is not None for layer in read_of("Granite 4.0 H 1B").layers)
    jamba = read_of("Jamba 1.5 Mini")
    assert [at for at, layer in enumerate(jamba.layers) if layer.attends] == [4, 12, 20, 28]
    assert [layer.experts is not None for layer in jamba.layers] == [False, True] * 16
    minimax = read_of("MiniMax-Text-01")
    assert [at for at, layer in enumerate(minimax.layers) if layer.attends] == list(range(7, 80, 8))
    assert minimax.residual_factors == ((3.5565588200778455, 1.0),) * 3
    assert minimax.ropes[0].head_dim == 64
    nemotron = read_of("Nemotron Nano 9B v2")
    assert [layer.attends for layer in nemotron.layers] == [kind == "*" for kind in NEMOTRON_NANO_2]
    gemma = read_of("RecurrentGemma 2B")
    assert [at for at, layer in enumerate(gemma.layers) if layer.attends] == list(range(2, 26, 3))
    v4 = read_of("DeepSeek V4 Flash")
    rates = [one.compression.rate if one is not None and one.compression else 0 for one in v4.compressed]
    assert rates == V4_RATES[:-1] and {one.window for one in v4.compressed if one is not None} == {128}
    qwen4 = read_of("Qwen3.8-Flash-Next")
    assert [at for at, layer in enumerate(qwen4.layers) if layer.attends] == list(range(3, 48, 4))
    laguna = read_of("Laguna XS 2.1")
    assert [at for at, layer in enumerate(laguna.layers) if layer.window is None] == list(range(0, 40, 4))
    lightning = read_of("Nemotron 3.5 Lightning")
    assert [layer.attends for layer in lightning.layers] == [kind == "*" for kind in NEMOTRON_3]
    assert [layer.experts is not None for layer in lightning.layers] == [kind == "E" for kind in NEMOTRON_3]
    for model, width, experts_width in (("Inkling", 24576, 3072), ("Inkling Small", 16384, 2048)):
        inkling = read_of(model)
        assert [at for at, layer in enumerate(inkling.layers) if layer.window is None] == list(
            range(5, inkling.num_layers, 6)
        )
        assert [at for at, layer in enumerate(inkling.layers) if layer.experts is None] == [0, 1]
        assert inkling.feed_forward == width and experts(inkling).width == experts_width
    lfm3 = read_of("LFM3 1.7B")
    assert [at for at, layer in enumerate(lfm3.layers) if layer.recurrent is None] == list(range(2, 24, 2))
    assert [at for at, layer in enumerate(lfm3.layers) if layer.window is not None] == list(range(4, 24, 4))
    assert [(rope.head_dim, rope.theta) for rope in lfm3.ropes] == [(64, 1000.0), (128, 10000.0)]
    olmo = read_of("OLMo Hybrid 7B")
    assert [at for at, layer in enumerate(olmo.layers) if layer.attends] == list(range(3, 32, 4))
    assert not olmo.ropes
    for model, every in (("Ling 3.0 Flash", 6), ("Ling 3.0 Tiny", 4), ("Edge0 8B", 4)):
        ling = read_of(model)
        assert [at for at, layer in enumerate(ling.layers) if layer.attends] == list(
            range(every - 1, ling.num_layers, every)
        )
        assert ling.ropes[0].head_dim == 64
    bamba = read_of("Bamba 9B")
    assert [at for at, layer in enumerate(bamba.layers) if layer.attends] == [9, 18, 27]
    assert bamba.ropes[0].head_dim == 64 and bamba.max_positions == 262144
    v32 = read_of("DeepSeek V3.2")
    assert v32.latent is not None and v32.latent.index is not None
    assert (v32.latent.index.heads, v32.latent.index.head_dim, v32.latent.index.most) == (64, 128, 2048)
