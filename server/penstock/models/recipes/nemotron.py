"""Nemotron 3 and 4, Minitron: layer norms whose weights are stored as their difference to 1, half of each head rotated,
and a feed-forward layer without a gate.
"""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import arcee, llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS

# What the rotated part of a head is called, and was.
PORTIONS = ("partial_rotary_factor", "partial_rotary_percent", "rope_percent")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    # The first ones say "partial_rotary_percent" or "rope_percent".
    share = next((config[name] for name in PORTIONS if config.get(name) is not None), 0.5)
    fields = Fields({**config, "partial_rotary_factor": share})
    read = arcee.read_config({"max_position_embeddings": 4096, **config})
    rope = fields.rope(read.head_dim, fields.count("max_position_embeddings", default=4096))
    read = replace(read, norm=fields.norm("norm_eps", 1e-5, layer=True, bias=True, offset=1.0))
    return read.with_layers(rope=[rope] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
