"""OLMo 3: OLMo 2 with a sliding window in three layers of four; a stretched context is of the others alone."""

from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import olmo2
from penstock.models.recipes.fields import Fields

KEYS = olmo2.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    theta = {"rope_theta": 500000.0, **{k: v for k, v in config.items() if k == "rope_theta"}}
    plain = {**config, "rope_scaling": None, "rope_parameters": None, **theta}
    read = olmo2.read_config({"rms_norm_eps": 1e-5, **plain})
    default = ["sliding_attention" if (at + 1) % 4 else "full_attention" for at in range(read.num_layers)]
    local = [kind == "sliding_attention" for kind in fields.attention_kinds(read.num_layers, default)]
    positions = fields.count("max_position_embeddings", default=2048)
    everywhere = fields.rope(read.head_dim, positions, theta=500000.0, kind="full_attention")
    near = everywhere
    if "sliding_attention" in (config.get("rope_parameters") or {}):
        near = fields.rope(read.head_dim, positions, theta=500000.0, kind="sliding_attention")
    elif config.get("rope_scaling"):
        near = Fields(plain).rope(read.head_dim, positions)
    window = Window(fields.count("sliding_window", default=4096))
    return read.with_layers(
        window=[window if here else None for here in local],
        rope=[near if here else everywhere for here in local],
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
