"""Bamba: most layers are Mamba 2, some attention with half-rotated heads; a dense feed-forward layer in each."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2_layers import Mamba2Loader, read_mamba2, with_kinds

KEYS = replace(
    llama.KEYS,
    norm="model.final_layernorm",
    feed_forward_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    # Half of each head is rotated, whatever the file says.
    rope = fields.part("rope_parameters").config
    half = {"partial_rotary_factor": 0.5}
    positions = {"max_position_embeddings": 262_144}  # of transformers' class, where the file has none
    read = llama.read_config(
        {**positions, **config, **half, "rope_parameters": {**rope, **half} if rope else None}
    )
    indices = config.get("attn_layer_indices") or []
    kinds = ["full_attention" if i in indices else "linear_attention" for i in range(read.num_layers)]
    return with_kinds(read, kinds, read_mamba2(fields, read.width))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, Mamba2Loader)
