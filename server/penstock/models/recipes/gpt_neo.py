"""GPT-Neo: GPT-2 with a window in every other layer, and scores that are not scaled."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gpt2
from penstock.models.recipes.fields import Fields

KEYS = replace(
    gpt2.KEYS,
    qkv="",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    out="attn.attention.out_proj",
    transposed=False,
    ignored=(r"(transformer\.)?h\.\d+\.attn\.attention\.bias",),  # causal masks
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    heads, layers = fields.count("num_heads"), fields.count("num_layers")
    inner = config.get("intermediate_size")
    read = gpt2.read_config(
        {"max_position_embeddings": 2048, **config, "n_head": heads, "n_layer": layers, "n_inner": inner}
    )
    window = Window(fields.count("window_size", default=256))
    return replace(read, scale=1.0, qkv_bias=False).with_layers(
        window=[window if kind == "local" else None for kind in kinds(config, layers)]
    )


def kinds(config: dict[str, Any], layers: int) -> list[str]:
    """`attention_types`: lists of kinds, each with how often it is repeated."""
    given = config.get("attention_types", [[["global", "local"], layers // 2]])
    try:
        found = [kind for some, times in given for _ in range(times) for kind in some]
    except (TypeError, ValueError):
        found = []
    if len(found) != layers or set(found) - {"global", "local"}:
        raise UnusableModel(f"config.json: attention_types does not say global or local of {layers} layers")
    return found


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
