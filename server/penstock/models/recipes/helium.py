"""Helium 1: Llama with interleaved rotary planes."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    defaults = {"rope_theta": 100000.0, "rms_norm_eps": 1e-8, "max_position_embeddings": 4096}
    return replace(llama.read_config({**defaults, **config}), interleaved=True)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
