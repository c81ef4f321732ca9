"""GLM-4 (0414), and the text of GLM-4.1V and GLM-OCR: GLM with norms of what each branch gives."""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, glm

KEYS = replace(
    glm.KEYS,
    attention_out_norm="post_self_attn_layernorm",
    feed_forward_out_norm="post_mlp_layernorm",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(glm.read_config(config), branch_norm=True)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """The layer of GLM-OCR that predicts several tokens ahead comes after the others, and is not used."""
    return replace(KEYS, ignored=deepseek.predicting_layers(config))


RECIPE = DecoderRecipe(read_config, keys)
