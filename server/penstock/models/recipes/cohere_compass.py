"""Cohere Compass and North Micro: Command R7B whose kinds of layers have rotary tables of their own, or none."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import cohere
from penstock.models.recipes.fields import Fields

KEYS = cohere.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    ropes = fields.part("rope_parameters").config
    scale = fields.number("logit_scale", default=1.0)
    read = cohere.read_config({**config, "logit_scale": scale, "rope_parameters": None})
    positions = fields.count("max_position_embeddings", default=8192)
    kinds = fields.attention_kinds(read.num_layers, ["full_attention"] * read.num_layers)
    window = Window(fields.count("sliding_window", default=4096))
    tables = {
        kind: fields.rope(read.head_dim, positions, kind=kind) if ropes.get(kind) is not None else None
        for kind in set(kinds)
    }
    read = replace(read, max_positions=positions, interleaved=False)
    return read.with_layers(
        window=[window if kind == "sliding_attention" else None for kind in kinds],
        rope=[tables[kind] for kind in kinds],
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
