"""GLM-4 (0414): GLM with norms of what each branch gives."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import glm

KEYS = replace(
    glm.KEYS,
    attention_out_norm="post_self_attn_layernorm",
    feed_forward_out_norm="post_mlp_layernorm",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(glm.read_config(config), branch_norm=True)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
