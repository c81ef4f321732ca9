"""Models that read more than text, as they are published: their text model is the text model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import ids, logits_of, logits_of_text, make, within
from newer_families import STEP_3_5
from ranks import TESTS  # noqa: F401  (where the driver is)

from penstock.loading.model_files import dtype_name, eos_ids
from penstock.models.architectures import left_out

Rename = Callable[[str], str]


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
    # The main one of three: its text is called V2, and chooses experts as V3 does.
    "DeepSeek-VL2 (27B)": (
        "DeepSeek V3",
        lambda config: within("DeepseekVLV2ForCausalLM", "deepseek_vl_v2", "language_config")(
            {**config, "model_type": "deepseek_v2"}
        ),
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


@pytest.mark.parametrize("whole", WHOLES)
def test_the_text_of_a_larger_model_is_the_text_model(whole: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    family, around, rename, added = WHOLES[whole]
    folder = make(tmp_path, FAMILIES[family])
    before = logits_of_text(folder)
    renamed = {rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    renamed |= {name: torch.ones(1) for name in added}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(around(FAMILIES[family])))
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


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
