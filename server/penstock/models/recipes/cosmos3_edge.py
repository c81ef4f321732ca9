"""The text of Cosmos 3 Edge: Arcee's layers under other names. What makes images and actions stays in the file."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import arcee

# What makes images, sound and actions in every Cosmos 3.
GENERATOR = (
    r"(?:.*\.)?(?:(?:action|audio)_(?:modality_embed|proj_(?:in|out))|time_embedder|proj_(?:in|out)|norm_moe_gen)(?:\..*)?",
    r"(?:.*\.)?layers\.\d+\.(?:input_layernorm|post_attention_layernorm|mlp)_moe_gen\..*",
    r"(?:.*\.)?layers\.\d+\.self_attn\.(?:add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\..*",
)
KEYS = replace(arcee.KEYS, gate="", up="mlp.fc1", down="mlp.fc2", ignored=GENERATOR)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return arcee.read_config({"rope_theta": 1e8, "max_position_embeddings": 131072, **config})


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
