"""Ministral 3: Mistral whose queries are scaled by their position."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Temperature
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mistral
from penstock.models.recipes.fields import Fields

KEYS = mistral.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    read = mistral.read_config({"rms_norm_eps": 1e-5, "head_dim": 128, **config})
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = Fields(config).part(name)
    scale = rope.number("llama_4_scaling_beta", default=0.0)
    if not scale:
        return read
    temperature = Temperature(scale, rope.count("original_max_position_embeddings"))
    return replace(read, layers=tuple(replace(layer, temperature=temperature) for layer in read.layers))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
