"""Command R7B and A: layers with a sliding window are rotated, those without know no positions."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipes import cohere
from penstock.models.recipes.fields import Fields

NAMES = cohere.NAMES


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = cohere.read_config(config)
    pattern = fields.count("sliding_window_pattern", default=4)
    default = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(read.layers)]
    local = tuple(kind == "sliding_attention" for kind in fields.layer_kinds(read.layers, default))
    return replace(
        read,
        windows=(None, Window(fields.count("sliding_window", default=4096))),
        window_of=tuple(map(int, local)),
        rope_of=tuple(0 if here else None for here in local),
    )
