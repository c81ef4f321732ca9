"""One entry for each family, or each of its shapes that the decoder treats differently: a config.json as the hub
has it, shrunk.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from encoder_families import with_encoders
from newer_families import INDEX, NEWER
from older_families import OLDER
from recurrent_families import RECURRENT
from shapes import LATENT, shaped, with_images
from vision_families import VISION_LANGUAGE

DEEPSEEK_V3: dict[str, Any] = {
    "q_lora_rank": 20,
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
}

DEEPSEEK_V4: dict[str, Any] = {
    "intermediate_size": None,
    "num_hidden_layers": 5,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 20,
    "sliding_window": 24,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    # Of the published ones 10: here some gates are cut.
    "swiglu_limit": 1.0,
    "compress_rope_theta": 160000.0,
    "num_nextn_predict_layers": 1,
    "attention_bias": False,
}


def vocabulary_of(config: dict[str, Any]) -> int:
    """Tokens of the text model."""
    text = config.get("text_config", config)
    size: int = text.get("unpadded_vocab_size", text["vocab_size"])
    return size


def with_text(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The configuration with these changes to its text model. All tokens of another vocabulary are real."""
    if "text_config" in config:
        return {**config, "text_config": with_text(config["text_config"], **changes)}
    kept = {name: value for name, value in config.items() if name != "unpadded_vocab_size"}
    return {**(kept if "vocab_size" in changes else config), **changes}


FAMILIES: dict[str, dict[str, Any]] = {
    "LLaMA 2": shaped("LlamaForCausalLM", "llama", num_key_value_heads=4),
    "LLaMA 3": shaped(
        "LlamaForCausalLM",
        "llama",
        rope_theta=500000.0,
        rope_scaling={
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
    ),
    "Mistral": shaped("MistralForCausalLM", "mistral", sliding_window=None),
    "Mistral, sliding window": shaped("MistralForCausalLM", "mistral", sliding_window=24),
    "Mixtral": shaped(
        "MixtralForCausalLM",
        "mixtral",
        num_local_experts=5,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.02,
    ),
    "Gemma 1": shaped(
        "GemmaForCausalLM",
        "gemma",
        head_dim=32,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=None,
    ),
    "Gemma 2": shaped(
        "Gemma2ForCausalLM",
        "gemma2",
        head_dim=32,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        sliding_window=24,
        tie_word_embeddings=None,
    ),
    "Gemma 3": shaped(
        "Gemma3ForCausalLM",
        "gemma3_text",
        head_dim=32,
        hidden_act=None,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=32,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        sliding_window=24,
        sliding_window_pattern=3,
        num_hidden_layers=4,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        tie_word_embeddings=None,
    ),
    "Qwen 1.5, Qwen 2": shaped(
        "Qwen2ForCausalLM",
        "qwen2",
        use_sliding_window=False,
        sliding_window=24,
        max_window_layers=2,
        tie_word_embeddings=True,
    ),
    "Qwen 2, sliding window": shaped(
        "Qwen2ForCausalLM", "qwen2", use_sliding_window=True, sliding_window=24, max_window_layers=1
    ),
    "Qwen 3": shaped(
        "Qwen3ForCausalLM", "qwen3", head_dim=32, attention_bias=False, tie_word_embeddings=True
    ),
    "Qwen2-MoE": shaped(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=48,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
    "Qwen3-MoE": shaped(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        decoder_sparse_step=2,
        mlp_only_layers=[],
        norm_topk_prob=True,
    ),
    "Cohere (Command R)": shaped(
        "CohereForCausalLM",
        "cohere",
        rms_norm_eps=None,
        layer_norm_eps=1e-5,
        logit_scale=0.25,
        use_qk_norm=False,
        tie_word_embeddings=None,
    ),
    "Cohere (Command R+)": shaped(
        "CohereForCausalLM",
        "cohere",
        rms_norm_eps=None,
        layer_norm_eps=1e-5,
        logit_scale=0.5,
        use_qk_norm=True,
        tie_word_embeddings=None,
    ),
    "Cohere 2 (Command R7B)": shaped(
        "Cohere2ForCausalLM",
        "cohere2",
        rms_norm_eps=None,
        layer_norm_eps=1e-5,
        logit_scale=0.25,
        sliding_window=24,
        sliding_window_pattern=2,
        tie_word_embeddings=None,
    ),
    "DBRX": {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "vocab_size": 199,
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 512,
        # transformers 5 reads the base here, and not where the checkpoints have it.
        "rope_theta": 500000,
        "attn_config": {"clip_qkv": 1.5, "kv_n_heads": 2, "model_type": "", "rope_theta": 500000},
        "ffn_config": {
            "ffn_hidden_size": 48,
            "model_type": "",
            "moe_jitter_eps": 0.01,
            "moe_loss_weight": 0.05,
            "moe_num_experts": 5,
            "moe_top_k": 3,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": None,
    },
    "Granite 3": shaped(
        "GraniteForCausalLM",
        "granite",
        attention_bias=False,
        mlp_bias=False,
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.7,
        logits_scaling=2.0,
        tie_word_embeddings=True,
    ),
    "OLMo 1": shaped("OlmoForCausalLM", "olmo", rms_norm_eps=None, clip_qkv=1.5, num_key_value_heads=4),
    "OLMo 2": shaped("Olmo2ForCausalLM", "olmo2", attention_bias=False),
    "SmolLM3": shaped(
        "SmolLM3ForCausalLM",
        "smollm3",
        num_hidden_layers=4,
        no_rope_layer_interval=4,
        pad_token_id=0,
        no_rope_layers=[1, 1, 0, 1],
        rope_theta=5000000.0,
        use_sliding_window=False,
        tie_word_embeddings=True,
    ),
    "DeepSeek V2": shaped(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **LATENT,
        q_lora_rank=20,
        topk_method="group_limited_greedy",
        norm_topk_prob=False,
        scoring_func="softmax",
        routed_scaling_factor=4.0,
        rope_scaling={
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
    ),
    "DeepSeek V2 Lite": shaped(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **{**LATENT, "n_group": 1, "topk_group": 1},
        q_lora_rank=None,
        topk_method="greedy",
        norm_topk_prob=False,
        scoring_func="softmax",
        routed_scaling_factor=1.0,
    ),
    "DeepSeek V3": shaped(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        **LATENT,
        **DEEPSEEK_V3,
    ),
    "DeepSeek V3.2": shaped(
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        **{key: value for key, value in LATENT.items() if key != "moe_layer_freq"},
        **INDEX,
        **DEEPSEEK_V3,
    ),
    # The fields of the published config.json, which name the layers by their rates. Of the published ones 128 tokens of a window
    # and of an entry, and 512 entries to attend to: here all three are outgrown within the tests' 100 tokens.
    "DeepSeek V4": shaped(
        "DeepseekV4ForCausalLM",
        "deepseek_v4",
        **DEEPSEEK_V4,
        compress_ratios=[0, 128, 4, 128, 4, 0],
        compress_rate_hca=16,
        num_hash_layers=2,
        rope_scaling={
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
    ),
    # Those of transformers' class; rates that divide no block.
    "DeepSeek V4, other rates": shaped(
        "DeepseekV4ForCausalLM",
        "deepseek_v4",
        **{**DEEPSEEK_V4, "qk_rope_head_dim": None, "num_hidden_layers": 6},
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"] * 2,
        mlp_layer_types=["moe", "hash_moe", "moe", "hash_moe", "moe", "moe"],
        compress_rates={"compressed_sparse_attention": 6, "heavily_compressed_attention": 20},
        partial_rotary_factor=0.25,
    ),
    "A.X K2": shaped(
        "AXK2ForCausalLM",
        "axk2",
        **{
            key: value
            for key, value in LATENT.items()
            if key not in ("moe_layer_freq", "n_group", "topk_group")
        },
        **INDEX,
        q_lora_rank=20,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        gated_norm_rank=4,
    ),
    "A.X K2, groups of experts": shaped(
        "AXK2ForCausalLM",
        "axk2",
        **{key: value for key, value in LATENT.items() if key != "moe_layer_freq"},
        **INDEX,
        q_lora_rank=20,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        gated_norm_rank=4,
    ),
    "GLM-4 (2024)": shaped(
        "GlmForCausalLM",
        "glm",
        head_dim=16,
        attention_bias=True,
        partial_rotary_factor=0.5,
        pad_token_id=0,
    ),
    "GLM-4 (0414)": shaped(
        "Glm4ForCausalLM",
        "glm4",
        head_dim=16,
        attention_bias=True,
        partial_rotary_factor=0.5,
        pad_token_id=0,
    ),
    "GPT-OSS": shaped(
        "GptOssForCausalLM",
        "gpt_oss",
        num_hidden_layers=2,
        head_dim=16,
        attention_bias=True,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_per_token=2,
        swiglu_limit=7.0,
        rope_theta=150000.0,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
            "truncate": False,
        },
    ),
}

QWEN_3_5_IMAGES: dict[str, Any] = {
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}

EXAONE_IMAGES: dict[str, Any] = {"depth": 1, "num_heads": 2, "out_hidden_size": 64}

FAMILIES |= RECURRENT
# Their order is that of the page.
FAMILIES |= (
    {
        "Gemma 3 with images": with_images(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            FAMILIES["Gemma 3"],
            {"model_type": "siglip_vision_model"},
        ),
        "Mistral Small 3.1": with_images(
            "Mistral3ForConditionalGeneration",
            "mistral3",
            FAMILIES["Mistral"],
            {"model_type": "pixtral", "head_dim": 16},
        ),
        "Qwen 3.5 with images": with_images(
            "Qwen3_5ForConditionalGeneration", "qwen3_5", FAMILIES["Qwen 3.5"], QWEN_3_5_IMAGES
        ),
        "Qwen 3.5 (experts) with images": with_images(
            "Qwen3_5MoeForConditionalGeneration",
            "qwen3_5_moe",
            FAMILIES["Qwen 3.5 (experts)"],
            QWEN_3_5_IMAGES,
        ),
        "Qwen 4 with images": with_images(
            "Qwen4ExpForConditionalGeneration", "qwen4_exp", FAMILIES["Qwen 4"], QWEN_3_5_IMAGES
        ),
        # Saved by the published names.
        "Inkling with images and sound": {
            **with_images(
                "InklingForConditionalGeneration",
                "inkling_mm_model",
                FAMILIES["Inkling"],
                {"patch_size": 4, "num_channels": 3, "num_hidden_layers": 8},
            ),
            "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 8},
        },
        "Nemotron 3 Omni": with_images(
            "NemotronH_Omni_Reasoning_V3",
            "nemotron_h_omni",
            FAMILIES["Nemotron 3 (experts)"],
            {"model_type": "radio", "video_temporal_patch_size": 2},
        ),
        "LFM2-VL": with_images(
            "Lfm2VlForConditionalGeneration",
            "lfm2_vl",
            FAMILIES["LFM2"],
            {"model_type": "siglip2_vision_model"},
        ),
        "LFM3-VL": with_images("Lfm3VlForConditionalGeneration", "lfm3_vl", FAMILIES["LFM3"], {}),
        "MiniCPM-V 4.6": with_images(
            "MiniCPMV4_6ForConditionalGeneration", "minicpmv4_6", FAMILIES["Qwen 3.5"], {}
        ),
        "MiniCPM-V 4.7": with_images(
            "MiniCPMV4_7ForConditionalGeneration", "minicpmv4_7", FAMILIES["Qwen 3.5"], {}
        ),
        "SmolVLM": with_images("SmolVLMForConditionalGeneration", "smolvlm", FAMILIES["LLaMA 2"], {}),
        "Idefics 3": with_images("Idefics3ForConditionalGeneration", "idefics3", FAMILIES["LLaMA 3"], {}),
        "LLaVA-OneVision": with_images(
            "LlavaOnevisionForConditionalGeneration",
            "llava_onevision",
            FAMILIES["Qwen 1.5, Qwen 2"],
            {"model_type": "siglip_vision_model"},
        ),
        "DeepSeek-VL": with_images(
            "DeepseekVLForConditionalGeneration", "deepseek_vl", FAMILIES["LLaMA 2"], {}
        ),
        "Idefics 2": with_images("Idefics2ForConditionalGeneration", "idefics2", FAMILIES["Mistral"], {}),
        "LightOnOCR": with_images(
            "LightOnOcrForConditionalGeneration", "lighton_ocr", FAMILIES["Qwen 3"], {"head_dim": 16}
        ),
        "MiniCPM-OCR": with_images(
            "MiniCPMOcrForConditionalGeneration", "minicpm_ocr", FAMILIES["Qwen 3.5"], {}
        ),
        "VideoLLaMA 3": with_images(
            "VideoLlama3ForConditionalGeneration", "video_llama_3", FAMILIES["Qwen 1.5, Qwen 2"], {}
        ),
        "Ovis 2": with_images("Ovis2ForConditionalGeneration", "ovis2", FAMILIES["Qwen 1.5, Qwen 2"], {}),
    }
    | VISION_LANGUAGE
    | NEWER
    | {
        "EXAONE 4.5": with_images(
            "Exaone4_5_ForConditionalGeneration",
            "exaone4_5",
            NEWER["EXAONE 4"],
            {**EXAONE_IMAGES, "num_key_value_heads": 1},
        )
    }
    | OLDER
)
ENCODERS = with_encoders(FAMILIES)
FAMILIES |= ENCODERS

# Of what each of these does differently another family has the same: they are run by `make test-all` only.
LONG_TAIL = frozenset(
    {
        *(ENCODERS.keys() - {"Command A+"}),
        *("Nemotron 3 Omni", "LFM2-VL", "LFM3-VL", "MiniCPM-V 4.6", "MiniCPM-V 4.7", "SmolVLM", "Idefics 3"),
        *(
            "LLaVA-OneVision",
            "Ovis 2",
            "EXAONE 4.5",
            "DeepSeek-VL",
            "Idefics 2",
            "LightOnOCR",
            "MiniCPM-OCR",
            "VideoLLaMA 3",
        ),
        *("Qwen2-VL", "Qwen3-VL-MoE", "GLM-4.5V, GLM-4.6V", "InternVL 3 (Qwen 2)", "InternVL 3.5 (Qwen 3)"),
        *(
            "LLaVA 1.5 (Llama)",
            "Llama 4 with images",
            "Gemma 4 with images",
            "Gemma 4 12B",
            "Ministral 3 with images",
            "GOT-OCR 2",
        ),
        *(
            "Mistral Small 4 with images",
            "Gemma 4 31B",
            "GLM-4.5, 4.6, 4.7",
            "GLM-4.7 Flash",
            "ERNIE 4.5",
            "Seed-OSS",
        ),
        *(
            "EXAONE 4 1.2B",
            "K-EXAONE",
            "OLMo 3",
            "Ministral 8B",
            "Arcee AFM",
            "Granite MoE, shared expert",
            "Jais 2",
        ),
        *(
            "dots.llm1",
            "Solar Open",
            "Hunyuan",
            "Hunyuan 3",
            "Llama 4 (dense)",
            "nanochat",
            "VaultGemma",
            "Code World Model",
            "Helium 1",
        ),
        *(
            "LFM2-MoE",
            "LFM3",
            "Granite 4 (experts)",
            "Bamba",
            "Nemotron 3 (experts)",
            "Qwen 3.5 (experts)",
            "Ling 3.0",
        ),
        *(
            "Qwen 3.5 (experts) with images",
            "Qwen 4 with images",
            "OLMo Hybrid",
            "Falcon Mamba",
            "Qwen 2, sliding window",
            "DeepSeek V2",
            "DeepSeek V4, other rates",
        ),
        *(
            "Cohere (Command R)",
            "Falcon 40B",
            "Falcon 11B",
            "BLOOM, residual after the norm",
            "StableLM 2 12B",
        ),
        *(
            "OPT 350M",
            "Galactica",
            "MPT 30B",
            "GPT-NeoX, one branch after the other",
            "Phi 4",
            "Phi 3, sliding window",
        ),
    }
)


# The kinds that differ most, for what takes seconds of each and hardly depends on the family.
FEW = frozenset(
    {
        "LLaMA 2",
        "Gemma 3",
        "GPT-OSS",
        "Qwen 3.5",
        "Mamba 2",
        "DeepSeek V4",
    }
)


def few_of(families: Iterable[str]) -> list[Any]:
    """All of them, most in the long tail."""
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.tail) for name in families]


def in_turn() -> list[Any]:
    """All of them, for tests that are run with each."""
    return [pytest.param(name, marks=pytest.mark.tail) if name in LONG_TAIL else name for name in FAMILIES]
