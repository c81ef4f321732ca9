"""What entries of families are made of."""

from typing import Any

# Names that most families share.
SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    # A generation that ended early would compare less.
    "eos_token_id": None,
    "bos_token_id": 1,
}


# Said to be null; a change to None leaves any other out.
NULLS = ("eos_token_id", "q_lora_rank")


def shaped(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    """A configuration with the shared names and these changes."""
    fields = {"architectures": [architecture], "model_type": model_type, **SHAPE, **changes}
    return {name: value for name, value in fields.items() if value is not None or name in NULLS}


def with_images(
    architecture: str, model_type: str, text: dict[str, Any], vision: dict[str, Any]
) -> dict[str, Any]:
    """A model that reads images, too, and whose text is that of another."""
    encoder = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": {name: value for name, value in text.items() if name != "architectures"},
        "vision_config": {**encoder, "image_size": 28, "patch_size": 14} | vision,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": text.get("tie_word_embeddings", True),
    }


def with_sound(
    architecture: str,
    model_type: str,
    text: dict[str, Any],
    audio: dict[str, Any],
    part: str = "audio_config",
    **more: Any,
) -> dict[str, Any]:
    """A model that reads sound, too, and whose text is that of another; `part` is what reads it."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": {name: value for name, value in text.items() if name != "architectures"},
        part: audio,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": text.get("tie_word_embeddings", True),
        **more,
    }


# Latent attention with experts, as DeepSeek V2 has them.
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 4,
    "topk_group": 2,
    "attention_bias": False,
}
