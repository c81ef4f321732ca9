"""Gemma 2: norms around each branch, soft caps, and a sliding window in every other layer."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma, llama
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    attention_out_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_out_norm="post_feedforward_layernorm",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = gemma.read_config(config)
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(read.num_layers)]
    kinds = fields.layer_kinds(read.num_layers, default)
    window = Window(fields.count("sliding_window", default=4096))
    read = replace(
        read,
        scale=fields.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        softcap=fields.number("attn_logit_softcapping", default=0.0),
        logit_softcap=fields.number("final_logit_softcapping", default=0.0),
        branch_norm=True,
    )
    return read.with_layers(window=[window if kind == "sliding_attention" else None for kind in kinds])


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
