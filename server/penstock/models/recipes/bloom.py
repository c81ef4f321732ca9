"""BLOOM and BLOOMZ: linear biases in place of positions, and a norm after the embedding."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import alibi
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    prefixes=("transformer.", ""),
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    layer="h.{}.",
    norm="ln_f",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv="self_attention.query_key_value",
    qkv_order="heads",
    out="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices. `slow_but_exact` concerns rounding alone."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size", "n_embed"), fields.count("n_head", "num_attention_heads")
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=4 * width,
        layers=(LayerConfig(),) * fields.count("n_layer", "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=fields.head_dim(width, heads),
        max_positions=fields.count("seq_length", default=2048),
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True),
        activation="gelu_new",
        slopes=alibi.slopes(heads),
        qkv_bias=True,
        attention_out_bias=True,
        gated=False,
        up_bias=True,
        down_bias=True,
        residual_normed=fields.flag("apply_residual_connection_post_layernorm"),
        embedding_norm=True,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
