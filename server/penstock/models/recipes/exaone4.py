"""EXAONE 4: what a branch gives is normalised, and not what it reads; in the large models three layers of four have a
sliding window, and only these are rotated.
"""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, olmo2
from penstock.models.recipes.fields import Fields

KEYS = olmo2.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    read = replace(llama.read_config({"rms_norm_eps": 1e-5, **config}), pre_norm=False, branch_norm=True)
    return with_windows(config, replace(read, qk_norm=read.norm))


def with_windows(config: dict[str, Any], read: DecoderConfig) -> DecoderConfig:
    """With a window, where the family has one, in the layers that `layer_types` or `sliding_window_pattern` say."""
    fields = Fields(config)
    size = fields.whole("sliding_window", 0)
    if not size:
        return read
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):  # "LLLG": local and global layers by turns
        if not pattern or set(pattern) - set("LG"):
            fields.refuse("sliding_window_pattern", "LLLG")
        local = [pattern[at % len(pattern)] == "L" for at in range(read.num_layers)]
    else:
        every = fields.count("sliding_window_pattern", default=4)
        local = [(at + 1) % every != 0 for at in range(read.num_layers)]
    default = ["sliding_attention" if here else "full_attention" for here in local]
    kinds = fields.attention_kinds(read.num_layers, default)
    local = [kind == "sliding_attention" for kind in kinds]
    return read.with_layers(
        window=[Window(size) if here else None for here in local],
        rope=[layer.rope if here else None for layer, here in zip(read.layers, local, strict=True)],
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
