"""Seed-OSS: Llama with biases of queries, keys and values."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"attention_bias": True, "head_dim": 128, **config})
    return replace(read, attention_out_bias=fields.flag("attention_out_bias"))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
