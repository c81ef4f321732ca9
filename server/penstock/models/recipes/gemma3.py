"""Gemma 3, the text models: five layers with a sliding window and a rotary table of their own, then one without."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma2
from penstock.models.recipes.fields import Fields

KEYS = replace(gemma2.KEYS, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("use_bidirectional_attention", False)
    layers, pattern = fields.count("num_hidden_layers"), fields.count("sliding_window_pattern", default=6)
    default = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    kinds = fields.layer_kinds(layers, default)
    read = gemma2.read_config({**config, "layer_types": kinds})
    positions = fields.count("max_position_embeddings", default=131072)
    everywhere = fields.rope(read.head_dim, positions, theta=1e6, kind="full_attention")
    if "sliding_attention" in (config.get("rope_parameters") or {}):
        local = fields.rope(read.head_dim, positions, kind="sliding_attention")
    else:
        theta = fields.number("rope_local_base_freq", default=10000.0)
        local = Fields({"rope_theta": theta}).rope(read.head_dim, positions)
    return replace(read, max_positions=positions, qk_norm=read.norm).with_layers(
        rope=[local if kind == "sliding_attention" else everywhere for kind in kinds]
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
