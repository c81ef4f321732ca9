"""GPT (1): GPT-2 with norms after each sum."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gpt2
from penstock.models.recipes.fields import Fields

KEYS = replace(
    gpt2.KEYS,
    embedding="tokens_embed",
    positions="positions_embed",
    attention_norm="",
    feed_forward_norm="",
    attention_out_norm="ln_1",
    feed_forward_out_norm="ln_2",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    activation = fields.activation("afn", default="gelu")
    read = gpt2.read_config({"n_positions": 512, **config, "n_inner": None})
    return replace(
        read,
        activation="gelu_new" if activation == "gelu" else activation,  # its name for the approximation
        pre_norm=False,
        sum_norm=True,
        final_norm=False,
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
