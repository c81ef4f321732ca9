"""Small configurations of any causal language model that transformers knows, made from the defaults of its class."""

import json
from importlib import import_module
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 24,
    "attention_chunk_size": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# A decoder without the encoder that its configuration describes, too.
ALONE: dict[str, Any] = {
    "is_encoder_decoder": False,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 112,
    "decoder_ffn_dim": 112,
    "scale_embedding": True,
}

# What the rules do not give.
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "mbart",
            "mvp",
            "pegasus",
            "plbart",
        ),
        ALONE,
    ),
    "big_bird": {"attention_type": "original_full"},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "logit_scale": 0.5,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "codegen": {"rotary_dim": 8},
    # Behind this many tokens keys are chosen, which is not served.
    "doge": {"keep_window_size": 400},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 24},
    # Its class has several of each number, by layers, and so is asked for none.
    "dots3_note_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 24,
        "swa_kv_lora_rank": 32,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
        "shared_experts_intermediate_size": 32,
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_shared_experts": 1},
    # Layers that take keys and values from another.
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 199,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    # Layers whose heads are longer than others'.
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}},
        "vocab_size_per_layer_input": 199,
        "hidden_size_per_layer_input": 16,
    },
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2},
    "rwkv": {"rescale_every": 2},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "head_dim": 32,
        "num_key_value_heads": 4,
    },
    # transformers holds dt at least at time_step_min where it computes several tokens at once, and not where it decodes.
    "zamba2": {
        "time_step_min": 1e-9,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention"],
        "head_dim": 32,
        "num_key_value_heads": 4,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "chunk_size": 16,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 8,
        "use_mem_rope": True,
    },
    # As published: one expert for a token.
    "zaya": {
        "layer_types": ["hybrid", "hybrid_sliding"] * 2,
        "sliding_window": 24,
        "num_experts_per_tok": 1,
        "router_hidden_size": 16,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "ministral": {"head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    # Two layers: a state is a matrix for each head, and sizes come in sixty-fours.
    "xlstm": {
        "hidden_size": 128,
        "embedding_dim": 128,
        "num_hidden_layers": 2,
        "num_blocks": 2,
        "num_heads": 2,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}

LARGEST = 20_000_000  # parameters


class NotMade(Exception):
    """No small configuration was found."""


def small_config(model_type: str) -> dict[str, Any]:
    """A config.json. Raises NotMade."""
    transformers: Any = import_module("transformers")
    kind = transformers.CONFIG_MAPPING[model_type]
    try:
        made = _made(kind, model_type)
        model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    except Exception as error:
        raise NotMade(f"{type(error).__name__}: {error}") from error
    config: dict[str, Any] = json.loads(made.to_json_string(use_diff=True))
    config["architectures"] = [model.__name__]
    config["model_type"] = model_type
    return config


def _made(kind: Any, model_type: str) -> Any:
    default = kind()
    values = {name: value for name, value in SMALL.items() if _has(default, name)}
    if "qk_rope_head_dim" in values:  # latent attention: every head has a key, in two parts
        values.pop("head_dim", None)
        values["num_key_value_heads"] = values.get("num_attention_heads", SMALL["num_attention_heads"])
    if _has(default, "is_decoder"):
        values["is_decoder"] = True
    rope = getattr(default, "rope_parameters", None)
    if isinstance(rope, dict) and "rope_type" in rope and not rope.get("rope_theta"):
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    special = SPECIAL.get(model_type, {})
    kinds = getattr(default, "layer_types", None) or []
    if len(set(kinds)) > 1 and "num_hidden_layers" in values and "layers_block_type" not in special:
        # As many layers of each kind, one after the other.
        order = list(dict.fromkeys(kinds))
        values["layer_types"] = [order[at % len(order)] for at in range(4)]
    values.update(special)
    while True:
        try:
            return kind(**values)
        except AttributeError as error:  # a property of the class, which nobody sets
            name = next((name for name in values if f"'{name}'" in str(error)), None)
            if name is None or "setter" not in str(error):
                raise
            del values[name]


def _has(default: Any, name: str) -> bool:
    """Whether the class sets it, or leaves it to be derived."""
    try:
        value = getattr(default, name)
    except Exception:  # that there is none, or one for each layer
        return name == "head_dim"
    return value is not None or name in (
        "num_key_value_heads",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    )


def check_size(config: dict[str, Any]) -> None:
    """Raises NotMade for a model that is not small after all."""
    transformers: Any = import_module("transformers")
    options = {name: value for name, value in config.items() if name != "model_type"}
    try:
        with torch.device("meta"):
            read = transformers.AutoConfig.for_model(config["model_type"], **options)
            model = transformers.AutoModelForCausalLM.from_config(read)
    except Exception as error:
        raise NotMade(f"{type(error).__name__}: {error}") from error
    count = sum(p.numel() for p in model.parameters())
    if count > LARGEST:
        raise NotMade(f"{count:,} parameters")
