"""StarCoder2: rotary positions, layer norms, biases, a plain feed-forward layer, and a sliding window in every layer."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig, Window
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
    up="mlp.c_fc",
    down="mlp.c_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("norm_type", "layer_norm")
    fields.refuse("mlp_type", "default")
    heads, kv_heads, head_dim = fields.heads(kv_default=2)
    rope = fields.rope(head_dim, fields.count("max_position_embeddings", default=4096))
    size = fields.whole("sliding_window", 0)
    window = Window(size) if 0 < size < rope.max_positions else None
    bias = fields.flag("use_bias", True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope, window),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=fields.norm("norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("hidden_act", default="gelu_pytorch_tanh"),
        qkv_bias=bias,
        attention_out_bias=bias,
        gated=False,
        up_bias=bias,
        down_bias=bias,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
