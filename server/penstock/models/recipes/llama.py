"""Llama 1, 2 and 3, TinyLlama, SmolLM: what most families start from. RMS norms before each branch, rotary positions
in halves, grouped key heads, a gated feed-forward layer, no biases unless config.json asks for them.
"""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    embedding="model.embed_tokens",
    layer="model.layers.{}.",
    norm="model.norm",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    heads, kv_heads, head_dim = fields.heads()
    positions = fields.count("max_position_embeddings", default=2048)
    rope = fields.rope(head_dim, positions)
    attention_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=fields.norm("rms_norm_eps", 1e-6),
        activation=fields.activation("hidden_act", default="silu"),
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        up_bias=mlp_bias,
        down_bias=mlp_bias,
        tied_head=fields.flag("tie_word_embeddings"),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
