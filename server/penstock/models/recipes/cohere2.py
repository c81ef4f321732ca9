"""Command R7B and A: layers with a sliding window are rotated, those without know no positions."""

from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import cohere
from penstock.models.recipes.fields import Fields

KEYS = cohere.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = cohere.read_config(config)
    pattern = fields.count("sliding_window_pattern", default=4)
    default = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(read.num_layers)]
    local = [kind == "sliding_attention" for kind in fields.layer_kinds(read.num_layers, default)]
    window = Window(fields.count("sliding_window", default=4096))
    return read.with_layers(
        window=[window if here else None for here in local],
        rope=[layer.rope if here else None for layer, here in zip(read.layers, local, strict=True)],
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
