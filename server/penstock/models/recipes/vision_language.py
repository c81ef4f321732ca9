"""The text of models that read images, too, by the recipe of the family that their text model is of: Qwen-VL, GLM-V,
InternVL, Kimi-VL, Llama 4, LLaVA, Emu 3, Fuyu, and what else puts a known text model beside an encoder of images or sound.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.models.architectures import architecture_of
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe, ModelLoader
from penstock.models.recipes import cosmos3_edge
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.text_defaults import DEFAULTS, SAID_BY_CODE, UNSAID
from penstock.models.recipes.text_of_vision_models import text_config, text_keys
from penstock.parallel.group import TensorGroup

# The recipe of a text model, by its `model_type`.
FAMILIES = {
    "LLaVAOneVision1_5_text": "qwen3",
    "aria_moe_lm": "aria",
    "aria_text": "aria",
    "cohere": "cohere",
    "cohere2": "cohere2",
    "cohere2_moe": "cohere2_moe",
    "cohere_compass_text": "cohere_compass",
    "cosmos3_edge_text": "cosmos3_edge",
    "deepseek_ocr2_text": "deepseek_ocr2",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "emu3_text_model": "llama",
    "ernie4_5_vl_moe_text": "ernie4_5_vl_moe",
    "exaone4": "exaone4",
    "exaone4_5_text": "exaone4",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4",
    "glm4": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "glm_ocr_text": "glm4",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "granite4_vision_text": "granite",
    "granite_docling_text": "granite",
    "granitemoehybrid": "granitemoehybrid",
    "hunyuan_vl_text": "hunyuan_v1",
    "hyperclovax": "hyperclovax",
    "internlm2": "internlm2",
    "kimi_k2": "deepseek",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2_moe",
    "lfm3": "lfm3",
    "llama": "llama",
    "llama4_text": "llama4",
    "minimax_text_01": "minimax",
    "minimax_vl_01_text": "minimax",
    "ministral3": "ministral3",
    "mistral": "mistral",
    "mistral4": "mistral4",
    "molmo2_text": "molmo2",
    "nemotron_h": "nemotron_h",
    "opt": "opt",
    "paddleocr_vl_text": "paddleocr_vl",
    "persimmon": "persimmon",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_asr_text": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_vl_text": "qwen3",
    "smollm3": "smollm3",
}

# The text model of a family that does not name it.
UNNAMED = {
    "Emu3": "emu3_text_model",
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "cohere_compass": "cohere_compass_text",
    "cosmos3_edge": "cosmos3_edge_text",
    "cosmos3_omni": "qwen3_vl_text",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_ocr2_text",  # of DeepSeek-OCR, which says so as well
    "emu3": "emu3_text_model",
    "ernie4_5_moe_vl": "ernie4_5_vl_moe_text",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "fun_asr_nano": "qwen3",
    "fuyu": "persimmon",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "glmasr": "llama",
    "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text",
    "granite_docling": "granite_docling_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hunyuan_vl": "hunyuan_vl_text",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "instructblip": "opt",
    "instructblipvideo": "opt",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "mistral3": "mistral",
    "molmo2": "molmo2_text",
    "multi_modality": "llama",
    "nemo_speechlm": "nemotron_h",
    "nemotron_h_omni": "nemotron_h",
    "ovis2": "qwen2",
    "paddleocr_vl": "paddleocr_vl_text",
    "perception_lm": "llama",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "vibevoice_asr": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "videollama3_qwen2": "qwen2",
    "vipllava": "llama",
    "voxtral": "llama",
}

# The same of LLaVA in its authors' repositories, all of which have the model_type "llava".
UNNAMED_OF_ARCHITECTURE = {
    "LlavaLlamaForCausalLM": "llama",
    "LlavaMistralForCausalLM": "mistral",
    "LlavaQwen2ForCausalLM": "qwen2",
    "LlavaQwenForCausalLM": "qwen2",
}

# And of MiniCPM-V, by its `version`.
UNNAMED_OF_VERSION = {"2.6": "qwen2", "4.5": "qwen3"}


def unnamed(config: dict[str, Any]) -> str | None:
    """The text model of a family that does not name it; None: it is not known."""
    kind = str(config.get("model_type"))
    if kind == "minicpmv":
        return UNNAMED_OF_VERSION.get(str(config.get("version")))
    return UNNAMED_OF_ARCHITECTURE.get(architecture_of(config) or "") or UNNAMED.get(kind)


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The text model's config.json, as its family has it. Raises UnusableModel."""
    # Qwen-Omni, beside what speaks, and Qwen3-ASR, whose thinker does not name itself.
    if "thinker_config" in config:
        thinker = Fields(config).part("thinker_config").config
        return text_of({**thinker, "model_type": thinker.get("model_type") or config.get("model_type")})
    if "text_config" in config:
        text = text_config(config, {})
    elif "llm_config" in config:  # of InternVL and Ovis in their own repositories
        text = Fields(config).part("llm_config").config
    elif "language_config" in config:  # of DeepSeek-OCR, DeepSeek-VL and Janus in DeepSeek's repositories
        text = Fields(config).part("language_config").config
    elif "decoder_config" in config:  # of VibeVoice-ASR in its own repository
        text = Fields(config).part("decoder_config").config
    else:  # the first Qwen-VL have the text model's fields beside those of the whole
        text = {**UNSAID.get(str(config.get("model_type")), {}), **config, "model_type": None}
    kind = text.get("model_type") or unnamed(config)
    if kind not in FAMILIES:
        raise UnusableModel(
            f"config.json: the text model has the model_type {kind!r}; served are {', '.join(sorted(FAMILIES))}"
        )
    return {
        **DEFAULTS.get(kind, {}),
        **SAID_BY_CODE.get(kind, {}),
        **text_rope(text),
        "model_type": kind,
    }


def text_rope(text: dict[str, Any]) -> dict[str, Any]:
    """Without M-RoPE: tokens of text have one position on all its axes, which is the ordinary one."""
    scaling = text.get("rope_scaling")
    if not isinstance(scaling, dict):
        return text
    if "mrope" not in (scaling.get("type"), scaling.get("rope_type")):
        return text
    return {**text, "rope_scaling": {**scaling, "rope_type": "default", "type": None}}


def recipe_of_text(text: dict[str, Any]) -> DecoderRecipe:
    """Its family's recipe."""
    recipe: DecoderRecipe = import_module(f"penstock.models.recipes.{FAMILIES[text['model_type']]}").RECIPE
    return recipe


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_of(config)
    return recipe_of_text(text).shape(text)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Those of the text model, within the whole."""
    text = text_of(config)
    found = recipe_of_text(text).keys(text)
    if config.get("model_type") == "nemo_speechlm":  # Nemotron-H by the names that others have
        found = replace(found, embedding="embed_tokens", norm="norm")
    if config.get("model_type") == "cosmos3_omni":
        found = replace(found, ignored=(*found.ignored, *cosmos3_edge.GENERATOR))
    return text_keys(found)


# What the newer checkpoints of Cosmos 3 call the parts of a layer, in the words of diffusers.
DIFFUSERS = {
    "self_attn.q_proj": "self_attn.to_q",
    "self_attn.k_proj": "self_attn.to_k",
    "self_attn.v_proj": "self_attn.to_v",
    "self_attn.o_proj": "self_attn.to_out",
    "self_attn.q_norm": "self_attn.norm_q",
    "self_attn.k_norm": "self_attn.norm_k",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
}


def keys_of_diffusers(keys: CheckpointKeys) -> CheckpointKeys:
    """The same with these names."""
    named = {part.name: getattr(keys, part.name) for part in fields(keys)}
    renamed: dict[str, Any] = {
        part: DIFFUSERS[name] for part, name in named.items() if isinstance(name, str) and name in DIFFUSERS
    }
    return replace(keys, **renamed)


# What transformers 5.23 calls the layers of the text where it saves these models again, since the names of the encoder are given to them as
# well: the prefix of the published names, and a layer below it.
SAVED_AGAIN = {
    "kimi_k25": ("language_model.model.", "blocks.{}."),
    "qianfan_ocr": ("language_model.model.", "encoder.layers.{}."),
}


def names_of_layers(config: dict[str, Any], keys: CheckpointKeys, checkpoint: Checkpoint) -> CheckpointKeys:
    """The same with those in the checkpoint."""
    prefix, layer = SAVED_AGAIN.get(str(config.get("model_type")), ("", ""))
    first = f"{prefix}{layer.format(0)}{keys.attention_norm}.weight"
    return replace(keys, layer=layer) if layer and checkpoint.has(first) else keys


@dataclass(frozen=True)
class TextRecipe(DecoderRecipe):
    """Reads the text model as its family's recipe does."""

    def loader_of(
        self, config: dict[str, Any]
    ) -> Callable[[DecoderConfig, CheckpointKeys, Checkpoint, TensorGroup], ModelLoader]:
        """See Recipe."""
        loader = recipe_of_text(text_of(config)).loader
        is_cosmos = str(config.get("model_type")).startswith("cosmos3")

        def loader_of_names(
            shape: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
        ) -> ModelLoader:
            if is_cosmos and checkpoint.has("layers.0.self_attn.to_q.weight"):
                keys = keys_of_diffusers(keys)
            return loader(shape, names_of_layers(config, keys, checkpoint), checkpoint, group)

        return loader_of_names


RECIPE = TextRecipe(read_config, keys)
