"""GPT-Neo: GPT-2 with a window in every other layer, and scores that are not scaled."""

from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig, Window
from penstock.models.names import Names
from penstock.models.recipes.fields import Fields

NAMES = Names(
    prefixes=("transformer.", ""),
    embedding="wte",
    positions="wpe",
    layer="h.{}.",
    norm="ln_f",
    attention_norm="ln_1",
    feed_forward_norm="ln_2",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    out="attn.attention.out_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.attention\.bias",),  # causal masks
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size"), fields.count("num_heads")
    layers, positions = fields.count("num_layers"), fields.count("max_position_embeddings", default=2048)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("intermediate_size", default=4 * width),
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.head_dim(width, heads),
        max_positions=positions,
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("activation_function", default="gelu_new"),
        scale=1.0,
        windows=(None, Window(fields.count("window_size", default=256))),
        window_of=tuple(int(kind == "local") for kind in kinds(config, layers)),
        attention_out_bias=True,
        gated=False,
        up_bias=True,
        down_bias=True,
        learned_positions=positions,
        tied_head=fields.flag("tie_word_embeddings", True),
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
