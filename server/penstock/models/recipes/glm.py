"""GLM-4 in its first version: half of each head is rotated, planes are interleaved, gate and up are one matrix."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = replace(llama.KEYS, gate="", up="", gate_up="mlp.gate_up_proj")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({**config, "mlp_bias": False})
    positions = fields.count("max_position_embeddings", default=131072)
    rope = fields.rope(read.head_dim, positions, share=0.5)
    read = replace(read, max_positions=rope.max_positions, interleaved=True, attention_out_bias=False)
    return read.with_layers(rope=[rope] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
