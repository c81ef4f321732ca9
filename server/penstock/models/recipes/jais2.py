"""Jais 2: layer norms, biases everywhere, and a feed-forward layer without a gate."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import arcee, llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    defaults = {"attention_bias": True, "mlp_bias": True, "max_position_embeddings": 8192}
    read = arcee.read_config({**defaults, **config})
    return replace(read, norm=Fields(config).norm("layer_norm_eps", 1e-5, layer=True, bias=True))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
