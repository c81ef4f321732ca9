"""GGUF files of every architecture that is read: what is loaded of them is what was in the model, to the last bit, and its configuration is the model's.

The files are written here, with the names of llama.cpp's package and with what its converters do to tensors and fields. With PENSTOCK_LLAMA_CPP, the folder
of a llama.cpp, its own converter makes them, which needs its own Python (PENSTOCK_LLAMA_CPP_PYTHON).
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from families import FAMILIES
from models import make
from safetensors.numpy import load_file

from penstock.gguf import unpack
from penstock.gguf.architectures import ARCHITECTURES
from penstock.gguf.blocks import BLOCKS
from penstock.gguf.pretokenizers import STEPS
from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.parallel.group import ALONE

sys.path.append(str(Path(__file__).parents[2] / "server" / "tests"))  # behind what has the same name here

from gguf_files import tokenizer, write

Tensors = dict[str, Any]
Change = Callable[[Tensors, dict[str, Any]], Tensors]


# What converters do to tensors, by the names of the checkpoint.


def pairs(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Rows of queries and keys in pairs of rotary numbers."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def turned(name: str, rows: Any) -> Any:
        count = next((count for end, count in heads.items() if f"{end}." in name), None)
        if count is None:
            return rows
        return rows.reshape(count, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return {name: turned(name, rows) for name, rows in tensors.items()}


def one_more(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Norms with the 1 that their class adds."""
    has_one = re.compile(r"(?!.*linear_attn).*norm\.weight")
    return {name: one + 1 if has_one.fullmatch(name) else one for name, one in tensors.items()}


def stacked(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """All experts in one."""
    made: Tensors = {}
    for name, one in tensors.items():
        at = re.fullmatch(r"(.*experts)\.(\d+)\.(.*)", name)
        if at is None:
            made[name] = one
        else:
            made.setdefault(f"{at[1]}.{at[3]}", []).append((int(at[2]), one))
    return {
        name: np.stack([each for _, each in sorted(one, key=lambda pair: pair[0])])
        if isinstance(one, list)
        else one
        for name, one in made.items()
    }


def mixtral(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    return {
        name.replace("model.layers.", "layers.").replace("block_sparse_moe", "feed_forward")
        if ".experts.w" in name
        else name: one
        for name, one in stacked(tensors, config).items()
    }


def granite_experts(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    made: Tensors = {}
    for name, one in tensors.items():
        if name.endswith("input_linear.weight"):
            at = name.split(".")[2]
            for kind, part in zip(("gate", "up"), np.split(one, 2, 1), strict=True):
                made[f"blk.{at}.ffn_{kind}_exps.weight"] = part
        else:
            made[name] = one
    return made


def keys_and_values(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    made: Tensors = {}
    keys, values = config["qk_nope_head_dim"], config["v_head_dim"]
    for name, one in stacked(tensors, config).items():
        if name.endswith("kv_b_proj.weight"):
            each = one.reshape(-1, keys + values, one.shape[-1])
            made[name.replace("kv_b_proj", "k_b_proj")] = each[:, :keys].swapaxes(1, 2)
            made[name.replace("kv_b_proj", "v_b_proj")] = each[:, keys:]
        else:
            made[name] = one
    return made


def states(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Of linear attention and short convolutions, what is the same in all of them."""
    made: Tensors = {}
    for name, one in tensors.items():
        if name.endswith("A_log"):
            one = -np.exp(one)
        elif name.endswith(("conv1d.weight", "conv.conv.weight")):
            one = one[:, 0]
        made[name.replace(".dt_bias", ".dt_proj.bias")] = one
    return made


def qwen35(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    keys, size = config["linear_num_key_heads"], config["linear_value_head_dim"]
    of_each, first = config["linear_num_value_heads"] // keys, 2 * keys * config["linear_key_head_dim"]

    def tiled(one: Any, each: int) -> Any:
        return one.reshape(keys, of_each, each, *one.shape[1:]).swapaxes(0, 1).reshape(one.shape)

    made: Tensors = {}
    for name, one in tensors.items():
        if "in_proj_qkv" in name or "conv1d" in name:
            one = np.concatenate((one[:first], tiled(one[first:], size)))
        elif "in_proj_z" in name:
            one = tiled(one, size)
        elif re.search(r"in_proj_[ab]\.|A_log|dt_bias", name):
            one = tiled(one, 1)
        elif "linear_attn.out_proj" in name:
            one = tiled(one.T, size).T
        made[name] = one
    return states(one_more(stacked(made, config), config), config)


def qwen3_next(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    of_each = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    made: Tensors = {}
    for name, one in states(one_more(stacked(tensors, config), config), config).items():
        if name.endswith("in_proj_qkvz.weight"):
            by_head = one.reshape(keys, -1, one.shape[-1])
            parts = np.split(by_head, (size, 2 * size, 2 * size + of_each), 1)
            q, k, v, z = (part.reshape(-1, one.shape[-1]) for part in parts)
            at = name.split(".")[2]
            made |= {f"blk.{at}.attn_qkv.weight": np.concatenate((q, k, v)), f"blk.{at}.attn_gate.weight": z}
        else:
            made[name] = one
    return made


def gpt_oss(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    made: Tensors = {}
    for name, one in tensors.items():
        at = name.split(".")[2] if "layers" in name else ""
        if name.endswith("gate_up_proj"):
            both = one.swapaxes(1, 2)
            made |= {
                f"blk.{at}.ffn_gate_exps.weight": both[:, ::2],
                f"blk.{at}.ffn_up_exps.weight": both[:, 1::2],
            }
        elif name.endswith("gate_up_proj_bias"):
            made |= {f"blk.{at}.ffn_gate_exps.bias": one[:, ::2], f"blk.{at}.ffn_up_exps.bias": one[:, 1::2]}
        elif name.endswith("down_proj"):
            made[f"blk.{at}.ffn_down_exps.weight"] = one.swapaxes(1, 2)
        elif name.endswith("down_proj_bias"):
            made[f"blk.{at}.ffn_down_exps.bias"] = one
        elif name.endswith("sinks"):
            made[f"{name}.weight"] = one
        else:
            made[name] = one
    return made


def gemma4(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    ours = {
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    made: Tensors = {}
    for name, one in tensors.items():
        end = next((end for end in ours if name.endswith(f".{end}")), None)
        made[f"blk.{name.split('.')[2]}.{ours[end]}" if end else name] = one
    rotated = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    half = config["global_head_dim"] // 2
    made["rope_freqs.weight"] = np.where(np.arange(half) < half * rotated, 1.0, 1e30).astype(np.float32)
    return made


def llama3(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    said, size = config["rope_scaling"], config["hidden_size"] // config["num_attention_heads"]
    wave = 2 * np.pi * config["rope_theta"] ** (np.arange(0, size, 2) / size)
    smooth = (said["original_max_position_embeddings"] / wave - said["low_freq_factor"]) / (
        said["high_freq_factor"] - said["low_freq_factor"]
    )
    smooth = np.clip(smooth, 0, 1)
    factors = 1 / ((1 - smooth) / said["factor"] + smooth)
    return pairs(tensors, config) | {"rope_freqs.weight": factors.astype(np.float32)}


def phi3(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    said = config.get("rope_scaling") or {}
    return tensors | {
        f"rope_factors_{kind}.weight": np.array(said[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
        if f"{kind}_factor" in said
    }


def biases_of_choice(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    ends = ("e_score_correction_bias", "expert_bias")
    return {
        f"blk.{name.split('.')[2]}.exp_probs_b.bias" if name.endswith(ends) else name: one
        for name, one in tensors.items()
    }


# And what they write into fields.


def usual(config: dict[str, Any]) -> dict[str, Any]:
    """As the base class of all converters."""
    size = config.get("head_dim")
    made = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "rope.freq_base": float(config["rope_theta"]) if config.get("rope_theta") else None,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps") or config.get("norm_epsilon"),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.sliding_window": config.get("sliding_window"),
        "expert_count": config.get("num_local_experts")
        or config.get("num_experts")
        or config.get("n_routed_experts"),
        "expert_used_count": config.get("num_experts_per_tok") or config.get("top_k_experts"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) in ("yarn", "linear"):
        made |= {
            "rope.scaling.type": scaling.get("rope_type", scaling.get("type")),
            "rope.scaling.factor": float(scaling["factor"]),
            "rope.scaling.original_context_length": scaling.get("original_max_position_embeddings"),
            "rope.scaling.yarn_beta_fast": float(scaling["beta_fast"]) if "beta_fast" in scaling else None,
            "rope.scaling.yarn_beta_slow": float(scaling["beta_slow"]) if "beta_slow" in scaling else None,
            "rope.scaling.yarn_attn_factor": scaling.get("attention_factor"),
        }
    if "layer_types" in config:
        made["attention.sliding_window_pattern"] = [
            one == "sliding_attention" for one in config["layer_types"]
        ]
    return made


def scales(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
        "attention.key_length": None,
        "attention.value_length": None,
    }


def of_deepseek(config: dict[str, Any]) -> dict[str, Any]:
    keys, rotated = config.get("qk_nope_head_dim", 0), config.get("qk_rope_head_dim", 0)
    rank = config.get("kv_lora_rank")
    made = {
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config.get("norm_topk_prob")),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": 2 if config.get("scoring_func", "sigmoid") == "sigmoid" else 1,
    }
    if rank is None:
        return made
    scaling = config.get("rope_scaling") or {}
    return made | {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": keys + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
        "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"]
        if "mscale_all_dim" in scaling
        else None,
    }


def of_states(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": 4,
        "rope.dimension_count": int(config["head_dim"] * config["partial_rotary_factor"]),
    }


def rotated_part(config: dict[str, Any]) -> dict[str, Any]:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"rope.dimension_count": int(size * config.get("partial_rotary_factor", 1.0))}


def of_short_convolutions(config: dict[str, Any]) -> dict[str, Any]:
    kinds = config["layer_types"]
    made = {
        "attention.head_count_kv": [
            config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds
        ],
        "shortconv.l_cache": config["conv_L_cache"],
        "leading_dense_block_count": config.get("num_dense_layers"),
        "expert_gating_func": 2 if "num_experts" in config else None,
    }
    return made | ({} if "num_experts" in config else {"feed_forward_length": 96})


def of_gemma4(config: dict[str, Any]) -> dict[str, Any]:
    is_windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads = config["num_key_value_heads"]
    of_whole = config.get("num_global_key_value_heads") or heads
    shared, inner = config["num_kv_shared_layers"], config["intermediate_size"]
    layers = config["num_hidden_layers"]
    wide = [inner * (1 + (at >= layers - shared)) for at in range(layers)]
    rope = config["rope_parameters"]
    return {
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "attention.head_count_kv": [heads if one else of_whole for one in is_windowed],
        "attention.key_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "feed_forward_length": wide if config["use_double_wide_mlp"] else inner,
    }


@dataclass(frozen=True)
class Case:
    family: str
    changes: tuple[Change, ...] = ()
    more: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}
    config: dict[str, Any] = field(default_factory=dict)
    """Of the family's, what makes of it what such files can say."""
    fields: dict[str, Any] = field(default_factory=dict)


LINEAR = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
ALL_EXPERTS = {"mlp_only_layers": [], "decoder_sparse_step": 1}


def windows_of_gemma3(config: dict[str, Any]) -> dict[str, Any]:
    return {"rope.freq_base_swa": 10000.0, "rope.freq_base": 1000000.0}


CASES: dict[str, list[Case]] = {
    "llama": [
        Case("LLaMA 2", (pairs,)),
        Case("LLaMA 3", (llama3,), config={"rope_scaling": FAMILIES["LLaMA 3"]["rope_scaling"] | {"original_max_position_embeddings": 8192}}),
        Case("Mixtral", (pairs, mixtral)),
    ],
    "qwen2": [Case("Qwen 1.5, Qwen 2")],
    "qwen3": [Case("Qwen 3")],
    "qwen2moe": [Case("Qwen2-MoE", (stacked,), config=ALL_EXPERTS)],
    "qwen3moe": [Case("Qwen3-MoE", (stacked,), config=ALL_EXPERTS)],
    "gemma": [Case("Gemma 1", (one_more,))],
    "gemma2": [Case("Gemma 2", (one_more,), lambda c: {"attn_logit_softcapping": c["attn_logit_softcapping"], "final_logit_softcapping": c["final_logit_softcapping"]}, {"query_pre_attn_scalar": 32})],
    "gemma3": [Case("Gemma 3", (one_more,), windows_of_gemma3, {"layer_types": ["sliding_attention"] * 4, "rope_scaling": None, "query_pre_attn_scalar": 32})],
    "phi3": [
        Case("Phi 4", (phi3,), rotated_part),
        Case("Phi 3.5 mini, Phi 3 128k", (phi3,), lambda c: {**rotated_part(c), "rope.scaling.original_context_length": c["original_max_position_embeddings"]}),
    ],
    "granite": [Case("Granite 3", (pairs,), scales)],
    "smollm3": [Case("SmolLM3", (pairs,), config={"no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4})],
    "olmo2": [Case("OLMo 2"), Case("OLMo 3", config={"rope_scaling": None})],
    "command-r": [Case("Cohere (Command R)", more=lambda c: {"logit_scale": c["logit_scale"]}), Case("Cohere (Command R+)", more=lambda c: {"logit_scale": c["logit_scale"]})],
    "cohere2": [
        Case(
            "Cohere 2 (Command R7B)",
            more=lambda c: {"logit_scale": c["logit_scale"]},
            config={"sliding_window_pattern": 4, "num_hidden_layers": 4},
        )
    ],
    "glm4": [Case("GLM-4 (0414)", more=rotated_part)],
    "exaone4": [Case("EXAONE 4")],
    "seed_oss": [Case("Seed-OSS")],
    "starcoder2": [Case("StarCoder2", config={"sliding_window": 4096, "rope_theta": 100000.0})],
    "nemotron": [Case("Nemotron, Minitron", (one_more,), lambda c: {**rotated_part(c), "attention.layer_norm_epsilon": c["norm_eps"]})],
    "arcee": [Case("Arcee AFM", (pairs,))],
    "ernie4_5": [Case("ERNIE 4.5")],
    "mistral3": [
        Case("Ministral 3", (pairs,), lambda c: of_ministral(c)),
        Case("Mistral", (pairs,)),
    ],
    "olmoe": [Case("OLMoE", (stacked,))],
    "granitemoe": [Case("Granite 3 MoE", (pairs, granite_experts), scales)],
    "glm4moe": [Case("GLM-4.5 Air", (stacked, biases_of_choice), lambda c: {**of_deepseek(c), **rotated_part(c)}), Case("GLM-4.5, 4.6, 4.7", (stacked, biases_of_choice), lambda c: {**of_deepseek(c), **rotated_part(c)})],
    "deepseek2": [
        Case("DeepSeek V2", (keys_and_values,), of_deepseek),
        Case("DeepSeek V2 Lite", (keys_and_values,), of_deepseek),
        Case("DeepSeek V3", (keys_and_values, biases_of_choice), of_deepseek),
        Case("DeepSeek V3", (stacked, biases_of_choice), lambda c: {**of_deepseek(c), "attention.key_length": c["qk_nope_head_dim"] + c["qk_rope_head_dim"], "attention.value_length": c["v_head_dim"]}),
    ],
    "minimax-m2": [Case("MiniMax M2", (mixtral, biases_of_choice), lambda c: {"rope.dimension_count": c["rotary_dim"], "expert_gating_func": 2})],
    "ernie4_5-moe": [Case("ERNIE 4.5 MoE", (stacked, biases_of_choice), lambda c: of_ernie(c))],
    "gpt-oss": [Case("GPT-OSS", (gpt_oss,), lambda c: {"expert_feed_forward_length": c["intermediate_size"]})],
    "qwen35": [Case("Qwen 3.5", (qwen35,), of_states, LINEAR)],
    "qwen35moe": [Case("Qwen 3.5 (experts)", (qwen35,), of_states, LINEAR)],
    "qwen3next": [Case("Qwen3-Next", (qwen3_next,), of_states, LINEAR)],
    "lfm2": [Case("LFM2", (states,), of_short_convolutions)],
    "lfm2moe": [Case("LFM2-MoE", (mixtral, states, biases_of_choice), of_short_convolutions)],
    "gemma4": [Case(name, (gemma4,), of_gemma4) for name in ("Gemma 4 31B", "Gemma 4 26B A4B", "Gemma 4 E2B, E4B")],
}  # fmt: skip


def of_ministral(config: dict[str, Any]) -> dict[str, Any]:
    said = config["rope_parameters"]
    return {
        "rope.freq_base": float(said["rope_theta"]),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(said["factor"]),
        "rope.scaling.original_context_length": said["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(said["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(said["beta_slow"]),
        "rope.scaling.yarn_log_multiplier": float(said["mscale_all_dim"]),
        "attention.temperature_scale": said["llama_4_scaling_beta"],
    }


def of_ernie(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "attention.head_count": config["num_attention_heads"],
    }


EVERY = [
    pytest.param(name, case, id=f"{name}-{case.family}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]


def written(file: Path, architecture: str, case: Case, folder: Path, config: dict[str, Any]) -> Path:
    """A model as its converter would write it."""
    tensors = load_file(folder / "model.safetensors")
    for change in case.changes:
        tensors = change(tensors, config)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    tied = config.get("tie_word_embeddings", config.get("tie_embedding", False)) in (True, None)
    named = {}
    for name, one in tensors.items():
        known = name if name.startswith(("blk.", "rope_")) else names.get_name(name, (".weight", ".bias"))
        assert known is not None, name
        if known != "output.weight" or not tied:
            named[known] = one
    said = {**usual(config), **case.more(config), **case.fields}
    kept = {name: value for name, value in said.items() if value is not None}
    return write(file, named, kept, architecture, tokenizer())


def differences(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Where two configurations say something else, but for what fp32 has rounded."""
    if is_dataclass(ours) and type(ours) is type(theirs):
        parts = ((one.name, getattr(ours, one.name), getattr(theirs, one.name)) for one in fields(ours))
    elif isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        parts = ((str(number), *pair) for number, pair in enumerate(zip(ours, theirs, strict=True)))
    else:
        is_same = ours == theirs
        if isinstance(ours, float) and isinstance(theirs, float):
            is_same = bool(np.isclose(ours, theirs, rtol=1e-6))
        return [] if is_same else [f"{at}: {ours} not {theirs}"]
    return [found for name, one, other in parts for found in differences(one, other, f"{at}.{name}")]


def check_is_same(made: Path, folder: Path) -> None:
    """The same numbers, but for a logarithm's last bit, and the same configuration."""
    ours, theirs = (
        recipes.load(check_folder(one), one, torch.float32, torch.device("cpu"), ALONE)
        for one in (made, folder)
    )
    assert not differences(ours.config, theirs.config)
    mine, others = list(ours.weights()), list(theirs.weights())
    assert len(mine) == len(others)
    for one, other in zip(mine, others, strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def original(folder: Path, case: Case) -> tuple[Path, dict[str, Any]]:
    dropped = {name for name, one in case.config.items() if one is None}
    config = {
        name: one for name, one in {**FAMILIES[case.family], **case.config}.items() if name not in dropped
    }
    return make(folder, config), config


@pytest.mark.parametrize(("architecture", "case"), EVERY)
def test_a_file_is_the_model_that_it_was_made_of(architecture: str, case: Case, tmp_path: Path) -> None:
    folder, config = original(tmp_path / "original", case)
    file = written(tmp_path / "model.gguf", architecture, case, folder, config)
    check_is_same(unpack.obtain(file, tmp_path / "cache"), folder)


def test_every_architecture_is_tried() -> None:
    assert CASES.keys() == ARCHITECTURES.keys()


LLAMA_CPP = os.environ.get("PENSTOCK_LLAMA_CPP")
CONVERT = """
import importlib, pkgutil, runpy, sys
source, folder, out, *flags = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion
for one in pkgutil.iter_modules(conversion.__path__):
    importlib.import_module("conversion." + one.name)
def below(kind):
    for one in kind.__subclasses__():
        yield one
        yield from below(one)
for one in (conversion.base.ModelBase, *below(conversion.base.ModelBase)):
    if "set_vocab" in vars(one):
        one.set_vocab = lambda self: None
sys.argv = ["convert_hf_to_gguf.py", folder, "--outtype", "f32", "--outfile", out, *flags]
runpy.run_path(source + "/convert_hf_to_gguf.py", run_name="__main__")
"""


@pytest.mark.skipif(LLAMA_CPP is None, reason="PENSTOCK_LLAMA_CPP names no folder of llama.cpp")
@pytest.mark.parametrize(("architecture", "case"), EVERY)
def test_a_file_of_llama_cpps_converter_is_the_model(architecture: str, case: Case, tmp_path: Path) -> None:
    folder, config = original(tmp_path / "original", case)
    if case.family == "Cohere 2 (Command R7B)":
        (folder / "config.json").write_text(json.dumps(config | {"rotary_pct": 1.0}))
    vocabulary = {str(at): at for at in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    file = tmp_path / "model.gguf"
    source = Path(str(LLAMA_CPP)) / "src" / "vendor" / "llama.cpp"
    flags = ["--no-nextn"] if architecture in ("qwen35", "qwen35moe", "qwen3next") else []
    python = os.environ.get("PENSTOCK_LLAMA_CPP_PYTHON", sys.executable)
    command = [python, "-c", CONVERT, str(source), str(folder), str(file), *flags]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    with_tokens = tmp_path / "with-tokens"
    with_tokens.mkdir()
    made = tmp_path / "made"
    made.mkdir()
    (made / "model.gguf").symlink_to(file)
    from penstock.gguf.architectures import architecture_of
    from penstock.gguf.container import read_header

    header = read_header(file)
    assert header.metadata["general.architecture"] in (architecture, "ernie4_5-moe", "llama")
    (made / "config.json").write_text(json.dumps(architecture_of(header).config(header)))
    check_is_same(made, folder)


def test_the_documents_name_what_is_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    section = text[text.index("\n## GGUF files\n") :].split("\n## ", 2)[1]
    named = {
        line[2:].partition(" ")[0].rstrip(":"): line for line in section.splitlines() if line.startswith("- ")
    }
    said = re.findall(r"`([^`]+)`", named["Architectures"].partition(":")[2])
    assert said == sorted(ARCHITECTURES)
    types = named["Types"].partition(": ")[2].partition(". ")[0].split(", ")
    assert types == ["F32", "F16", "BF16", *BLOCKS]
    assert f"({len(STEPS)} of them)" in named["Vocabularies"]
