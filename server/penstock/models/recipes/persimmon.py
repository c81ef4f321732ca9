"""Persimmon: GPT-NeoX with normalised queries and keys, squared ReLU, and one branch after the other."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    embedding="model.embed_tokens",
    layer="model.layers.{}.",
    norm="model.final_layernorm",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv="self_attn.query_key_value",
    qkv_order="heads",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    out="self_attn.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.head_dim(width, heads)
    rope = fields.rope(head_dim, fields.count("max_position_embeddings", default=16384), share=0.5)
    norm = fields.norm("layer_norm_eps", 1e-5, layer=True, bias=True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=norm,
        activation=fields.activation("hidden_act", default="relu2"),
        qkv_bias=True,
        attention_out_bias=True,
        qk_norm=norm if fields.flag("qk_layernorm", True) else None,
        gated=False,
        up_bias=True,
        down_bias=True,
        tied_head=fields.flag("tie_word_embeddings"),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
