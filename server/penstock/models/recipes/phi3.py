"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: Llama with fewer and larger tensors."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    q="",
    k="",
    v="",
    qkv="self_attn.qkv_proj",
    gate="",
    up="",
    gate_up="mlp.gate_up_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config(config)
    # Some of the first ones said "yarn" and meant longrope.
    variant = read.ropes[0].variant
    if variant not in ("default", "longrope"):
        raise UnusableModel(
            f"config.json: rope_scaling has the type {variant!r}; of Phi 3 only longrope is served"
        )
    size = fields.whole("sliding_window", 0)
    window = Window(size) if 0 < size < read.max_positions else None
    return replace(read, norm=fields.norm("rms_norm_eps", 1e-5)).with_layers(
        window=[window] * read.num_layers
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
