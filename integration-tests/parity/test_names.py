"""Checkpoints of one family under the different names that they have on the hub, and configurations that no
recipe knows.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import experts_apart, ids, kind_of, logits_of, make
from newer_families import MINIMAX_M3, MISTRAL_4, STEP_3_5
from ranks import TESTS  # noqa: F401  (where the driver is)
from recurrent_families import RECURRENT
from safetensors import safe_open

from penstock.errors import UnusableModel
from penstock.loading.model_files import dtype_name, eos_ids
from penstock.models import recipes
from penstock.models.architectures import left_out
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.parallel.group import TensorGroup

# A family, other names for its tensors, and what such checkpoints hold besides.
RENAMED: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "GPT-2": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias", "h.1.attn.masked_bias")),
    "BLOOM": (lambda name: name.removeprefix("transformer."), ()),
    "GPT-J": (lambda name: name, ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
    "OPT": (lambda name: name.removeprefix("model."), ()),
    "GPT": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias",)),
    "CodeGen": (lambda name: name, ("transformer.h.0.attn.causal_mask",)),
    "GPT-Neo": (
        lambda name: name,
        ("transformer.h.0.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"),
    ),
    "Falcon 7B": (lambda name: name, ("lm_head.weight",)),
    # Layers that predict several tokens ahead.
    "GLM-4.5, 4.6, 4.7": (
        lambda name: name,
        ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.0.up_proj.weight"),
    ),
    "GLM-4.7 Flash": (lambda name: name, ("model.layers.3.enorm.weight",)),
    "GLM-OCR": (
        lambda name: name,
        (
            "model.language_model.layers.3.eh_proj.weight",
            "model.language_model.layers.3.self_attn.q_proj.weight",
            "model.language_model.layers.3.shared_head.head.weight",
        ),
    ),
    "GLM-5": (lambda name: name, ("model.layers.3.self_attn.indexer.wk.weight",)),
    # As published, where transformers saves some other names.
    "Hunyuan 4": (
        lambda name: re.sub(
            r"(hc_(?:attn|mlp)_layer\.)(?=hc_)",
            r"\1hc_pre.",
            re.sub(r"(mlp|experts)\.linear_gate", r"\1.gate_proj", name.replace("hc_pre.", "")),
        ),
        ("model.mtp_layers.0.enorm.weight",),
    ),
    # As published, where transformers saves some other names, and layers that predict several tokens ahead.
    "DeepSeek V4": (
        lambda name: re.sub(
            r"(?<=attn\.)norm(?=\.weight)|embed_tokens|hc_head\.hc",
            lambda found: {"norm": "kv_norm", "embed_tokens": "embed"}.get(found[0], "hc_head"),
            name.removeprefix("model."),
        ),
        ("mtp.0.attn.wkv.weight", "mtp.0.hc_head_fn"),
    ),
    "XGLM": (lambda name: name.removeprefix("model."), ("embed_positions.weights",)),
    "ERNIE 4.5 MoE": (lambda name: name, ("model.mtp_block.0.mlp.up_proj.weight",)),
    "K-EXAONE": (lambda name: name, ("mtp.layers.0.mlp.up_proj.weight",)),
    "MiniMax M2": (lambda name: name, ("model.mtp.0.enorm.weight",)),
    # Matrices for keys that the layer reads of an earlier one.
    "Gemma 3n": (
        lambda name: name,
        ("model.layers.5.self_attn.k_proj.weight", "model.layers.3.self_attn.v_proj.weight"),
    ),
    # The text model alone, and layers that predict several tokens ahead.
    "MiniMax M3": (
        lambda name: name.removeprefix("language_model."),
        ("mtp.layers.0.self_attn.q_proj.weight",),
    ),
    # As the families' own releases have it, and as transformers saves it.
    "Qwen2.5-VL": (
        lambda name: name.replace("model.", "model.language_model.").replace("visual.", "model.visual."),
        (),
    ),
    "InternVL 3 (Qwen 2)": (
        lambda name: name.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        ),
        ("model.vision_tower.a.weight", "model.multi_modal_projector.b.weight"),
    ),
    "Phi 4 multimodal": (
        lambda name: name,
        ("model.layers.0.mlp.down_proj.lora_A.vision.weight",),
    ),
    "Pythia, GPT-NeoX": (
        lambda name: {"embed_out.weight": "lm_head.weight", "lm_head.weight": "embed_out.weight"}.get(
            name, name
        ),
        (
            "gpt_neox.layers.0.attention.bias",
            "gpt_neox.layers.0.attention.masked_bias",
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
        ),
    ),
    "Qwen3-Next": (lambda name: name, ("mtp.fc.weight", "mtp.layers.0.mlp.gate.weight")),
    "Qwen 3.5": (
        lambda name: name.replace("model.", "model.language_model."),
        ("model.visual.patch_embed.proj.weight", "mtp.norm.weight"),
    ),
    # As published, with a tower for images and a layer that predicts a further token.
    "Qwen 4": (
        lambda name: name.replace("model.", "model.language_model."),
        (
            "model.visual.patch_embed.proj.weight",
            "mtp.norm.weight",
            "mtp.layers.0.self_attn.indexer.q_layernorm.weight",
        ),
    ),
    # What is published, where transformers saves other names.
    "Kimi Linear": (lambda name: name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."), ()),
    "OLMo Hybrid": (
        lambda name: name.replace("layers.2.feedforward_layer_norm", "layers.2.post_attention_layernorm"),
        (),
    ),
    "Nemotron-H": (lambda name: name, ("mtp.layers.0.norm.weight",)),
    # Beside NeMo's names, which transformers saves, what its exports hold of other modules.
    "Nemotron 3.5 Transcribe": (
        lambda name: name,
        ("llm.mtp.layers.0.norm.weight", "llm.model.layers.0.mixer.in_proj._extra_state"),
    ),
}

Rename = Callable[[str], str]


def within(
    architecture: str, model_type: str, part: str = "text_config"
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The configuration of a model that reads images, too, around that of its text model."""
    return lambda text: {
        "architectures": [architecture],
        "model_type": model_type,
        part: {name: value for name, value in text.items() if name != "architectures"},
        "vision_config": {"model_type": "some_encoder"},
    }


def below_language_model(name: str) -> str:
    return f"language_model.{name}"


def in_minimaxs_words(config: dict[str, Any], architecture: str, model_type: str) -> dict[str, Any]:
    """The fields of the first checkpoints, as transformers' tests of MiniMax-VL-01 quote them."""
    said = {name: value for name, value in config.items() if name != "layer_types" and "_factor" not in name}
    for name, older in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")):
        for kind in ("alpha", "beta"):
            said[f"layernorm_{older}_{kind}"] = config[f"{name}_{kind}_factor"]
    return {
        **said,
        "architectures": [architecture],
        "model_type": model_type,
        "attn_type_list": [int(kind == "full_attention") for kind in config["layer_types"]],
        "rotary_dim": config["head_dim"],
        "postnorm": True,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
    }


def deepseek_ocr(text: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The fields that its own config.json has, as it is quoted; its code says the rest."""
    said = [
        *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "n_routed_experts"),
        *("n_shared_experts", "num_experts_per_tok", "n_group", "topk_group"),
    ]
    ranks = {"kv_lora_rank": None, "q_lora_rank": None}
    sizes = {"qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    own = {"first_k_dense_replace": 1, "topk_method": "greedy", "use_mla": False, "lm_head": True}
    language = {name: text[name] for name in said} | own | ranks | sizes
    return {
        **language,
        "architectures": [architecture],
        "model_type": "deepseek_vl_v2",
        "language_config": {**language, "architectures": ["DeepseekV2ForCausalLM"]},
        "vision_config": {},
    }


def beside(architecture: str, model_type: str, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The configuration of a model that has the text's fields beside those of what reads images."""
    return lambda text: {**text, "architectures": [architecture], "model_type": model_type, **more}


def below_llm(name: str) -> str:
    return f"llm.{name}"


# Models that transformers cannot make here, around a text model that it can: a text family, the whole's configuration, what
# the whole calls the tensors, and what it holds beside them.
WHOLES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], Rename, tuple[str, ...]]] = {
    "Gemma 3n with images and sound": (
        "Gemma 3n",
        within("Gemma3nForConditionalGeneration", "gemma3n"),
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.vision_tower.a.weight", "model.audio_tower.b.weight", "model.embed_vision.c.weight"),
    ),
    "InternVL in its own repositories": (
        "Qwen 3",
        within("InternVLChatModel", "internvl_chat", "llm_config"),
        below_language_model,
        ("vision_model.a.weight", "mlp1.0.weight"),
    ),
    "Kimi-VL": (
        "DeepSeek V3",
        within("KimiVLForConditionalGeneration", "kimi_vl"),
        below_language_model,
        ("vision_tower.a.weight", "multi_modal_projector.b.weight"),
    ),
    "Phi-4-multimodal in Microsoft's repository": (
        "Phi 4 multimodal",
        lambda config: {
            **config,
            "architectures": ["Phi4MMForCausalLM"],
            "model_type": "phi4mm",
            "embd_layer": {},
        },
        lambda name: name.replace("_proj.weight", "_proj.base_layer.weight"),
        (
            "model.layers.0.self_attn.o_proj.lora_A.vision.weight",
            "model.layers.1.mlp.down_proj.lora_B.speech.weight",
        ),
    ),
    # As LightOn publishes it.
    "LightOnOCR in its own repository": (
        "Qwen 3",
        within("LightOnOCRForConditionalGeneration", "mistral3"),
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.vision_encoder.a.weight", "model.vision_projection.b.weight"),
    ),
    "Aya Vision": (
        "Cohere 2 (Command R7B)",
        within("AyaVisionForConditionalGeneration", "aya_vision"),
        below_language_model,
        ("vision_tower.a.weight", "multi_modal_projector.b.weight"),
    ),
    "Aya Vision 32B": (
        "Cohere (Command R)",
        within("AyaVisionForConditionalGeneration", "aya_vision"),
        below_language_model,
        ("vision_tower.a.weight", "multi_modal_projector.b.weight"),
    ),
    # As their authors publish them, where transformers has classes of its own.
    "LLaVA-OneVision in its authors' repository": (
        "Qwen 1.5, Qwen 2",
        beside("LlavaQwenForCausalLM", "llava", mm_vision_tower="a"),
        lambda name: name,
        ("model.vision_tower.vision_tower.a.weight", "model.mm_projector.0.weight", "model.image_newline"),
    ),
    "LLaVA 1.6 in its authors' repository": (
        "LLaMA 2",
        beside("LlavaLlamaForCausalLM", "llava", mm_vision_tower="a"),
        lambda name: name,
        ("model.vision_tower.vision_tower.a.weight", "model.mm_projector.0.weight", "model.image_newline"),
    ),
    "LLaVA 1.6 (Mistral) in its authors' repository": (
        "Mistral, sliding window",
        beside("LlavaMistralForCausalLM", "llava_mistral", mm_vision_tower="a"),
        lambda name: name,
        ("model.vision_tower.vision_tower.a.weight", "model.mm_projector.0.weight"),
    ),
    "FastVLM in its authors' repository": (
        "Qwen 1.5, Qwen 2",
        beside("LlavaQwen2ForCausalLM", "llava_qwen2", mm_vision_tower="a"),
        lambda name: name,
        ("model.vision_tower.vision_tower.a.weight", "model.mm_projector.0.weight"),
    ),
    "DeepSeek-VL, Janus in DeepSeek's repositories": (
        "LLaMA 2",
        within("MultiModalityCausalLM", "multi_modality", "language_config"),
        below_language_model,
        (
            "vision_model.vision_tower.a.weight",
            "aligner.layers.0.weight",
            "gen_vision_model.quantize.codebook_used",
            "gen_aligner.layers.0.weight",
            "gen_head.vision_head.weight",
            "gen_embed.weight",
        ),
    ),
    "DeepSeek-VL2": (
        "DeepSeek V2 Lite",
        within("DeepseekVLV2ForCausalLM", "deepseek_vl_v2", "language_config"),
        lambda name: f"language.{name}",
        ("vision.blocks.0.weight", "projector.layers.0.weight", "image_newline", "view_seperator"),
    ),
    "Ovis 2 in its authors' repository": (
        "Qwen 1.5, Qwen 2",
        within("Ovis", "ovis", "llm_config"),
        below_llm,
        ("visual_tokenizer.backbone.a.weight", "visual_tokenizer.head.0.weight", "vte.weight"),
    ),
    "Ovis 2.5": (
        "Qwen 3",
        within("Ovis2_5", "ovis2_5", "llm_config"),
        below_llm,
        ("visual_tokenizer.vit.vision_model.a.weight", "vte.weight"),
    ),
    "LLaVA-OneVision 1.5": (
        "Qwen 3",
        lambda config: within("LLaVAOneVision1_5_ForConditionalGeneration", "llavaonevision1_5")(
            {**config, "model_type": "LLaVAOneVision1_5_text"}
        ),
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.visual.blocks.0.a.weight",),
    ),
    "VideoLLaMA 3 in its authors' repository": (
        "Qwen 1.5, Qwen 2",
        beside("Videollama3Qwen2ForCausalLM", "videollama3_qwen2", vision_encoder_config={}),
        lambda name: name,
        ("model.vision_encoder.encoder.a.weight", "model.mm_projector.readout.0.weight"),
    ),
    "Emu 3 in its authors' repository": (
        "LLaMA 2",
        beside("Emu3ForCausalLM", "Emu3"),
        lambda name: name,
        (),
    ),
    "MiniCPM-V 2.6": (
        "Qwen 1.5, Qwen 2",
        beside("MiniCPMV", "minicpmv", version=2.6, vision_config={}),
        below_llm,
        ("vpm.a.weight", "resampler.query"),
    ),
    "MiniCPM-V 4.5": (
        "Qwen 3",
        beside("MiniCPMV", "minicpmv", version=4.5, vision_config={}),
        below_llm,
        ("vpm.a.weight", "resampler.query"),
    ),
    "Llama 1 as first converted": (
        "LLaMA 2",
        lambda config: {**config, "architectures": ["LLaMAForCausalLM"]},
        lambda name: name,
        (),
    ),
    "LLaVA-NeXT": (
        "Mistral",
        within("LlavaNextForConditionalGeneration", "llava_next"),
        below_language_model,
        ("image_newline", "vision_tower.a.weight", "multi_modal_projector.b.weight"),
    ),
    # As published: the text's fields are beside those of the whole.
    "dots 3 Note with images and sound": (
        "dots 3 Note",
        lambda config: {
            **config,
            "architectures": ["Dots3NoteForConditionalGeneration"],
            "model_type": "dots3_note",
            "vision_config": {"model_type": "dots3_note_vision_encoder"},
            "audio_config": {"model_type": "dots3_note_audio_encoder"},
        },
        lambda name: name,
        (
            "vision_encoder.post_trunk_norm.weight",
            "audio_encoder.audio_adapter.proj.0.weight",
            "model.layers.4.enorm.weight",
            "model.mtp.norm.weight",
        ),
    ),
    "FastVLM": (
        "Qwen 1.5, Qwen 2",
        within("FastVlmForConditionalGeneration", "fast_vlm"),
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.vision_tower.timm_model.a.weight", "model.multi_modal_projector.linear_1.weight"),
    ),
    "Perception LM": (
        "LLaMA 3",
        within("PerceptionLMForConditionalGeneration", "perception_lm"),
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.vision_tower.timm_model.a.weight", "model.multi_modal_projector.linear_1.weight"),
    ),
    # What listens and sees, and what speaks, beside what thinks.
    "Qwen2.5-Omni": (
        "Qwen2.5-Omni thinker",
        lambda config: {
            "architectures": ["Qwen2_5OmniModel"],
            "model_type": "qwen2_5_omni",
            "thinker_config": {**config, "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"]},
            "talker_config": {},
        },
        lambda name: name if name.startswith("thinker.") else f"thinker.{name}",
        ("talker.model.layers.0.mlp.up_proj.weight", "token2wav.a.weight"),
    ),
    "Qwen3-Omni": (
        "Qwen3-Omni thinker",
        lambda config: {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "thinker_config": {name: value for name, value in config.items() if name != "architectures"},
            "talker_config": {},
        },
        lambda name: name if name.startswith("thinker.") else f"thinker.{name}",
        ("talker.model.layers.0.mlp.up_proj.weight", "code2wav.a.weight"),
    ),
    # As Baidu publishes it: the text's fields are beside those of the whole, with a number for text and one for images.
    "ERNIE 4.5 VL in its own words": (
        "ERNIE 4.5 VL",
        lambda config: {
            **config["text_config"],
            "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"],
            "model_type": "ernie4_5_moe_vl",
            "moe_num_experts": [8, 8],
            "moe_layer_start_index": [1, 1],
            "vision_config": {},
        },
        lambda name: name,
        ("vision_model.a.weight",),
    ),
    "PaddleOCR-VL in its own words": (
        "PaddleOCR-VL",
        lambda config: {
            **config["text_config"],
            "architectures": ["PaddleOCRVLForConditionalGeneration"],
            "model_type": "paddleocr_vl",
            "vision_config": {},
        },
        lambda name: name,
        ("visual.vision_model.a.weight",),
    ),
    # Before its layers had the names of diffusers.
    "Cosmos 3, first names": (
        "Cosmos 3",
        lambda config: config,
        lambda name: (
            re.sub(r"norm_([qk])\.", r"\1_norm.", name)
            .replace("self_attn.to_out", "self_attn.o_proj")
            .replace("self_attn.to_", "self_attn.")
            .replace("attn.q.", "attn.q_proj.")
            .replace("attn.k.", "attn.k_proj.")
            .replace("attn.v.", "attn.v_proj.")
        ),
        (),
    ),
    # As published: what makes images, sound and actions is in the same file.
    "Cosmos 3, unified": (
        "Cosmos 3",
        lambda config: {**config, "architectures": ["Cosmos3ForConditionalGeneration"]},
        lambda name: name,
        (
            "layers.0.self_attn.add_q_proj.weight",
            "layers.1.self_attn.add_k_proj.weight",
            "layers.2.self_attn.add_v_proj.weight",
            "layers.0.self_attn.to_add_out.weight",
            "layers.0.self_attn.norm_added_q.weight",
            "layers.0.self_attn.norm_added_k.weight",
            "layers.0.mlp_moe_gen.gate_proj.weight",
            "layers.0.input_layernorm_moe_gen.weight",
            "layers.0.post_attention_layernorm_moe_gen.weight",
            "norm_moe_gen.weight",
            "proj_in.weight",
            "proj_out.bias",
            "time_embedder.linear_1.weight",
            "audio_proj_in.weight",
            "audio_proj_out.weight",
            "audio_modality_embed",
            "action_proj_in.fc.weight",
            "action_proj_out.bias.weight",
            "action_modality_embed",
        ),
    ),
    # As DeepSeek publishes it: the text's fields are in a part of another name, and again beside it.
    "DeepSeek-OCR 2 in its own words": (
        "DeepSeek-OCR 2",
        lambda config: deepseek_ocr(config["text_config"], "DeepseekOCR2ForCausalLM"),
        lambda name: name,
        ("model.qwen2_model.a.weight", "model.sam_model.b.weight", "model.view_seperator"),
    ),
    "DeepSeek-OCR": (
        "DeepSeek-OCR 2",
        lambda config: deepseek_ocr(config["text_config"], "DeepseekOCRForCausalLM"),
        lambda name: name,
        (
            "model.sam_model.a.weight",
            "model.vision_model.b.weight",
            "model.projector.layers.weight",
            "model.image_newline",
            "model.view_seperator",
        ),
    ),
    "MiniMax-Text-01 in its own words": (
        "MiniMax-Text-01",
        lambda config: in_minimaxs_words(config, "MiniMaxText01ForCausalLM", "minimax_text_01"),
        lambda name: name,
        (),
    ),
    "MiniMax M1": (
        "MiniMax-Text-01",
        lambda config: in_minimaxs_words(config, "MiniMaxM1ForCausalLM", "minimax_m1"),
        lambda name: name,
        (),
    ),
    "MiniMax-VL-01": (
        "MiniMax-Text-01",
        lambda config: {
            "architectures": ["MiniMaxVL01ForConditionalGeneration"],
            "model_type": "minimax_vl_01",
            "text_config": in_minimaxs_words(config, "MiniMaxText01ForCausalLM", "minimax_text_01"),
            "vision_config": {},
        },
        below_language_model,
        ("vision_tower.vision_model.a.weight", "multi_modal_projector.linear_1.weight", "image_newline"),
    ),
    # As its file is today, with the class of before.
    "Ministral 8B in its own words": (
        "Ministral 8B",
        lambda config: {**config, "architectures": ["MistralForCausalLM"], "model_type": "mistral"},
        lambda name: name,
        (),
    ),
    "MiMo 7B": (
        "Qwen 1.5, Qwen 2",
        lambda config: {
            **config,
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
        },
        lambda name: name,
        ("model.mtp_layers.0.token_layernorm.weight", "model.mtp_layers.0.self_attn.q_proj.bias"),
    ),
    # As MosaicML publishes it.
    "MPT in its own repositories": (
        "MPT",
        lambda config: {**config, "architectures": ["MPTForCausalLM"]},
        lambda name: name,
        (),
    ),
    # As inclusionAI publishes it: transformers saves outputs of both kinds of layers under one name.
    "Ling 3.0 in its own repositories": (
        "Ling 3.0",
        lambda config: {
            **config,
            "architectures": ["BailingMoeV3ForCausalLM"],
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {
                "partial_rotary_factor": 0.5,
                "rope_theta": 6000000.0,
                "rope_type": "default",
            },
            "no_kda_lora": True,
            "gated_attention_proj_granularity_type": "head_wise",
            "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
            "score_function": "sigmoid",
        },
        lambda name: re.sub(r"(layers\.[013]\.attention\.)dense", r"\1o_proj", name),
        ("model.layers.4.eh_proj.weight", "model.layers.4.attention.dense.weight"),
    ),
    # The name that conversions of Qwen3.8-Flash-Next have, and vLLM.
    "Qwen3.8-Flash-Next": (
        "Qwen 4",
        lambda config: {
            "architectures": ["Qwen3_8FlashNextForConditionalGeneration"],
            "model_type": "qwen3_8_flash_next",
            "text_config": {**config, "model_type": "qwen3_8_flash_next_text"},
            "vision_config": {},
        },
        lambda name: name.replace("model.", "model.language_model.", 1),
        ("model.visual.a.weight", "mtp.b.weight"),
    ),
    # As Liquid AI publishes it: what the model's own code calls proportional is "default" there.
    "LFM3 in its own repository": (
        "LFM3",
        lambda config: {
            **config,
            "rope_parameters": {
                kind: {**rope, "rope_type": "default"} for kind, rope in config["rope_parameters"].items()
            },
        },
        lambda name: name,
        (),
    ),
    # Think 32B as published: one more `model.` than transformers saves.
    "HyperCLOVA X SEED Think in its own repository": (
        "HyperCLOVA X SEED Vision",
        lambda config: {
            **config,
            "architectures": ["HCXVisionV2ForCausalLM"],
            "model_type": "vlm",
            "text_config": {**config["text_config"], "model_type": "hyperclovax"},
        },
        lambda name: re.sub(r"^model\.language_model\.(?!lm_head)", "model.language_model.model.", name),
        (
            "model.vision_model.a.weight",
            "model.mm_projector.b.weight",
            "model.discrete_vision_model.c.weight",
            "model.audio_model.d.weight",
            "model.audio_projector.e.weight",
            "model.discrete_audio_model.f.weight",
            "model.video_audio_compressor.g.weight",
        ),
    ),
    "Qwen3-ASR in its own repositories": (
        "Qwen 3",
        lambda config: {
            "architectures": ["Qwen3ASRForConditionalGeneration"],
            "model_type": "qwen3_asr",
            "thinker_config": {
                "model_type": "qwen3_asr_thinker",
                "text_config": {
                    **config,
                    "model_type": "qwen3_asr_text",
                    "rope_scaling": {
                        "interleaved": True,
                        "mrope_interleaved": True,
                        "mrope_section": [24, 20, 20],
                        "rope_type": "default",
                        "type": "default",
                    },
                },
                "audio_config": {},
            },
        },
        lambda name: f"thinker.{name}",
        ("thinker.audio_tower.a.weight",),
    ),
    # The first ones give an expert's width beside another one.
    "Aria-Chat": (
        "Aria",
        lambda config: {
            **config,
            "text_config": {
                **config["text_config"],
                "model_type": "aria_moe_lm",
                "moe_intermediate_size": config["text_config"]["intermediate_size"],
                "intermediate_size": 8 * config["text_config"]["intermediate_size"],
            },
        },
        lambda name: name,
        (),
    ),
    "Nemotron Nano 12B v2 VL": (
        "Nemotron-H",
        within("NemotronH_Nano_VL_V2", "NemotronH_Nano_VL_V2", "llm_config"),
        below_language_model,
        ("vision_model.a.weight", "mlp1.0.weight"),
    ),
    # As Microsoft publishes it, and vLLM reads it.
    "VibeVoice-ASR in its own repository": (
        "Qwen 1.5, Qwen 2",
        lambda config: {
            "architectures": ["VibeVoiceForASRTraining"],
            "model_type": "vibevoice",
            "decoder_config": {name: value for name, value in config.items() if name != "architectures"},
            "acoustic_tokenizer_config": {},
            "semantic_tokenizer_config": {},
        },
        lambda name: name.replace("model.", "model.language_model.", 1),
        (
            "model.acoustic_tokenizer.encoder.a.weight",
            "model.semantic_tokenizer.encoder.b.weight",
            "model.acoustic_connector.fc1.weight",
            "model.semantic_connector.norm.weight",
        ),
    ),
    "Kimi K2": (
        "DeepSeek V3",
        lambda config: {**config, "model_type": "kimi_k2"},
        lambda name: name,
        (),
    ),
}


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


def test_experts_of_qwen_3_5_may_be_stacked(tmp_path: Path) -> None:
    """As they are published: two tensors for all experts of a layer."""
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen 3.5 (experts)"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, list(range(3, 20)), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    for at in {name.partition(".experts.")[0] for name in tensors if ".experts." in name}:

        def stacked(which: str, at: str = at) -> torch.Tensor:
            names = [f"{at}.experts.{expert}.{which}.weight" for expert in range(6)]
            return torch.stack([tensors.pop(name) for name in names])

        tensors[f"{at}.experts.gate_up_proj"] = torch.cat((stacked("gate_proj"), stacked("up_proj")), 1)
        tensors[f"{at}.experts.down_proj"] = stacked("down_proj")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(), before)


def test_dots_3_note_is_read_as_published_and_as_transformers_saves_it() -> None:
    from transformers import Dots3NoteTextConfig

    published = FAMILIES["dots 3 Note"]
    saved = json.loads(Dots3NoteTextConfig(**published).to_json_string(use_diff=False))
    assert "swa_head_dim" not in saved and "per_layer_config" in saved
    read = read_config(published)
    assert isinstance(read, DecoderConfig) and len(read.latents) == 2
    assert read_config({**saved, "architectures": published["architectures"]}) == read


def test_a_table_of_ngrams_may_be_one_tensor(tmp_path: Path) -> None:
    """As transformers' module has it; published and saved it is in parts."""
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen 4"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, list(range(3, 20)), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    for at in {name.partition("shard_")[0] for name in tensors if "ngram_embedding.shard_" in name}:
        tensors[f"{at}weight"] = torch.cat([tensors.pop(f"{at}shard_{shard}.weight") for shard in range(5)])
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(), before)


@pytest.mark.parametrize("family", RENAMED)
def test_a_checkpoint_may_have_the_other_names_of_its_family(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    rename, added = RENAMED[family]
    folder = make(tmp_path, FAMILIES[family])
    prompt = ids(190, 3, 20)

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, prompt, 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys() or added
    # A head that is the embedding is the embedding once more; of all else no more than the name counts.
    renamed |= {name: torch.ones(1) for name in added if name != "lm_head.weight"}
    if "lm_head.weight" in added:
        renamed["lm_head.weight"] = renamed["transformer.word_embeddings.weight"].clone()
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits(), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["Kimi K2.5, Kimi-VL", "Qianfan-OCR", "Nemotron 3.5 Transcribe"])
def test_a_published_model_that_transformers_saves_again_is_read(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "published", FAMILIES[family])
    again = tmp_path / "again"
    kind_of(FAMILIES[family]).from_pretrained(folder, dtype=torch.float32).save_pretrained(again)
    (again / "config.json").write_text(json.dumps(FAMILIES[family]))
    torch.testing.assert_close(logits_of_text(again), logits_of_text(folder), atol=0, rtol=0)


@pytest.mark.parametrize("whole", WHOLES)
def test_the_text_of_a_larger_model_is_the_text_model(whole: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    family, around, rename, added = WHOLES[whole]
    folder = make(tmp_path, FAMILIES[family])
    prompt = ids(190, 3, 20)

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, prompt, 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    renamed = {rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    renamed |= {name: torch.ones(1) for name in added}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(around(FAMILIES[family])))
    torch.testing.assert_close(logits(), before, atol=0, rtol=0)


def test_the_text_of_granite_4_0_vision_attends_in_every_layer(tmp_path: Path) -> None:
    """It has the names of the family's hybrid models (mlx-vlm, pull request 1104); the text of 4.1 has those of Granite 3."""
    from safetensors.torch import load_file, save_file

    hybrid = FAMILIES["Granite 4 (dense)"]
    alone = hybrid | {
        "layer_types": ["attention"] * hybrid["num_hidden_layers"],
        "position_embedding_type": "rope",
    }
    folder = make(tmp_path, alone)
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    whole = within("Granite4VisionForConditionalGeneration", "granite4_vision")(alone)
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = load_file(folder / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    added = (
        "model.vision_tower.a.weight",
        "model.layerwise_projectors.0.b.weight",
        "model.spatial_projectors.0.c.weight",
    )
    named |= {name: torch.ones(1) for name in added}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_queries_of_ling_3_may_be_of_low_rank(tmp_path: Path) -> None:
    """Those of Ling-3.0-tiny are; transformers' class has none of these, and gets two matrices and a norm for its one."""
    from safetensors.torch import load_file, save_file
    from torch import nn
    from transformers import AutoModelForCausalLM

    config, rank = FAMILIES["Ling 3.0"], 12
    folder = make(tmp_path, config)
    prompt = ids(190, 3, 20)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    for at, layer in enumerate(model.model.layers):
        whole = tensors.get(f"model.layers.{at}.attention.q_proj.weight")
        if not hasattr(layer.self_attn, "kv_a_proj_with_mqa") or whole is None:
            continue
        parts = (
            nn.Linear(whole.shape[1], rank, bias=False),
            nn.RMSNorm(rank, eps=1e-6),
            nn.Linear(rank, whole.shape[0], bias=False),
        )
        layer.self_attn.q_proj = nn.Sequential(*parts)
        del tensors[f"model.layers.{at}.attention.q_proj.weight"]
        for name, part in zip(("q_a_proj", "q_a_layernorm", "q_b_proj"), parts, strict=True):
            tensors[f"model.layers.{at}.attention.{name}.weight"] = part.state_dict()["weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "q_lora_rank": rank}))
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_a_base_of_null_says_that_nothing_is_rotated() -> None:
    """Of OLMo Hybrid: wherever it stands, as transformers reads it; without one the usual base is meant."""

    def rotates(**changes: Any) -> bool:
        plain = {name: value for name, value in FAMILIES["OLMo Hybrid"].items() if "rope" not in name}
        read = read_config(plain | changes)
        assert isinstance(read, DecoderConfig)
        return any(layer.rope is not None for layer in read.layers)

    assert not rotates(rope_theta=None)
    assert not rotates(rope_parameters={"rope_type": "default", "rope_theta": None})
    assert not rotates(
        rope_parameters={"rope_type": None}
    )  # as allenai/Olmo-Hybrid-7B has had it since May 2026
    assert rotates(rope_parameters=None)  # as Olmo-Hybrid-Think-SFT-7B has it
    assert rotates(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def test_the_last_layers_of_ling_3_attend_where_its_own_code_names_it() -> None:
    def attends(architecture: str) -> list[int]:
        config = FAMILIES["Ling 3.0"] | {"architectures": [architecture], "num_hidden_layers": 5}
        read = read_config(config)
        assert isinstance(read, DecoderConfig)
        return [at for at, layer in enumerate(read.layers) if layer.attends]

    assert attends("BailingHybridForCausalLM") == [2]
    assert attends("BailingMoeV3ForCausalLM") == [2, 3, 4]


def test_experts_of_qwen3_vl_are_read_as_published_and_as_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen3-VL-MoE"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, ids(199, 3, 20), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
        for name, tensor in tensors.items()
    }
    assert any(turned[name].shape != tensor.shape for name, tensor in tensors.items())
    save_file(turned, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits(), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    "family",
    ["Qwen3-VL-MoE", "Llama 4", "Mistral Small 4 with images", "Gemma 4 26B A4B", "Hunyuan 4"],
)
def test_experts_that_a_class_stacks_may_be_in_tensors_of_their_own(family: str, tmp_path: Path) -> None:
    """As who quantizes such a model leaves them."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES[family])
    before = logits_of_text(folder)
    file = folder / "model.safetensors"
    save_file(experts_apart(load_file(file), turned=family == "Llama 4"), file, {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, None),
        ({"vision_config": {}}, "the model reads images, too; only its text is served"),
        (
            {"vision_config": {}, "audio_config": {}},
            "the model reads images and sound, too; only its text is served",
        ),
        ({"vision_config": {}, "audio_config": None}, "the model reads images, too; only its text is served"),
        ({"vit_config": {}}, "the model reads images, too; only its text is served"),
        ({"mm_vision_tower": "a"}, "the model reads images, too; only its text is served"),
        ({"thinker_config": {"audio_config": {}}}, "the model reads sound, too; only its text is served"),
    ],
)
def test_what_is_left_out_is_named(config: dict[str, Any], sentence: str | None) -> None:
    assert left_out(config) == sentence


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


def logits_of_text(folder: Path) -> torch.Tensor:
    """In fp32, of one prompt."""
    from client import row
    from driver import Driver

    driver = Driver(folder, torch.float32)
    driver.step([row(0, ids(190, 3, 20), 0, [0, 1], start={})])
    return driver.last_logits()


def test_minicpm_is_granite_under_other_names(tmp_path: Path) -> None:
    """transformers has no class of it."""
    granite = FAMILIES["Granite 3"] | {"attention_multiplier": 0.25, "residual_multiplier": 0.75}
    folder = make(tmp_path, granite)
    before = logits_of_text(folder)
    minicpm = {name: value for name, value in granite.items() if "multiplier" not in name}
    del minicpm["logits_scaling"]
    minicpm |= {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "dim_model_base": 32}
    minicpm |= {"scale_emb": 3, "scale_depth": 0.75 * 3**0.5}
    (folder / "config.json").write_text(json.dumps(minicpm))
    torch.testing.assert_close(logits_of_text(folder), before, atol=1e-6, rtol=1e-6)
    # With chosen keys it is served as long as it chooses none.
    read = read_config(minicpm | {"sparse_config": {"dense_len": 100}})
    assert isinstance(read, DecoderConfig) and read.max_positions == 100
    for name, value in (("num_experts", 8), ("mixer_types", ["lightning"])):
        with pytest.raises(UnusableModel, match=name):
            read_config(minicpm | {name: value})


def test_internlm_2_is_llama_with_one_matrix_for_queries_keys_and_values(tmp_path: Path) -> None:
    """Of which transformers has no class: alone, and as InternVL 2 and 2.5 have it."""
    from safetensors.torch import load_file, save_file

    config = FAMILIES["LLaMA 2"] | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    folder = make(tmp_path, config)
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    tensors = load_file(folder / "model.safetensors")
    names = {
        "embed_tokens": "tok_embeddings",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "lm_head": "output",
    }
    for at in range(config["num_hidden_layers"]):
        q, k, v = (tensors.pop(f"model.layers.{at}.self_attn.{name}_proj.weight") for name in "qkv")
        grouped = (
            q.view(kv_heads, heads // kv_heads, size, -1),
            *(one.view(kv_heads, 1, size, -1) for one in (k, v)),
        )
        tensors[f"model.layers.{at}.attention.wqkv.weight"] = torch.cat(grouped, 1).flatten(0, 2).contiguous()
    alone = config | {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False}
    whole = within("InternVLChatModel", "internvl_chat", "llm_config")(alone)
    for written, prefix in ((alone, ""), (whole, "language_model.")):
        named = {"mlp1.0.weight": torch.ones(1)} if prefix else {}
        for name, tensor in tensors.items():
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            named[prefix + name] = tensor
        save_file(named, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(written))
        torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_internlm_3_is_llama(tmp_path: Path) -> None:
    """As published, with a rotation that longer sequences would stretch; transformers has no class of it."""
    config = FAMILIES["LLaMA 2"] | {
        "head_dim": 32,
        "rope_theta": 50000000,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    }
    folder = make(tmp_path, config)
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    own = {"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "qkv_bias": False}
    (folder / "config.json").write_text(json.dumps(config | own | {"bias": False}))
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_step_3_5_is_the_text_of_step_3_7(tmp_path: Path) -> None:
    folder = make(tmp_path, FAMILIES["Step 3.7 Flash"])
    before = logits_of_text(folder)
    (folder / "config.json").write_text(json.dumps(STEP_3_5))
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


def test_what_only_the_text_model_says_is_found() -> None:
    config = {"text_config": {"dtype": "bfloat16", "eos_token_id": [5, 7]}, "eos_token_id": None}
    assert dtype_name(config, "auto") == "bfloat16"
    assert dtype_name({**config, "torch_dtype": "float16"}, "auto") == "float16"
    assert dtype_name({}, "auto") == "float32"
    assert eos_ids(config, {"eos_token_id": 3}) == [3, 5, 7]
    assert dtype_name({"language_config": {"torch_dtype": "bfloat16"}}, "auto") == "bfloat16"


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
