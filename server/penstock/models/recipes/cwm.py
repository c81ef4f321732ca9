"""Code World Model: Llama with a sliding window in three layers of four."""

from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"rope_theta": 1e6, "rms_norm_eps": 1e-5, "head_dim": 128, **config})
    default = ["sliding_attention" if at % 4 else "full_attention" for at in range(read.num_layers)]
    kinds = fields.attention_kinds(read.num_layers, default)
    window = Window(fields.count("sliding_window", default=8192))
    return read.with_layers(window=[window if kind == "sliding_attention" else None for kind in kinds])


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
