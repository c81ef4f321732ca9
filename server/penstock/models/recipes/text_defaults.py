"""What the classes of transformers 5.23 have where published models say nothing of their text.

A model with images that transformers 4 saved has in its `text_config` only what differs from the class's defaults, which
`vision_language` therefore puts below what is there. Kinds that only transformers 5 knows are saved in full.
"""

from typing import Any


def sizes(
    vocabulary: int, width: int, feed_forward: int, layers: int, heads: int, **further: Any
) -> dict[str, Any]:
    """The five that nearly every kind has, and further fields."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **further,
    }


# By the text model's `model_type`.
DEFAULTS: dict[str, dict[str, Any]] = {
    "aria_text": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "cohere": sizes(256000, 8192, 22528, 40, 64, layer_norm_eps=1e-05, max_position_embeddings=8192),
    "cohere2": sizes(256000, 8192, 22528, 40, 64, layer_norm_eps=1e-05, max_position_embeddings=8192),
    "cosmos3_edge_text": sizes(131072, 2048, 9216, 28, 16, head_dim=128, num_key_value_heads=8),
    "deepseek_v2": sizes(
        102400, 4096, 11008, 32, 32, n_routed_experts=64, n_shared_experts=2, q_lora_rank=1536
    ),
    "deepseek_v3": sizes(
        129280,
        7168,
        18432,
        61,
        128,
        first_k_dense_replace=3,
        max_position_embeddings=4096,
        moe_intermediate_size=2048,
        n_group=8,
        n_routed_experts=256,
        n_shared_experts=1,
        num_key_value_heads=128,
        q_lora_rank=1536,
        topk_group=4,
    ),
    "emu3_text_model": sizes(
        184622, 4096, 14336, 32, 32, max_position_embeddings=9216, num_key_value_heads=8
    ),
    "ernie4_5_vl_moe_text": sizes(103424, 2560, 12288, 28, 20, num_key_value_heads=4),
    "exaone4": sizes(102400, 4096, 16384, 32, 32, num_key_value_heads=32, sliding_window=4096),
    "gemma": sizes(
        256000, 3072, 24576, 28, 16, head_dim=256, max_position_embeddings=8192, num_key_value_heads=16
    ),
    "gemma2": sizes(
        256000,
        2304,
        9216,
        26,
        8,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        head_dim=256,
        max_position_embeddings=8192,
        num_key_value_heads=4,
    ),
    "gemma3_text": sizes(262208, 2304, 9216, 26, 8, head_dim=256, num_key_value_heads=4),
    "gemma4_unified_text": {"max_position_embeddings": 262144},
    "glm4": sizes(
        151552,
        4096,
        13696,
        40,
        32,
        attention_bias=True,
        head_dim=128,
        num_key_value_heads=2,
        rms_norm_eps=1.5625e-07,
    ),
    "glm4v_text": sizes(
        151552, 4096, 13696, 40, 32, max_position_embeddings=32768, num_key_value_heads=2, rms_norm_eps=1e-05
    ),
    "glm_ocr_text": sizes(59392, 1024, 4096, 16, 16, num_key_value_heads=8, rms_norm_eps=1e-05),
    "gpt_oss": sizes(
        201088,
        2880,
        2880,
        36,
        64,
        head_dim=64,
        max_position_embeddings=131072,
        num_key_value_heads=8,
        rms_norm_eps=1e-05,
    ),
    "granite": sizes(32000, 4096, 11008, 32, 32, max_position_embeddings=2048, rms_norm_eps=1e-06),
    "granite4_vision_text": sizes(32000, 4096, 11008, 32, 32),
    "granite_docling_text": sizes(
        133800,
        1024,
        2048,
        28,
        16,
        attention_multiplier=0.015625,
        embedding_multiplier=12.0,
        logits_scaling=4.0,
        max_position_embeddings=32768,
        num_key_value_heads=4,
        residual_multiplier=0.263,
        rms_norm_eps=1e-05,
    ),
    "hunyuan_vl_text": sizes(290943, 4096, 11008, 32, 32),
    "lfm2": {
        "vocab_size": 65536,
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "lfm2_moe": {
        "vocab_size": 65536,
        "hidden_size": 2048,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "lfm3": sizes(128000, 2048, 7680, 24, 16, head_dim=128, num_key_value_heads=4),
    "llama": sizes(32000, 4096, 11008, 32, 32, max_position_embeddings=2048, rms_norm_eps=1e-06),
    "llama4_text": sizes(202048, 5120, 8192, 48, 40, head_dim=128, num_key_value_heads=8),
    "mistral": sizes(
        32000,
        4096,
        14336,
        32,
        32,
        max_position_embeddings=131072,
        num_key_value_heads=8,
        rms_norm_eps=1e-06,
        sliding_window=4096,
    ),
    "opt": {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
    },
    "paddleocr_vl_text": sizes(103424, 1024, 3072, 18, 16, head_dim=128, num_key_value_heads=2),
    "persimmon": sizes(262144, 4096, 16384, 36, 64),
    "phi3": sizes(32064, 3072, 8192, 32, 32, max_position_embeddings=4096),
    "qwen2": sizes(
        151936, 4096, 22016, 32, 32, max_position_embeddings=32768, num_key_value_heads=32, rms_norm_eps=1e-06
    ),
    "qwen2_5_omni_text": sizes(
        152064, 3584, 18944, 28, 28, max_position_embeddings=32768, num_key_value_heads=4
    ),
    "qwen2_5_vl_text": sizes(
        152064, 8192, 29568, 80, 64, max_position_embeddings=32768, num_key_value_heads=8, rms_norm_eps=1e-05
    ),
    "qwen2_vl_text": sizes(
        152064, 8192, 29568, 80, 64, max_position_embeddings=32768, num_key_value_heads=8, rms_norm_eps=1e-05
    ),
    "qwen3": sizes(
        151936, 4096, 22016, 32, 32, head_dim=128, max_position_embeddings=32768, num_key_value_heads=32
    ),
    "qwen3_5_moe_text": {
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 2,
    },
    "qwen3_5_text": sizes(
        248320, 4096, 12288, 32, 16, head_dim=256, max_position_embeddings=32768, num_key_value_heads=4
    ),
    "qwen3_moe": sizes(
        151936,
        2048,
        6144,
        24,
        32,
        max_position_embeddings=32768,
        moe_intermediate_size=768,
        num_experts_per_tok=8,
        num_key_value_heads=4,
        num_local_experts=128,
    ),
    "qwen3_omni_moe_text": sizes(
        3584,
        2048,
        18944,
        28,
        28,
        max_position_embeddings=32768,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        num_experts=128,
        num_experts_per_tok=8,
        num_key_value_heads=4,
    ),
    "qwen3_vl_moe_text": sizes(
        151936,
        2048,
        5632,
        24,
        16,
        max_position_embeddings=128000,
        moe_intermediate_size=1408,
        num_key_value_heads=16,
    ),
    "qwen3_vl_text": sizes(
        151936, 4096, 22016, 32, 32, head_dim=128, max_position_embeddings=128000, num_key_value_heads=32
    ),
    "smollm3": sizes(128256, 2048, 11008, 36, 16, max_position_embeddings=32768, num_key_value_heads=4),
}

# The text of models whose config.json says nothing of it, by the `model_type` of the whole.
UNSAID: dict[str, dict[str, Any]] = {
    # As transformers' class has it; NeMo keeps it in a file beside it.
    "nemo_speechlm": {
        "vocab_size": 131072,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 2.5,
    },
}

# Fields that a family's text configuration leaves out, since its code says them, and that its class of today has under another name.
SAID_BY_CODE: dict[str, dict[str, Any]] = {
    "cohere": {"rope_theta": 500000.0},
    "emu3_text_model": {"rope_theta": 1000000.0, "rms_norm_eps": 1e-5},
    "glm4v_moe_text": {"attention_bias": True},
    "glm_ocr_text": {"partial_rotary_factor": 1.0},
    "glm4v_text": {"attention_bias": True},
    "gpt_oss": {
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "persimmon": {"rope_theta": 25000.0},
    "qwen2_5_omni_text": {"rope_theta": 1000000.0},
    "qwen2_5_vl_text": {"rope_theta": 1000000.0},
    "qwen2_vl_text": {"rope_theta": 1000000.0},
    "qwen3_omni_moe_text": {"rope_theta": 1000000.0},
    "qwen3_vl_text": {"rope_theta": 500000.0},
}
