"""Solar Open: GLM-4.5 with experts in every layer, and whole heads rotated."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields

KEYS = deepseek.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    defaults = {"max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "head_dim": 128}
    # Its configuration is GLM's, which has a width of dense layers that no layer uses.
    read = llama.read_config({**defaults, "intermediate_size": 1, **config, "mlp_bias": False})
    experts = deepseek.sigmoid_experts(fields, default_shared=1)
    read = replace(read, feed_forward=experts.width, attention_out_bias=False)
    return read.with_layers(experts=[experts] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
