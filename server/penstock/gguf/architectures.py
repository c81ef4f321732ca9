"""Every `general.architecture` that is read: its config.json, and the names of its tensors. Must not import torch.

What the fields are called: `gguf-py/gguf/constants.py` of llama.cpp; what a converter writes into them, and does to tensors: its `conversion`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import UnusableModel
from penstock.gguf.container import Header
from penstock.gguf.fields import ARCHITECTURE, Fields
from penstock.gguf.layout import Layout
from penstock.gguf.names import ATTENTION, EXPERTS, FEED_FORWARD, NORMS, Names

Config = dict[str, Any]
HEADS, KEY_HEADS = "num_attention_heads", "num_key_value_heads"


@dataclass(frozen=True)
class Architecture:
    """What is read of the files of one architecture."""

    model_type: str
    kind: str
    """The class, as `architectures` of config.json has it."""
    names: Names
    more: Callable[[Fields, Config], None] | None = None
    """Adds what only this family has to config.json. Raises UnusableModel."""

    def config(self, header: Header) -> Config:
        """config.json, as transformers would save it. Raises UnusableModel, naming the field of the metadata."""
        fields = Fields(header)
        made = _common(fields) | {"model_type": self.model_type, "architectures": [self.kind]}
        if self.more is not None:
            self.more(fields, made)
        return {name: value for name, value in made.items() if value is not None}

    def layout(self, header: Header, config: Config) -> Layout:
        """Of what each tensor is made that the recipe asks for. The file need not have them all: what is missing is found where it is asked for."""
        return self.names.layout(
            header, {name: config[name] for name in (HEADS, KEY_HEADS) if name in config}
        )


def _common(fields: Fields) -> Config:
    heads = fields.count("attention.head_count")
    made: Config = {
        "vocab_size": fields.rows_of("token_embd.weight"),
        "hidden_size": fields.count("embedding_length"),
        "num_hidden_layers": fields.count("block_count"),
        "intermediate_size": fields.count("feed_forward_length", 0) or None,
        HEADS: heads,
        KEY_HEADS: fields.count("attention.head_count_kv", heads),
        "head_dim": fields.count("attention.key_length", 0) or None,
        "max_position_embeddings": fields.count("context_length"),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": not fields.has_tensor("output.weight"),
    }
    if fields.has("attention.layer_norm_rms_epsilon"):
        made["rms_norm_eps"] = fields.number("attention.layer_norm_rms_epsilon")
    scaling = _scaling(fields)
    if scaling is not None:
        made["rope_scaling"] = scaling
    return made


def _scaling(fields: Fields) -> Config | None:
    """A rotary table that is stretched, as fields say it."""
    kind = fields.value("rope.scaling.type")
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        made: Config = {
            "rope_type": "yarn",
            "factor": fields.number("rope.scaling.factor"),
            "original_max_position_embeddings": fields.count("rope.scaling.original_context_length"),
        }
        for name, ours in (
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
            ("yarn_attn_factor", "attention_factor"),
        ):
            if fields.has(f"rope.scaling.{name}"):
                made[ours] = fields.number(f"rope.scaling.{name}")
        return made
    if kind not in (None, "none", "longrope"):
        raise fields.wrong("rope.scaling.type", "linear, yarn and longrope are read")
    return None


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


def _experts(fields: Fields, config: Config) -> None:
    config |= {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(fields: Fields, config: Config) -> None:
    _experts(fields, config)
    config["shared_expert_intermediate_size"] = fields.count("expert_shared_feed_forward_length")
    config["norm_topk_prob"] = False


def _qwen3_moe(fields: Fields, config: Config) -> None:
    _experts(fields, config)
    config["norm_topk_prob"] = True


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
        "layer_types": ["sliding_attention" if (at + 1) % 6 else "full_attention" for at in range(layers)],
        # As of Gemma 2 of 27B.
        "query_pre_attn_scalar": config["hidden_size"] // config[HEADS]
        if layers == 62
        else config["head_dim"],
    }
    if fields.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = fields.number("final_logit_softcapping")


def _phi3(fields: Fields, config: Config) -> None:
    original = fields.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    size = config["head_dim"] or config["hidden_size"] // config[HEADS]
    config |= {
        "original_max_position_embeddings": original,
        "sliding_window": fields.count("attention.sliding_window", 0) or None,
        "partial_rotary_factor": fields.count("rope.dimension_count", size) / size,
    }
    long, short = (fields.numbers(f"rope_factors_{one}.weight") for one in ("long", "short"))
    if long is not None and short is not None:
        config["rope_scaling"] = {
            "type": "longrope",
            "long_factor": [float(one) for one in long],
            "short_factor": [float(one) for one in short],
        }


def _granite(fields: Fields, config: Config) -> None:
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


LLAMA_NAMES = Names({**ATTENTION, **FEED_FORWARD, **NORMS}, pairs={"attn_q": HEADS, "attn_k": KEY_HEADS})
PLAIN_NAMES = Names({**ATTENTION, **FEED_FORWARD, **NORMS})
MIXTRAL = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}
QWEN_EXPERTS = Names({**ATTENTION, **NORMS, "ffn_gate_inp": "mlp.gate"}, EXPERTS)
SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
AROUND = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
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
    "qwen2moe": Architecture(
        "qwen2_moe", "Qwen2MoeForCausalLM", Names({**QWEN_EXPERTS.in_layer, **SHARED}, EXPERTS), _qwen2_moe
    ),
    "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", QWEN_EXPERTS, _qwen3_moe),
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
    "granite": Architecture("granite", "GraniteForCausalLM", LLAMA_NAMES, _granite),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", LLAMA_NAMES, _smollm3),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", Names({**ATTENTION, **FEED_FORWARD, **BEHIND})),
}  # fmt: skip
"""By `general.architecture`."""


def architecture_of(header: Header) -> Architecture:
    """Raises UnusableModel for one that is not read."""
    name = header.metadata.get(ARCHITECTURE)
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnusableModel(
            f"{ARCHITECTURE} is {str(name)[:80]!r}, and of GGUF files {', '.join(sorted(ARCHITECTURES))} are read: serve the model's safetensors files"
        )
    return found
