"""Arcee AFM: Llama whose feed-forward layer has no gate, with the square of a ReLU."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(
        llama.read_config({"hidden_act": "relu2", "rms_norm_eps": 1e-5, **config}),
        gated=False,
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
