"""GPT-J: both branches of a layer read one norm; a part of each head is rotated, in interleaved planes; biases only in
the feed-forward layer and the head.
"""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    prefixes=("transformer.", ""),
    embedding="wte",
    layer="h.{}.",
    norm="ln_f",
    attention_norm="ln_1",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    out="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias",),  # causal masks
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("n_embd", "hidden_size"), fields.count("n_head", "num_attention_heads")
    head_dim = fields.head_dim(width, heads)
    rope = fields.rope(
        head_dim,
        fields.count("n_positions", "max_position_embeddings", default=2048),
        share=fields.count("rotary_dim", default=64) / head_dim,
    )
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("n_inner", default=4 * width),
        layers=(LayerConfig(rope),) * fields.count("n_layer", "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation=fields.activation("activation_function", default="gelu_new"),
        interleaved=True,
        gated=False,
        up_bias=True,
        down_bias=True,
        parallel=True,
        tied_head=fields.flag("tie_word_embeddings"),
        head_bias=True,
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
