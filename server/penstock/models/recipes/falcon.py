"""Falcon: 7B (all query heads share a key head), 40B, 180B and 11B (groups of them do), and Falcon-RW (ALiBi)."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.names import Names
from penstock.models.recipes import alibi
from penstock.models.recipes.fields import Fields

NAMES = Names(
    prefixes=("transformer.", ""),
    embedding="word_embeddings",
    layer="h.{}.",
    norm="ln_f",
    attention_norm="input_layernorm",
    qkv="self_attention.query_key_value",
    qkv_order="groups",
    out="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def names(config: dict[str, Any]) -> Names:
    """Norms by how many there are in a layer."""
    fields = Fields(config)
    new = fields.flag("new_decoder_architecture")
    if new and fields.count("num_ln_in_parallel_attn", default=2) == 2:
        return replace(NAMES, attention_norm="ln_attn", feed_forward_norm="ln_mlp")
    if new or fields.flag("parallel_attn", True):
        return NAMES
    return replace(NAMES, feed_forward_norm="post_attention_layernorm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("apply_residual_connection_post_layernorm", False)
    new, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn", True)
    fields.refuse("num_ln_in_parallel_attn", 1, *([2] if new else []))
    if new:
        fields.refuse("parallel_attn", True)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_kv_heads", default=heads) if new else heads
    if not new and fields.flag("multi_query", True):
        kv_heads = 1
    if heads % kv_heads:
        raise UnusableModel(
            f"config.json: num_attention_heads {heads} is no multiple of num_kv_heads {kv_heads}"
        )
    head_dim = fields.head_dim(width, heads)
    positions = fields.count("max_position_embeddings", default=2048)
    rope = None if fields.flag("alibi") else fields.rope(head_dim, positions)
    bias = fields.flag("bias")
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("ffn_hidden_size", default=4 * width),
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions if rope else positions,
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("activation", default="gelu"),
        ropes=(rope,) if rope else (),
        slopes=() if rope else alibi.slopes(heads),
        # Biases are rounded, and scaled with the scores.
        slopes_rounded=True,
        slopes_scale=head_dim**-0.5,
        qkv_bias=bias,
        attention_out_bias=bias,
        gated=False,
        up_bias=bias,
        down_bias=bias,
        parallel=new or parallel,
        tied_head=fields.flag("tie_word_embeddings", True),
    )
