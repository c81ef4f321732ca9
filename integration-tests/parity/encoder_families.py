"""Models that read images or sound beside a text model of another family, as published: entries of `families.py`."""

from typing import Any

from shapes import shaped, with_images, with_sound
from vision_families import VISION as ENCODER

CLIP: dict[str, Any] = {"model_type": "clip_vision_model", "projection_dim": 32}
SIGLIP: dict[str, Any] = {"model_type": "siglip_vision_model"}
QFORMER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "encoder_hidden_size": 32,
    "cross_attention_frequency": 1,
}
WHISPER: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "num_mel_bins": 8,
    "max_source_positions": 16,
}
SPEECH: dict[str, Any] = {
    "hidden_dim": 32,
    "num_layers": 1,
    "num_heads": 2,
    "dim_head": 16,
    "input_dim": 8,
    "output_dim": 8,
    "context_size": 8,
}
SOUND_TOKENS: dict[str, Any] = {
    "hidden_size": 8,
    "num_filters": 4,
    "downsampling_ratios": [2, 2],
    "depths": [1, 1, 1],
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def with_encoders(text: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Around these families."""
    return {
        "DeepSeek-VL 7B": {
            **with_images(
                "DeepseekVLHybridForConditionalGeneration", "deepseek_vl_hybrid", text["LLaMA 2"], SIGLIP
            ),
            "high_res_vision_config": {
                "model_type": "sam_vision_model",
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
                "mlp_dim": 48,
                "window_size": 2,
                "global_attn_indexes": [0],
            },
        },
        "Janus": {
            **with_images(
                "JanusForConditionalGeneration",
                "janus",
                text["LLaMA 2"],
                {"num_image_tokens": 4, "projection_dim": 64},
            ),
            "vq_config": {
                "base_channels": 32,
                "channel_multiplier": [1],
                "num_embeddings": 8,
                "embed_dim": 8,
                "latent_channels": 32,
                "num_res_blocks": 1,
                "image_token_embed_dim": 64,
                "projection_dim": 64,
                "num_patches": 4,
            },
        },
        "ViP-LLaVA": {
            **with_images(
                "VipLlavaForConditionalGeneration",
                "vipllava",
                text["LLaMA 2"],
                {**CLIP, "num_hidden_layers": 2},
            ),
            "vision_feature_layers": [-1],
        },
        "Video-LLaVA": with_images(
            "VideoLlavaForConditionalGeneration", "video_llava", text["LLaMA 2"], CLIP
        ),
        "LLaVA-NeXT-Video": with_images(
            "LlavaNextVideoForConditionalGeneration", "llava_next_video", text["LLaMA 2"], CLIP
        ),
        "BLIP-2": {
            **with_images("Blip2ForConditionalGeneration", "blip-2", text["OPT"], {}),
            "qformer_config": QFORMER,
            "num_query_tokens": 4,
        },
        "InstructBLIP": {
            **with_images("InstructBlipForConditionalGeneration", "instructblip", text["LLaMA 2"], {}),
            "qformer_config": QFORMER,
            "num_query_tokens": 4,
        },
        "InstructBLIP-Video": {
            **with_images(
                "InstructBlipVideoForConditionalGeneration", "instructblipvideo", text["LLaMA 2"], {}
            ),
            "qformer_config": QFORMER,
            "num_query_tokens": 4,
        },
        "Granite 4 Vision": {
            **with_images(
                "Granite4VisionForConditionalGeneration",
                "granite4_vision",
                {**text["Granite 3"], "model_type": "granite4_vision_text"},
                {**CLIP, "hidden_size": 64},
            ),
            "qformer_config": QFORMER,
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]],
        },
        "Granite Docling": with_images(
            "GraniteDoclingForConditionalGeneration",
            "granite_docling",
            {**text["Granite 3"], "model_type": "granite_docling_text", "pad_token_id": 0},
            {"out_hidden_size": 64},
        ),
        "Cohere 2 Vision": with_images(
            "Cohere2VisionForConditionalGeneration", "cohere2_vision", text["Cohere 2 (Command R7B)"], SIGLIP
        ),
        "Command A+": with_images(
            "Cohere2VisionForConditionalGeneration",
            "cohere2_vision",
            # Its class may have a dense layer before the others.
            {
                **{
                    name: value
                    for name, value in text["North Mini"].items()
                    if name not in ("layer_types", "rms_norm_eps")
                },
                "architectures": [""],
                "num_shared_experts": 2,
                "shared_expert_combination_strategy": "average",
                "norm_topk_prob": True,
                "sliding_window_pattern": 4,
            },
            SIGLIP,
        ),
        "Aya Vision": with_images(
            "AyaVisionForConditionalGeneration", "aya_vision", text["Cohere 2 (Command R7B)"], SIGLIP
        ),
        "Qianfan-OCR": with_images(
            "QianfanOCRForConditionalGeneration",
            "qianfan_ocr",
            text["Qwen 3"],
            {"image_size": [28, 28], "patch_size": [14, 14]},
        ),
        "Cosmos 3": with_images(
            "Cosmos3OmniForConditionalGeneration",
            "cosmos3_omni",
            text["Qwen3-VL"]["text_config"],
            {**ENCODER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        ),
        "Cosmos 3 Edge": with_images(
            "Cosmos3EdgeForConditionalGeneration",
            "cosmos3_edge",
            shaped(
                "",
                "cosmos3_edge_text",
                hidden_act="relu2",
                head_dim=32,
                rope_parameters={"rope_type": "default", "rope_theta": 1e8, "mrope_section": [6, 5, 5]},
                rope_theta=None,
            ),
            {**ENCODER},
        ),
        "GLM-OCR": with_images(
            "GlmOcrForConditionalGeneration",
            "glm_ocr",
            shaped(
                "",
                "glm_ocr_text",
                num_nextn_predict_layers=1,
                rope_scaling={"rope_type": "default", "mrope_section": [2, 3, 3]},
                pad_token_id=0,
            ),
            {**ENCODER, "intermediate_size": 48},
        ),
        "PaddleOCR-VL": with_images(
            "PaddleOCRVLForConditionalGeneration",
            "paddleocr_vl",
            shaped(
                "",
                "paddleocr_vl_text",
                head_dim=32,
                tie_word_embeddings=True,
                use_bias=False,
                rope_theta=500000.0,
                rope_scaling={"mrope_section": [4, 6, 6], "rope_type": "default"},
            ),
            {},
        ),
        "ERNIE 4.5 VL": with_images(
            "Ernie4_5_VLMoeForConditionalGeneration",
            "ernie4_5_vl_moe",
            shaped(
                "",
                "ernie4_5_vl_moe_text",
                tie_word_embeddings=True,
                use_bias=False,
                rope_theta=500000.0,
                moe_intermediate_size=[24, 16],
                moe_k=3,
                moe_num_experts=8,
                moe_num_shared_experts=2,
                moe_layer_start_index=1,
                rope_scaling={"rope_type": "default", "mrope_section": [3, 3, 2]},
            ),
            {"depth": 1, "hidden_size": 32, "num_heads": 2},
        ),
        "Hunyuan VL": with_images(
            "HunYuanVLForConditionalGeneration",
            "hunyuan_vl",
            shaped(
                "",
                "hunyuan_vl_text",
                head_dim=16,
                pad_token_id=0,
                tie_word_embeddings=True,
                rope_scaling={
                    "alpha": 1000.0,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "factor": 1.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "type": "xdrope",
                    "xdrope_section": [2, 2, 2, 2],
                },
            ),
            {},
        ),
        "Molmo 2": {
            **with_images(
                "Molmo2ForConditionalGeneration",
                "molmo2",
                shaped(
                    "",
                    "molmo2_text",
                    head_dim=16,
                    additional_vocab_size=8,
                    attention_bias=False,
                    qk_norm_type="qwen3",
                ),
                {"image_size": [28, 28]},
            ),
            "adapter_config": {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "intermediate_size": 48,
                "text_hidden_size": 64,
                "vision_feature_layer": [-1],
            },
        },
        "DeepSeek-OCR 2": {
            **with_images(
                "DeepseekOcr2ForConditionalGeneration",
                "deepseek_ocr2",
                shaped(
                    "",
                    "deepseek_ocr2_text",
                    rms_norm_eps=1e-6,
                    num_key_value_heads=4,
                    n_routed_experts=8,
                    n_shared_experts=2,
                    num_experts_per_tok=3,
                    moe_intermediate_size=24,
                    mlp_layer_types=["dense", "sparse", "sparse"],
                    n_group=1,
                    topk_group=1,
                ),
                {},
            ),
            "vision_config": {
                "sam_config": {
                    "hidden_size": 32,
                    "output_channels": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "image_size": 64,
                    "patch_size": 16,
                    "mlp_dim": 48,
                    "window_size": 2,
                    "global_attn_indexes": [0],
                },
                "encoder_config": {
                    "hidden_size": 32,
                    "intermediate_size": 48,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 2,
                },
            },
        },
        "Aria": with_images(
            "AriaForConditionalGeneration",
            "aria",
            shaped(
                "", "aria_text", intermediate_size=24, moe_num_experts=8, moe_topk=3, moe_num_shared_experts=2
            ),
            {"model_type": "idefics3_vision"},
        ),
        "Cohere Compass": with_images(
            "CohereCompassForConditionalGeneration",
            "cohere_compass",
            shaped(
                "",
                "cohere_compass_text",
                tie_word_embeddings=True,
                sliding_window=24,
                layer_norm_eps=1e-5,
                head_dim=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                rope_theta=None,
                rope_parameters={
                    k: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
                    for k in ("sliding_attention", "full_attention")
                },
            ),
            {},
        ),
        "HyperCLOVA X SEED Vision": with_images(
            "HyperCLOVAXVisionV2ForConditionalGeneration",
            "hyperclovax_vision_v2",
            shaped(
                "",
                "hyperclovax",
                head_dim=16,
                embedding_multiplier=3.0,
                logits_scaling=0.5,
                residual_multiplier=0.7,
                attention_multiplier=0.2,
                use_post_norm=True,
            ),
            {
                "model_type": "qwen2_5_vl_vision",
                "depth": 1,
                "hidden_size": 32,
                "num_heads": 2,
                "out_hidden_size": 64,
                "intermediate_size": 48,
                "fullatt_block_indexes": [0],
            },
        ),
        # sound
        "Qwen2-Audio": with_sound(
            "Qwen2AudioForConditionalGeneration",
            "qwen2_audio",
            {**text["Qwen 1.5, Qwen 2"], "tie_word_embeddings": False},
            {**WHISPER, "model_type": "qwen2_audio_encoder"},
        ),
        "Qwen3-ASR": with_sound(
            "Qwen3ASRForConditionalGeneration",
            "qwen3_asr",
            {**text["Qwen 3"], "tie_word_embeddings": True},
            {**WHISPER, "downsample_hidden_size": 8, "output_dim": 64, "n_window": 4, "conv_chunksize": 4},
        ),
        "Voxtral": with_sound(
            "VoxtralForConditionalGeneration",
            "voxtral",
            {**text["LLaMA 2"], "head_dim": 16},
            {
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_mel_bins": 8,
                "max_source_positions": 16,
            },
        ),
        "GLM-ASR": with_sound(
            "GlmAsrForConditionalGeneration",
            "glmasr",
            text["LLaMA 2"],
            {
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "num_mel_bins": 8,
                "max_position_embeddings": 16,
            },
        ),
        "Fun-ASR Nano": with_sound(
            "FunAsrNanoForConditionalGeneration",
            "fun_asr_nano",
            {**text["Qwen 3"], "tie_word_embeddings": True},
            SMALL,
            adaptor_config={
                "hidden_size": 64,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        ),
        "VibeVoice ASR": with_sound(
            "VibeVoiceAsrForConditionalGeneration",
            "vibevoice_asr",
            {**text["Qwen 1.5, Qwen 2"], "tie_word_embeddings": False},
            SOUND_TOKENS,
            "acoustic_tokenizer_encoder_config",
            semantic_tokenizer_encoder_config=SOUND_TOKENS,
        ),
        "Granite Speech": with_sound(
            "GraniteSpeechForConditionalGeneration",
            "granite_speech",
            text["Granite 3"],
            SPEECH,
            "encoder_config",
            projector_config={**QFORMER, "model_type": "blip_2_qformer"},
        ),
        "Granite Speech Plus": with_sound(
            "GraniteSpeechPlusForConditionalGeneration",
            "granite_speech_plus",
            text["Granite 3"],
            SPEECH,
            "encoder_config",
            projector_config={**QFORMER, "model_type": "blip_2_qformer"},
        ),
        "Nemotron 3.5 Transcribe": with_sound(
            "Nemotron3_5TranscribeForConditionalGeneration",
            "nemo_speechlm",
            text["Nemotron 3 (experts)"],
            {
                "asr_config": {**SMALL, "num_mel_bins": 8},
                "diarization_config": {
                    "audio_config": {**SMALL, "num_mel_bins": 8},
                    "head_config": {"hidden_size": 16, "audio_hidden_size": 32},
                },
            },
            word_timestamp_config={**SMALL, "vocab_size": 8, "blank_token_id": 7},
        ),
        "Qwen2.5-Omni thinker": {
            **with_images(
                "Qwen2_5OmniThinkerForConditionalGeneration",
                "qwen2_5_omni_thinker",
                {
                    **text["Qwen 1.5, Qwen 2"],
                    "model_type": "qwen2_5_omni_text",
                    "rope_theta": 1000000.0,
                    "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default", "type": "default"},
                },
                {**ENCODER, "intermediate_size": 48, "fullatt_block_indexes": [0]},
            ),
            "audio_config": {**WHISPER, "n_window": 4, "output_dim": 64},
            "vision_start_token_id": 90,  # as below
        },
        "Qwen3-Omni thinker": {
            **with_images(
                "Qwen3OmniMoeThinkerForConditionalGeneration",
                "qwen3_omni_moe_thinker",
                {
                    **text["Qwen3-MoE"],
                    "model_type": "qwen3_omni_moe_text",
                    "rope_theta": 1000000.0,
                    "rope_scaling": {
                        "mrope_interleaved": True,
                        "mrope_section": [6, 5, 5],
                        "rope_type": "default",
                    },
                },
                {**ENCODER, "intermediate_size": 48, "deepstack_visual_indexes": [0]},
            ),
            "audio_config": {**WHISPER, "n_window": 4, "output_dim": 64, "downsample_hidden_size": 8},
            # Its class has no default for this, and generates nothing without it.
            "vision_start_token_id": 90,
        },
    }
