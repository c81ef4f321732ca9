"""Phi-1, Phi-1.5 and Phi-2: both branches of a layer read one norm, half of each head is rotated, biases everywhere,
also in the head.
"""

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
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    out="self_attn.dense",
    up="mlp.fc1",
    down="mlp.fc2",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    heads, kv_heads, head_dim = fields.heads()
    rope = fields.rope(head_dim, fields.count("max_position_embeddings", default=2048), share=0.5)
    norm = fields.norm("layer_norm_eps", 1e-5, layer=True, bias=True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=norm,
        activation=fields.activation("hidden_act", default="gelu_new"),
        qkv_bias=True,
        attention_out_bias=True,
        qk_norm=norm if fields.flag("qk_layernorm") else None,
        gated=False,
        up_bias=True,
        down_bias=True,
        parallel=True,
        tied_head=fields.flag("tie_word_embeddings"),
        head_bias=True,
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
