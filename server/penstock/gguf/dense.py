"""Models whose layers are all alike, with dense feed-forward layers; and LLaMA's with experts, which have its name. Must not import torch."""

import math
from typing import Any

import numpy as np

from penstock.gguf.architecture import HEADS, KEY_HEADS, Architecture, Config, layer_types, partial_rotary
from penstock.gguf.fields import Fields
from penstock.gguf.names import ATTENTION, FEED_FORWARD, NORMS, Names

# LLaMA 3.1 and its kin.
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192


def _llama(fields: Fields, config: Config) -> None:
    if fields.count("expert_count", 0):
        config |= {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": fields.count("expert_count"),
            "num_experts_per_tok": fields.count("expert_used_count"),
        }
    factors = fields.numbers("rope_freqs.weight")
    if factors is not None:
        config["rope_scaling"] = _llama3(factors, config)


def _llama3(factors: Any, config: Config) -> Config:
    """A table whose frequencies are divided by these numbers."""
    factor = float(factors.max())
    dimensions = 2 * len(factors)
    wave = 2 * math.pi * config["rope_theta"] ** (np.arange(0, dimensions, 2) / dimensions)
    smooth = np.clip((ORIGINAL / wave - LOW) / (HIGH - LOW), 0, 1)
    if np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": ORIGINAL,
        }
    every = [float(one) for one in factors]
    return {
        "rope_type": "longrope",
        "short_factor": every,
        "long_factor": every,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _gemma(fields: Fields, config: Config) -> None:
    config |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(fields: Fields, config: Config) -> None:
    _gemma(fields, config)
    config |= {
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
        "sliding_window": fields.count("attention.sliding_window", 4096),
        # Of 27B it is the width of a head before it was rounded up, which is in no field.
        "query_pre_attn_scalar": config["hidden_size"] // config[HEADS]
        if config["num_hidden_layers"] == 46
        else config["head_dim"],
    }


def _gemma3(fields: Fields, config: Config) -> None:
    _gemma(fields, config)
    layers = config["num_hidden_layers"]
    config |= {
        "model_type": "gemma3_text",
        "sliding_window": fields.count("attention.sliding_window", 1024),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", 10000.0),
        "rope_theta": fields.number("rope.freq_base", 1000000.0),
        "layer_types": layer_types(fields, config, 6),
        # As of Gemma 2 of 27B.
        "query_pre_attn_scalar": config["hidden_size"] // config[HEADS]
        if layers == 62
        else config["head_dim"],
    }
    if fields.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = fields.number("final_logit_softcapping")


def _phi3(fields: Fields, config: Config) -> None:
    original = fields.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    config |= {
        "original_max_position_embeddings": original,
        "sliding_window": fields.count("attention.sliding_window", 0) or None,
        "partial_rotary_factor": partial_rotary(fields, config),
    }
    long, short = (fields.numbers(f"rope_factors_{one}.weight") for one in ("long", "short"))
    if long is not None and short is not None:
        config["rope_scaling"] = {
            "type": "longrope",
            "long_factor": [float(one) for one in long],
            "short_factor": [float(one) for one in short],
        }


def granite(fields: Fields, config: Config) -> None:
    config |= {
        "attention_multiplier": fields.number("attention.scale", 1.0),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
    }


def _smollm3(fields: Fields, config: Config) -> None:
    # llama.cpp has this in its code: each fourth layer without rotary positions.
    layers = config["num_hidden_layers"]
    config |= {
        "no_rope_layers": [int((at + 1) % 4 != 0) for at in range(layers)],
        "no_rope_layer_interval": 4,
    }


def _cohere(fields: Fields, config: Config) -> None:
    config |= {
        "logit_scale": fields.number("logit_scale"),
        "use_qk_norm": fields.has_tensor("blk.0.attn_q_norm.weight"),
        "attention_bias": False,
    }


def _cohere2(fields: Fields, config: Config) -> None:
    config |= {
        "logit_scale": fields.number("logit_scale"),
        "sliding_window": fields.count("attention.sliding_window"),
        "layer_types": layer_types(fields, config, 4),
        "attention_bias": False,
    }


def _glm4(fields: Fields, config: Config) -> None:
    config |= {
        "partial_rotary_factor": partial_rotary(fields, config),
        "attention_bias": fields.has_tensor("blk.0.attn_q.bias"),
    }


def _windowed(fields: Fields, config: Config) -> None:
    """Some layers have a window, where the model has one at all."""
    if fields.count("attention.sliding_window", 0):
        config["sliding_window"] = fields.count("attention.sliding_window")
        config["layer_types"] = layer_types(fields, config, 4)


def _exaone4(fields: Fields, config: Config) -> None:
    _windowed(fields, config)
    factors = fields.numbers("rope_freqs.weight")
    if factors is not None:
        config["rope_scaling"] = _llama3(factors, config)


def _olmo(fields: Fields, config: Config) -> None:
    if fields.count("attention.sliding_window", 0):
        config |= {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"]}
        _windowed(fields, config)


def _seed(fields: Fields, config: Config) -> None:
    config |= {
        "attention_bias": fields.has_tensor("blk.0.attn_q.bias"),
        "attention_out_bias": fields.has_tensor("blk.0.attn_output.bias"),
    }


def _starcoder2(fields: Fields, config: Config) -> None:
    config |= {
        "norm_epsilon": fields.number("attention.layer_norm_epsilon", config.pop("layer_norm_eps", None)),
        "use_bias": True,
        "hidden_act": "gelu_pytorch_tanh",
    }


def _nemotron(fields: Fields, config: Config) -> None:
    config |= {
        "norm_eps": fields.number("attention.layer_norm_epsilon", config.pop("layer_norm_eps", None)),
        "partial_rotary_factor": partial_rotary(fields, config),
        "hidden_act": "relu2",
    }


def _arcee(fields: Fields, config: Config) -> None:
    config["hidden_act"] = "relu2"


def _mistral3(fields: Fields, config: Config) -> None:
    if not fields.has("attention.temperature_scale"):
        config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
        return
    if "rope_scaling" not in config:
        raise fields.wrong("rope.scaling.type", "with attention.temperature_scale it has to be yarn")
    config["rope_parameters"] = config.pop("rope_scaling") | {
        "rope_theta": config.pop("rope_theta"),
        "llama_4_scaling_beta": fields.number("attention.temperature_scale"),
        "mscale": 1.0,
        "mscale_all_dim": fields.number("rope.scaling.yarn_log_multiplier", 1.0),
    }


LLAMA_NAMES = Names({**ATTENTION, **FEED_FORWARD, **NORMS}, pairs={"attn_q": HEADS, "attn_k": KEY_HEADS})
PLAIN_NAMES = Names({**ATTENTION, **FEED_FORWARD, **NORMS})
MIXTRAL = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}
AROUND = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GLM = {
    **NORMS,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
BEHIND = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        Names(
            {**LLAMA_NAMES.in_layer, "ffn_gate_inp": "block_sparse_moe.gate"}, MIXTRAL, pairs=LLAMA_NAMES.pairs
        ),
        _llama,
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", PLAIN_NAMES),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", PLAIN_NAMES),
    "gemma": Architecture(
        "gemma", "GemmaForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **NORMS}, without_one=True), _gemma
    ),
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **AROUND}, without_one=True), _gemma2
    ),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **AROUND}, without_one=True), _gemma3
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        Names({**ATTENTION, **NORMS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}),
        _phi3,
    ),
    "granite": Architecture("granite", "GraniteForCausalLM", LLAMA_NAMES, granite),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", LLAMA_NAMES, _smollm3),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **BEHIND}), _olmo),
    "command-r": Architecture("cohere", "CohereForCausalLM", PLAIN_NAMES, _cohere),
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", PLAIN_NAMES, _cohere2),
    "glm4": Architecture("glm4", "Glm4ForCausalLM", Names({**ATTENTION, **GLM}), _glm4),
    "exaone4": Architecture("exaone4", "Exaone4ForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **BEHIND}), _exaone4),
    "seed_oss": Architecture(
        "seed_oss",
        "SeedOssForCausalLM",
        Names({**ATTENTION, **FEED_FORWARD, **NORMS, "post_attention_norm": "post_attention_layernorm"}),
        _seed,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        Names({**ATTENTION, **NORMS, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
        _starcoder2,
    ),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        Names({**ATTENTION, **FEED_FORWARD, **NORMS}, without_one=True),
        _nemotron,
    ),
    "arcee": Architecture("arcee", "ArceeForCausalLM", LLAMA_NAMES, _arcee),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM", PLAIN_NAMES),
    "mistral3": Architecture("ministral3", "Ministral3ForCausalLM", LLAMA_NAMES, _mistral3),
}  # fmt: skip
"""By `general.architecture`."""
