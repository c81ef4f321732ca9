"""OLMo 1: norms without weights, and clipped queries, keys and values."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, NormConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(
        llama.read_config(config),
        norm=NormConfig(1e-5, layer=True, weight=False),
        clip_qkv=Fields(config).number("clip_qkv", default=0.0),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
