"""Falcon: parallel branches, rotary positions; in 7B all query heads share a key head, in 40B, 180B and 11B groups of
them do. Falcon-RW has ALiBi in place of rotary positions.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import alibi
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
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


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Norms by how many there are in a layer."""
    fields = Fields(config)
    new = fields.flag("new_decoder_architecture")
    if new and fields.count("num_ln_in_parallel_attn", default=2) == 2:
        return replace(KEYS, attention_norm="ln_attn", feed_forward_norm="ln_mlp")
    if new or fields.flag("parallel_attn", True):
        return KEYS
    return replace(KEYS, feed_forward_norm="post_attention_layernorm")


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
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions if rope else positions,
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("activation", default="gelu"),
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


RECIPE = DecoderRecipe(read_config, keys)
