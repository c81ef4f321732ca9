"""OLMo 2: what a branch gives is normalised, and not what it reads; so are all queries, and all keys, at once."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama

KEYS = replace(
    llama.KEYS,
    attention_norm="",
    feed_forward_norm="",
    attention_out_norm="post_attention_layernorm",
    feed_forward_out_norm="post_feedforward_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    read = llama.read_config(config)
    return replace(read, pre_norm=False, branch_norm=True, qk_norm=read.norm, qk_norm_over="all")


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
