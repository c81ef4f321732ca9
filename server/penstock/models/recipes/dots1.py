"""dots.llm1: DeepSeek's experts behind the attention of Qwen 3."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields

KEYS = replace(deepseek.KEYS, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({**config, "mlp_bias": False})
    # Its config.json has a method for a function.
    fields.refuse("scoring_func", "noaux_tc", "sigmoid")
    experts = deepseek.sigmoid_experts(Fields({**config, "scoring_func": None}), default_normalize=False)
    first, size = fields.whole("max_window_layers", 62), fields.whole("sliding_window", 0)
    default = [
        "sliding_attention" if size and at >= first else "full_attention" for at in range(read.num_layers)
    ]
    kinds = fields.attention_kinds(read.num_layers, default)
    sparse = fields.sparse_layers(read.num_layers)
    return replace(read, qk_norm=read.norm).with_layers(
        window=[Window(size) if size and kind == "sliding_attention" else None for kind in kinds],
        experts=[experts if here else None for here in sparse],
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
