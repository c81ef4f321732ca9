"""GPT-2, DistilGPT-2, DialoGPT, Cerebras-GPT: learned positions, layer norms and biases, matrices stored as (in, out)."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    prefixes=("transformer.", ""),
    embedding="wte",
    positions="wpe",
    layer="h.{}.",
    norm="ln_f",
    attention_norm="ln_1",
    feed_forward_norm="ln_2",
    qkv="attn.c_attn",
    out="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    transposed=True,
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias",),  # causal masks
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices. `reorder_and_upcast_attn` only asks for scores in fp32."""
    fields = Fields(config)
    fields.refuse("scale_attn_by_inverse_layer_idx", False)
    fields.refuse("add_cross_attention", False)
    width, heads = fields.count("n_embd", "hidden_size"), fields.count("n_head", "num_attention_heads")
    positions = fields.count("n_positions", "max_position_embeddings", default=1024)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("n_inner", default=4 * width),
        layers=(LayerConfig(),) * fields.count("n_layer", "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=fields.head_dim(width, heads),
        max_positions=positions,
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("activation_function", default="gelu_new"),
        scale=None if fields.flag("scale_attn_weights", True) else 1.0,
        qkv_bias=True,
        attention_out_bias=True,
        gated=False,
        up_bias=True,
        down_bias=True,
        learned_positions=positions,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
