"""Mistral: Llama with, in its first version, a sliding window in every layer."""

from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, ministral
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    # Ministral 8B is published as Mistral: transformers takes one with kinds of layers for its class of today.
    if config.get("model_type") == "mistral" and config.get("layer_types") is not None:
        return ministral.read_config(config)
    read, size = llama.read_config(config), Fields(config).whole("sliding_window", 0)
    return read.with_layers(window=[Window(size) if size else None] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
