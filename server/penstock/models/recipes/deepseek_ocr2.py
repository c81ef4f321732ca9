"""The text of DeepSeek-OCR and DeepSeek-OCR 2: Llama's attention with the experts of DeepSeek V2."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields

KEYS = deepseek.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields({"n_shared_experts": 2, **config})
    fields.refuse("use_mla", False)
    read = llama.read_config(config)
    experts = deepseek.softmax_experts(fields)
    return read.with_layers(
        experts=[experts if here else None for here in fields.sparse_layers(read.num_layers)]
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
