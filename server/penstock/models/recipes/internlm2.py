"""InternLM 2 and 2.5: Llama whose queries, keys and values are one matrix, under names of its own. Source: its own code and published indices."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama

KEYS = CheckpointKeys(
    embedding="model.tok_embeddings",
    layer="model.layers.{}.",
    norm="model.norm",
    head="output",
    attention_norm="attention_norm",
    feed_forward_norm="ffn_norm",
    qkv="attention.wqkv",
    qkv_order="groups",
    out="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return llama.read_config({**config, "attention_bias": config.get("bias", True), "mlp_bias": False})


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
