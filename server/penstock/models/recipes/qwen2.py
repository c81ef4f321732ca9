"""Qwen 1.5 and 2: Llama with biases of queries, keys and values; the last layers may have a sliding window."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

NAMES = llama.NAMES


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return windowed(config, replace(llama.read_config(config), qkv_bias=True))


def windowed(config: dict[str, Any], read: DecoderConfig) -> DecoderConfig:
    """With the window that `use_sliding_window` gives to the layers from `max_window_layers` on."""
    fields = Fields(config)
    if not fields.flag("use_sliding_window") or config.get("sliding_window") is None:
        return read
    first = fields.whole("max_window_layers", 28)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(read.layers)]
    kinds = fields.layer_kinds(read.layers, default)
    return replace(
        read,
        windows=(None, Window(fields.count("sliding_window"))),
        window_of=tuple(int(kind == "sliding_attention") for kind in kinds),
    )
