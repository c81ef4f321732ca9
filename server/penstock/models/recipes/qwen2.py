"""Qwen 1.5 and 2: Llama with biases of queries, keys and values; the last layers may have a sliding window."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return windowed(config, replace(llama.read_config(config), qkv_bias=True))


def windowed(config: dict[str, Any], read: DecoderConfig) -> DecoderConfig:
    """With the window that `use_sliding_window` gives to the layers from `max_window_layers` on."""
    fields = Fields(config)
    if not fields.flag("use_sliding_window") or config.get("sliding_window") is None:
        return read
    first = fields.whole("max_window_layers", 28)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(read.num_layers)]
    kinds = fields.layer_kinds(read.num_layers, default)
    window = Window(fields.count("sliding_window"))
    return read.with_layers(window=[window if kind == "sliding_attention" else None for kind in kinds])


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
