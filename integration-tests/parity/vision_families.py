"""Newer families that read images, of which the text model is compared: entries of `families.py`."""

from typing import Any

from newer_families import (
    EXPERTS,
    GEMMA_4,
    LATENT,
    LLAMA_4,
    MINISTRAL_3,
    MISTRAL_4,
)
from shapes import shaped, with_images

VISION: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}

# The text models of families that have names of their own.
GLM4V = shaped(
    "Glm4vForConditionalGeneration",
    "glm4v_text",
    partial_rotary_factor=0.5,
    rope_scaling={"rope_type": "default", "mrope_section": [1, 1, 2]},
    pad_token_id=0,
)
QWEN3_VL = shaped(
    "Qwen3VLForConditionalGeneration",
    "qwen3_vl_text",
    head_dim=32,
    attention_bias=False,
    rope_theta=5000000.0,
    rope_scaling={"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
)

VISION_LANGUAGE: dict[str, dict[str, Any]] = {
    # As published: the text's fields are beside those of the whole.
    "Qwen2-VL": shaped(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        rope_scaling=MROPE,
        rope_theta=1000000.0,
        use_sliding_window=False,
        max_window_layers=2,
        sliding_window=24,
        vision_config={**VISION, "embed_dim": 32, "mlp_ratio": 2, "patch_size": 14, "hidden_size": 64},
    ),
    "Qwen2.5-VL": shaped(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        rope_scaling=MROPE,
        rope_theta=1000000.0,
        use_sliding_window=False,
        max_window_layers=2,
        sliding_window=24,
        tie_word_embeddings=True,
        vision_config={**VISION, "intermediate_size": 48, "fullatt_block_indexes": [0], "patch_size": 14},
    ),
    "Qwen3-VL": with_images(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        QWEN3_VL,
        {**VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
    "Qwen3-VL-MoE": with_images(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        {
            **QWEN3_VL,
            "model_type": "qwen3_vl_moe_text",
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        },
        {**VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
    "GLM-4.1V": with_images(
        "Glm4vForConditionalGeneration", "glm4v", GLM4V, {**VISION, "intermediate_size": 64}
    ),
    "GLM-4.5V, GLM-4.6V": with_images(
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe",
        {**GLM4V, **EXPERTS, "model_type": "glm4v_moe_text", "head_dim": 16, "attention_bias": True},
        {**VISION, "intermediate_size": 64},
    ),
    "InternVL 3 (Qwen 2)": with_images(
        "InternVLForConditionalGeneration",
        "internvl",
        shaped("Qwen2ForCausalLM", "qwen2", use_sliding_window=False, max_window_layers=2),
        {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "InternVL 3.5 (Qwen 3)": with_images(
        "InternVLForConditionalGeneration",
        "internvl",
        shaped("Qwen3ForCausalLM", "qwen3", head_dim=32, attention_bias=False),
        {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "Kimi K2.5, Kimi-VL": with_images(
        "Kimi_K25ForConditionalGeneration",
        "kimi_k25",
        shaped("DeepseekV3ForCausalLM", "deepseek_v3", **EXPERTS, **LATENT, rope_interleave=True),
        {"model_type": "kimi_k25_vision", "pos_emb_height": 4, "pos_emb_width": 4},
    ),
    "LLaVA 1.5 (Llama)": with_images(
        "LlavaForConditionalGeneration",
        "llava",
        shaped("LlamaForCausalLM", "llama"),
        {"model_type": "clip_vision_model", "projection_dim": 32},
    ),
    "Llama 4 with images": with_images(
        "Llama4ForConditionalGeneration",
        "llama4",
        LLAMA_4,
        {
            "model_type": "llama4_vision_model",
            "projector_input_dim": 64,
            "projector_output_dim": 64,
            "vision_output_dim": 64,
            "intermediate_size": 128,
        },
    ),
    "Gemma 4 with images": with_images(
        "Gemma4ForConditionalGeneration",
        "gemma4",
        GEMMA_4,
        {"model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 2},
    ),
    # The fields of transformers' class.
    "Gemma 4 12B": with_images(
        "Gemma4UnifiedForConditionalGeneration",
        "gemma4_unified",
        {
            **{
                name: value
                for name, value in GEMMA_4.items()
                if name not in ("enable_moe_block", "hidden_size_per_layer_input")
            },
            "model_type": "gemma4_unified_text",
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
        },
        {
            "model_type": "gemma4_unified_vision",
            "mm_embed_dim": 64,
            "mm_posemb_size": 8,
            "output_proj_dims": 64,
        },
    ),
    "Mistral Small 4 with images": with_images(
        "Mistral3ForConditionalGeneration", "mistral3", MISTRAL_4, {"model_type": "pixtral", "head_dim": 16}
    ),
    "Phi 4 multimodal": shaped(
        "Phi4MultimodalForCausalLM",
        "phi4_multimodal",
        hidden_size=128,
        partial_rotary_factor=0.75,
        # Shorter than any prompt: transformers would change the factors within a text.
        original_max_position_embeddings=16,
        rope_scaling={
            "long_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            "short_factor": [1.0] * 12,
            "type": "longrope",
        },
        sliding_window=262144,
        pad_token_id=0,
        tie_word_embeddings=True,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 28,
            "crop_size": 28,
            "patch_size": 14,
            "image_token_id": 197,
        },
        audio_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "ext_pw_out_channel": 32,
            "depthwise_separable_out_channel": 32,
            "nemo_conv_channels": 32,
            "audio_token_id": 198,
        },
    ),
    "Llama 3.2 Vision": with_images(
        "MllamaForConditionalGeneration",
        "mllama",
        shaped(
            "MllamaForCausalLM",
            "mllama_text_model",
            num_hidden_layers=5,
            cross_attention_layers=[1, 3],
            rope_theta=500000.0,
            rope_scaling={
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            pad_token_id=0,
        ),
        {
            "model_type": "mllama_vision_model",
            "attention_heads": 2,
            "num_global_layers": 1,
            "intermediate_layers_indices": [0],
            "supported_aspect_ratios": [[1, 1]],
            "max_num_tiles": 1,
            "vision_output_dim": 64,
        },
    ),
    "GOT-OCR 2": with_images(
        "GotOcr2ForConditionalGeneration",
        "got_ocr2",
        shaped("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True, use_sliding_window=False),
        {"output_channels": 16, "mlp_dim": 48, "window_size": 2, "global_attn_indexes": [0]},
    ),
    "Emu 3": {
        "architectures": ["Emu3ForConditionalGeneration"],
        "model_type": "emu3",
        "text_config": {
            name: value
            for name, value in shaped("", "emu3_text_model", rope_theta=1000000.0, pad_token_id=0).items()
            if name != "architectures"
        },
        "vq_config": {
            "model_type": "emu3_vqgan",
            "base_channels": 32,
            "channel_multiplier": [1],
            "codebook_size": 8,
            "hidden_size": 32,
            "num_res_blocks": 1,
        },
        "vocabulary_map": {"<image>": 198, "<|extra_200|>": 197},
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
    "Fuyu": {
        "architectures": ["FuyuForCausalLM"],
        "model_type": "fuyu",
        "text_config": {
            "model_type": "persimmon",
            "vocab_size": 199,
            "hidden_act": "relu2",
            "hidden_size": 64,
            "intermediate_size": 112,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "partial_rotary_factor": 0.5,
            "qk_layernorm": True,
            "rope_theta": 25000.0,
            "tie_word_embeddings": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
        "image_size": 28,
        "patch_size": 14,
        "num_channels": 3,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
    "Ministral 3 with images": with_images(
        "Mistral3ForConditionalGeneration",
        "mistral3",
        MINISTRAL_3,
        {"model_type": "pixtral", "head_dim": 16},
    ),
}
