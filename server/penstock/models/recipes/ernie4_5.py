"""ERNIE 4.5, the dense models: Llama with interleaved rotary planes."""

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
    bias = fields.flag("use_bias")
    defaults = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
    read = llama.read_config({**defaults, **config, "attention_bias": bias, "mlp_bias": bias})
    return replace(read, interleaved=True, tied_head=fields.flag("tie_word_embeddings", True))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
