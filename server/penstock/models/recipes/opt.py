"""OPT and Galactica: learned positions that begin at row 2, ReLU. OPT-350M normalises after each branch, and its embeddings are narrower than the model."""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig, NormConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    prefixes=("model.decoder.", "decoder."),
    embedding="embed_tokens",
    positions="embed_positions",
    project_in="project_in",
    project_out="project_out",
    layer="layers.{}.",
    norm="final_layer_norm",
    attention_norm="self_attn_layer_norm",
    feed_forward_norm="final_layer_norm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.out_proj",
    up="fc1",
    down="fc2",
)
AFTER = replace(
    KEYS,
    attention_norm="",
    feed_forward_norm="",
    attention_out_norm="self_attn_layer_norm",
    feed_forward_out_norm="final_layer_norm",
)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Norms before the branches, or after them."""
    return KEYS if Fields(config).flag("do_layer_norm_before", True) else AFTER


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    positions = fields.count("max_position_embeddings", default=2048)
    before = fields.flag("do_layer_norm_before", True)
    bias, affine = fields.flag("enable_bias", True), fields.flag("layer_norm_elementwise_affine", True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("ffn_dim"),
        layers=(LayerConfig(),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=fields.head_dim(width, heads),
        max_positions=positions,
        norm=NormConfig(1e-5, layer=True, bias=affine, weight=affine),
        activation=fields.activation("activation_function", default="relu"),
        qkv_bias=bias,
        attention_out_bias=bias,
        gated=False,
        up_bias=bias,
        down_bias=bias,
        pre_norm=before,
        sum_norm=not before,
        embedding_width=fields.count("word_embed_proj_dim", default=width),
        learned_positions=positions + 2,
        position_offset=2,
        final_norm=before and not fields.flag("_remove_final_layer_norm"),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, keys)
