"""Configurations that no recipe knows, and those that contradict the weights, are refused in one line."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import make
from newer_families import MINIMAX_M3, MISTRAL_4, STEP_3_5
from ranks import TESTS  # noqa: F401  (where the driver is)
from recurrent_families import RECURRENT
from safetensors import safe_open

from penstock.errors import UnusableModel
from penstock.models import recipes
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.parallel.group import TensorGroup


def index_of(**changes: Any) -> dict[str, Any]:
    """What chooses MiniMax M3's keys, with these changes."""
    return {"sparse_attention_config": {**MINIMAX_M3["sparse_attention_config"], **changes}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ("GPT-2", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("GPT-2", {"n_head": 5}, "5 attention heads do not divide the width 64"),
    ("Falcon 7B", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2"),
    ("Falcon 40B", {"parallel_attn": False}, "parallel_attn is False"),
    ("Falcon 40B", {"num_kv_heads": 3}, "no multiple of num_kv_heads 3"),
    ("Falcon 7B", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
    ("StarCoder2", {"norm_type": "rms_norm"}, "norm_type is 'rms_norm'"),
    ("StarCoder2", {"mlp_type": "gated"}, "mlp_type is 'gated'"),
    ("MPT", {"attn_config": {"alibi": False}}, "alibi is False"),
    ("MPT", {"attn_config": {"qk_ln": True}}, "qk_ln is True"),
    ("MPT", {"attn_config": {"prefix_lm": True}}, "prefix_lm is True"),
    ("MPT", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type is 'multiquery_attention'"),
    ("MPT", {"attn_config": [1]}, "attn_config is not an object"),
    ("MPT", {"no_bias": False}, "no_bias is False"),
    ("MPT", {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"),
    ("MPT", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_model'"),
    ("Phi 3.5 mini, Phi 3 128k", {"partial_rotary_factor": 0.5}, "is not a list of 4 positive numbers"),
    ("Phi 4", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "type 'yarn'; of Phi 3 only longrope"),
    ("Mistral Small 3.1", {"text_config": {"model_type": "mistral9"}}, "model_type 'mistral9'; served are"),
    (
        "Mistral Small 4 with images",
        {"text_config": {**MISTRAL_4, "rope_parameters": {"partial_rotary_factor": 1.0}}},
        "8 of 24 numbers of a head",
    ),
    (
        "Qwen3-VL",
        {"text_config": {"model_type": "qwen4_vl_text"}},
        "the text model has the model_type 'qwen4_vl_text'",
    ),
    (
        "Qwen 3",
        {"architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 4.0},
        "the text model has the model_type None",
    ),
    ("Qwen3-VL", {"text_config": 3}, "text_config is not an object"),
    ("Gemma 4 31B", {"num_hidden_layers": 5}, "layer_types is not a list of 5 names"),
    ("Gemma 4 31B", {"layer_types": ["full_attention", "mamba"] * 3}, "layer_types has 'mamba'"),
    (
        "Gemma 4 31B",
        {"layer_types": ["full_attention", "sliding_attention"] * 3},
        "the last layer attends to all",
    ),
    ("Gemma 4 E2B, E4B", {"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5"),
    ("Gemma 4 31B", {"num_global_key_value_heads": 3}, "no multiple of num_global_key_value_heads 3"),
    ("Gemma 4 31B", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    ("Gemma 3n", {"intermediate_size": [112] * 5}, "intermediate_size has 5 values for 6 layers"),
    ("Gemma 3n", {"altup_active_idx": 4}, "altup_active_idx is 4, and altup_num_inputs 4"),
    ("Gemma 3n", {"activation_sparsity_pattern": [1.5] * 6}, "not a list of 6 shares below 1"),
    ("Llama 4", {"no_rope_layers": [1, 0]}, "no_rope_layers is not a list of 4 times 0 or 1"),
    ("Llama 4", {"moe_layers": [9]}, "moe_layers is not a list of layers below 4"),
    ("Llama 4", {"layer_types": ["sliding_attention"] * 4}, "layer_types has 'sliding_attention'"),
    ("DeepSeek V2 Lite", {"topk_method": "noaux_tc"}, "scoring_func is 'softmax', and only 'sigmoid'"),
    (
        "DeepSeek V2 Lite",
        {"topk_method": "noaux_tc", "scoring_func": None},
        "scoring_func is 'softmax', and only 'sigmoid'",
    ),
    ("GLM-4.7 Flash", {"mlp_layer_types": ["dense"]}, "mlp_layer_types is not a list of 3 times"),
    ("GLM-4.5, 4.6, 4.7", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ("MiniMax M2", {"attn_type_list": [1, 0, 1]}, r"attn_type_list is \[1, 0, 1\]"),
    *(
        ("MiniMax M3", {"text_config": {**MINIMAX_M3, **changes}}, message)
        for changes, message in (
            ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
            ({"moe_layer_freq": [0, 1]}, "moe_layer_freq is not a list of 3 times 0 or 1"),
            ({"layer_types": ["conv"] * 3}, "layer_types is not a list of 3 kinds"),
            (index_of(sparse_attention_freq=[2, 1, 1]), "sparse_attention_freq is not a list of 3 times"),
            (index_of(sparse_num_index_heads=4), "sparse_num_index_heads is 4, and num_key_value_heads 2"),
            (index_of(sparse_index_dim=4), "sparse_index_dim 4 is less than the 8 numbers"),
            (index_of(sparse_score_type="lse"), "sparse_score_type is 'lse'"),
            (index_of(sparse_local_block=4), "sparse_local_block 4 is more than sparse_topk_blocks 3"),
            (index_of(sparse_disable_index_value=[0, 0, 1]), "sparse_disable_index_value is not 1 for each"),
        )
    ),
    *(
        ("Step 3.7 Flash", {"text_config": {**STEP_3_5, **changes}}, message)
        for changes, message in (
            ({"moe_router_activation": "softmax"}, "moe_router_activation is 'softmax'"),
            ({"rope_theta": [1e4, 1e4]}, "rope_theta has 2 values for 4 layers"),
            ({"moe_layers_enum": "1,x"}, "moe_layers_enum is not a list of layers"),
            ({"swiglu_limits": [-1.0] * 4}, "swiglu_limits is not a list of numbers of 0 or more"),
            ({"swiglu_limits_shared": [1.0] * 4}, "swiglu_limits_shared caps a dense layer"),
            ({"use_rope_layers": [True, True, True, False]}, "use_rope_layers is not true for each layer"),
            ({"sink": True}, "sink is True"),
            ({"zero_centered": False}, "zero_centered is False"),
        )
    ),
    ("dots 3 Note", {"attention_bias": True}, "attention_bias is True"),
    (
        "dots 3 Note",
        {"layer_types": ["conv"] * 4, "use_dsa": None, "per_layer_config": {}},
        "layer_types has .'conv'.; served",
    ),
    ("dots 3 Note", {"per_layer_config": {"2": {"hidden_act": "gelu"}}}, "per_layer_config has hidden_act"),
    ("dots 3 Note", {"moe_layer_freq": [0, 1]}, "moe_layer_freq is not a list of 4"),
    ("dots 3 Note", {"index_head_dim": 4}, "index_head_dim 4 is less than qk_rope_head_dim 8"),
    ("Inkling", {"shared_expert_sink": False}, "shared_expert_sink is False"),
    ("Inkling", {"use_embed_norm": False}, "use_embed_norm is False"),
    ("Inkling", {"gate_activation": "softmax"}, "gate_activation is 'softmax'"),
    ("Laguna XS", {"gating_types": ["per_element"] * 4}, "gating_types is not a list of 'per-head' alone"),
    ("Laguna XS", {"gating_types": "per_head"}, "gating_types is not a list of 'per-head' alone"),
    ("Laguna XS", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("A.X K2", {"gated_norm": False}, "gated_norm is False"),
    ("Inkling", {"swa_head_dim": 32}, "swa_head_dim is 32"),
    ("Inkling", {"layer_types": ["hybrid", "mamba"] * 2}, "layer_types has .'hybrid', 'mamba'.; served"),
    ("Inkling", {"layer_types": None, "local_layer_ids": 3}, "local_layer_ids is not a list"),
    ("Inkling", {"conv_kernel_size": 1}, "conv_kernel_size is 1"),
    ("Inkling", {"swa_num_attention_heads": 5}, "swa_num_attention_heads 5 is no multiple"),
    ("OLMoE", {"clip_qkv": 3.0}, "clip_qkv is 3.0"),
    (
        "DeepSeek-OCR 2",
        {"text_config": {**FAMILIES["DeepSeek-OCR 2"]["text_config"], "use_mla": True}},
        "use_mla is True",
    ),
    ("Hunyuan A13B", {"moe_topk": [3, 3, 2]}, "moe_topk has different values"),
    ("Hunyuan A13B", {"num_shared_expert": 2}, "num_shared_expert 2"),
    ("Hunyuan", {"use_cla": True}, "use_cla is True"),
    ("Apertus", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("Phi 3.5 MoE", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
    ("ERNIE 4.5 MoE", {"moe_gate": "top2_fused"}, "moe_gate is 'top2_fused'"),
    ("North Mini", {"expert_selection_fn": "tanh"}, "expert_selection_fn is 'tanh'"),
    ("EXAONE 4", {"sliding_window_pattern": "LLX", "layer_types": None}, "sliding_window_pattern is 'LLX'"),
    ("Gemma 3 with images", {"text_config": [1]}, "text_config is not an object"),
    ("CodeGen", {"n_head": 2}, "n_head is 2, no multiple of 4"),
    ("GPT-Neo", {"attention_types": [[["global", "local"], 3]]}, "attention_types does not say"),
    ("GPT-Neo", {"attention_types": 7}, "attention_types does not say"),
    ("OPT", {"activation_function": "mish"}, "unsupported activation_function 'mish'"),
    (
        "Qwen3-Next",
        {"linear_num_value_heads": 3},
        "linear_num_value_heads 3 is no multiple of linear_num_key",
    ),
    ("Qwen3-Next", {"layer_types": ["mamba"] * 4}, "layer_types names 'mamba'"),
    ("Qwen 3.5", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("LFM2", {"layer_types": ["conv", "conv", "linear_attention", "conv"]}, "names 'linear_attention'"),
    ("Granite 4 (dense)", {"mamba_n_heads": 7}, "7 heads .mamba_n_heads. of 16 in 1 groups do not make 128"),
    ("Granite 4 (dense)", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ("Bamba", {"time_step_limit": [0.0]}, "time_step_limit is not a list of two numbers"),
    ("Falcon-H1", {"ssm_multipliers": [1.0]}, "ssm_multipliers is not a list of 5 numbers"),
    ("Nemotron-H", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern is 'M-X', not a text of"),
    ("Nemotron 3 (experts)", {"moe_latent_size": -1}, "moe_latent_size is -1"),
    ("Kimi Linear", {"mla_use_nope": False}, "mla_use_nope is False"),
    (
        "Kimi Linear",
        {"linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1]}},
        "each of 4 layers once",
    ),
    ("Kimi Linear", {"linear_attn_config": {"full_attn_layers": [9]}}, "full_attn_layers .* layers, 1 to 4"),
    ("Ling 3.0", {"no_kda_lora": False}, "no_kda_lora is False"),
    (
        "Ling 3.0",
        {"gated_attention_proj_granularity_type": "element_wise"},
        "granularity_type is 'element_wise'",
    ),
    ("Ling 3.0", {"moe_shared_expert_intermediate_size": 7}, "moe_shared_expert_intermediate_size is 7"),
    ("Ling 3.0", {"expert_swiglu_limit_list": [0, 7.0]}, "expert_swiglu_limit_list caps experts"),
    (
        "LFM3",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "partial_rotary_factor": 0.5}}},
        "rope_type is 'yarn'",
    ),
    ("MiniMax-Text-01", {"layer_types": ["conv"] * 4}, "not full or linear attention for each layer"),
    ("MiniMax-Text-01", {"postnorm": False}, "postnorm is False"),
    ("MiniMax-Text-01", {"shared_intermediate_size": [8]}, "shared_intermediate_size is .8."),
    ("RecurrentGemma", {"block_types": None, "_block_types": ["mamba"]}, "block_types is not a list"),
    ("RecurrentGemma", {"block_types": ["mamba"]}, "block_types is not a list of recurrent and attention"),
    ("OLMo Hybrid", {"linear_num_value_heads": 6}, "linear_num_value_heads 6 is no multiple"),
]


# Families whose layers are of several kinds, and config.json with another pattern than that of the weights.
PATTERNS: list[tuple[str, dict[str, Any]]] = [
    ("LFM2", {"layer_types": ["full_attention", "conv", "full_attention", "conv"]}),
    ("LFM3", {"layer_types": ["full_attention", "conv", "conv", "sliding_attention"]}),
    ("Qwen3-Next", {"layer_types": ["full_attention", *["linear_attention"] * 3]}),
    ("Qwen 3.5", {"full_attention_interval": 2}),
    (
        "Qwen 4",
        {"layer_types": [*["linear_attention"] * 3, *["full_attention"] * 2]},
    ),
    ("Granite 4 (dense)", {"layer_types": ["mamba", "attention", "mamba", "mamba"]}),
    ("Bamba", {"attn_layer_indices": [1, 2]}),
    ("Nemotron-H", {"hybrid_override_pattern": "MM-*-"}),
    ("Jamba", {"attn_layer_offset": 1}),
    ("Kimi Linear", {"linear_attn_config": {"full_attn_layers": [2, 3], "kda_layers": [1, 4]}}),
    ("MiniMax-Text-01", {"layer_types": ["full_attention", *["linear_attention"] * 3]}),
    ("OLMo Hybrid", {"layer_types": ["linear_attention", "full_attention"] * 2}),
    ("RecurrentGemma", {"block_types": ["attention", "recurrent", "recurrent"]}),
    ("GLM-5, layers that share a choice", {"indexer_types": ["full"] * 4}),
    ("DeepSeek V4", {"compress_ratios": [0, 4, 4, 128, 4, 0]}),
    ("Qwen 3.5 (experts)", {"full_attention_interval": 2}),
    ("LFM2-MoE", {"layer_types": ["full_attention", "conv", "full_attention", "conv"]}),
    ("Granite 4 (experts)", {"layer_types": ["mamba", "attention", "mamba", "mamba"]}),
    ("Nemotron 3 (experts)", {"hybrid_override_pattern": "MME*E"}),
    ("Nemotron 3 (latent experts)", {"hybrid_override_pattern": "MEM*-"}),
    ("Ling 3.0", {"layer_group_size": 2}),
    ("Inkling", {"layer_types": ["hybrid", "hybrid_sliding"] * 2}),
    ("Inkling", {"mlp_layer_types": ["sparse"] * 4}),
    ("MiniMax M3", {"text_config": {**MINIMAX_M3, "layer_types": None, "moe_layer_freq": [1, 1, 1]}}),
    ("dots 3 Note", {"moe_layer_freq": [0, 0, 1, 1]}),
]


@pytest.mark.parametrize(("family", "changes"), PATTERNS)
def test_a_pattern_of_layers_that_contradicts_the_weights_is_one_line_with_both_numbers(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = make(tmp_path, FAMILIES[family])
    if "linear_attn_config" in changes:
        changes = {
            "linear_attn_config": FAMILIES[family]["linear_attn_config"] | changes["linear_attn_config"]
        }
    with pytest.raises(UnusableModel) as caught:
        recipes.load(FAMILIES[family] | changes, folder, torch.float32, torch.device("cpu"))
    line = str(caught.value)
    # How many tensors are not there, or have another shape, and how many of the file's have no place.
    assert "contradicts config.json: " in line and "\n" not in line
    assert re.search(
        r"lacks \d+ tensors?|\d+ tensors? of another shape|\d+ tensors? without a place", line
    ), line


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_that_shards_do_not_divide_is_one_line_with_both_numbers(family: str) -> None:
    read = read_config(FAMILIES[family])
    assert isinstance(read, DecoderConfig)
    with pytest.raises(UnusableModel) as caught:
        read.state_shapes(TensorGroup(0, 7))
    line = str(caught.value)
    found = re.fullmatch(r"--num-shard 7 (?:does not divide|is no multiple of) .*?(\d+).*", line)
    assert found is not None and "\n" not in line, line


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_a_choice_that_the_recipe_does_not_know_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnusableModel, match=message):
        read_config(FAMILIES[family] | changes)


def test_a_tensor_that_holds_several_parts_is_counted_once(tmp_path: Path) -> None:
    config = FAMILIES["BLOOM"]
    folder = make(tmp_path, config)
    with pytest.raises(UnusableModel) as caught:
        recipes.load(
            config | {"hidden_size": 192, "n_embed": 192}, folder, torch.float32, torch.device("cpu")
        )
    with safe_open(folder / "model.safetensors", "pt") as file:
        count = len(file.keys())
    assert f"contradicts config.json: {count} tensors of another shape: " in str(caught.value)
    assert str(caught.value).count("h.0.self_attention.query_key_value.weight") == 1
