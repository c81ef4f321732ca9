"""The text of models that read images, too, by the recipe of the family that their text model is of: Qwen-VL, GLM-V,
InternVL, Kimi-VL, Llama 4, LLaVA, Emu 3, Fuyu, and what else puts a known text model beside an encoder of images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe, ModelLoader
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.text_of_vision_models import text_config, text_keys
from penstock.parallel.group import TensorGroup

# The recipe of a text model, by its `model_type`.
FAMILIES = {
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "emu3_text_model": "llama",
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
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "kimi_k2": "deepseek",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2_moe",
    "lfm3": "lfm3",
    "llama": "llama",
    "llama4_text": "llama4",
    "ministral3": "ministral3",
    "mistral": "mistral",
    "mistral4": "mistral4",
    "nemotron_h": "nemotron_h",
    "persimmon": "persimmon",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "smollm3": "smollm3",
}

# Fields that a family's text configuration leaves out, since its code says them.
SAID_BY_CODE: dict[str, dict[str, Any]] = {
    "emu3_text_model": {"rope_theta": 1000000.0, "rms_norm_eps": 1e-5},
    "glm4v_moe_text": {"attention_bias": True},
    "glm4v_text": {"attention_bias": True},
    "persimmon": {"rope_theta": 25000.0},
    "qwen2_vl_text": {"rope_theta": 1000000.0},
    "qwen2_5_vl_text": {"rope_theta": 1000000.0},
    "qwen3_vl_text": {"rope_theta": 500000.0},
}

# The text model of a family that does not name it.
UNNAMED = {
    "deepseek_vl": "llama",
    "emu3": "emu3_text_model",
    "exaone4_5": "exaone4",
    "fuyu": "persimmon",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "glm4v_moe": "glm4v_moe_text",
    "internvl": "qwen2",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "mistral3": "mistral",
    "nemotron_h_omni": "nemotron_h",
    "ovis2": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
}


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The text model's config.json, as its family has it. Raises UnusableModel."""
    if "text_config" in config:
        text = text_config(config, {})
    elif "llm_config" in config:  # of InternVL in its own repositories
        text = Fields(config).part("llm_config").config
    else:  # the first Qwen-VL have the text model's fields beside those of the whole
        text = {**config, "model_type": None}
    kind = text.get("model_type") or UNNAMED.get(str(config.get("model_type")))
    if kind not in FAMILIES:
        raise UnusableModel(
            f"config.json: the text model has the model_type {kind!r}; served are {', '.join(sorted(FAMILIES))}"
        )
    return {**SAID_BY_CODE.get(kind, {}), **text_rope(text), "model_type": kind}


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
    return text_keys(recipe_of_text(text).keys(text))


@dataclass(frozen=True)
class TextRecipe(DecoderRecipe):
    """Reads the text model as its family's recipe does."""

    def loader_of(
        self, config: dict[str, Any]
    ) -> Callable[[DecoderConfig, CheckpointKeys, Checkpoint, TensorGroup], ModelLoader]:
        """See Recipe."""
        return recipe_of_text(text_of(config)).loader


RECIPE = TextRecipe(read_config, keys)
