"""Ministral 8B (2024): Mistral whose window is of some layers."""

from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read, size = llama.read_config(config), fields.whole("sliding_window", 0)
    default = ["sliding_attention" if size else "full_attention"] * read.num_layers
    kinds = fields.attention_kinds(read.num_layers, default)
    if "sliding_attention" in kinds:
        size = fields.count("sliding_window")
    return read.with_layers(window=[Window(size) if kind == "sliding_attention" else None for kind in kinds])


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
