"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 whose query heads share one key head, or each with its own."""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gpt2
from penstock.models.recipes.fields import Fields


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """With a key head for each, a head's query, key and value are neighbours."""
    shared = Fields(config).flag("multi_query", True)
    return replace(gpt2.KEYS, transposed=False, qkv_order="stacked" if shared else "heads")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices. What it says of softmax and fp32 concerns rounding alone."""
    fields = Fields(config)
    read = gpt2.read_config(config)
    return replace(
        read,
        activation=fields.activation("activation_function", default="gelu_pytorch_tanh"),
        kv_heads=1 if fields.flag("multi_query", True) else read.heads,
    )


RECIPE = DecoderRecipe(read_config, keys)
