"""Gemma 1: Llama with scaled embeddings, and norms whose weights are stored as their difference to 1."""

import math
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
    read = llama.read_config({**config, "hidden_act": "gelu_pytorch_tanh"})
    activation = fields.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    return replace(
        read,
        norm=fields.norm("rms_norm_eps", 1e-6, offset=1.0),
        # The first checkpoints say "gelu" and were trained with its approximation.
        activation="gelu_pytorch_tanh" if activation == "gelu" else activation,
        embedding_scale=math.sqrt(read.width),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
