"""MPT with linear biases. Its variants with learned positions are not served: transformers has none of them."""

from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import alibi
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    prefixes=("transformer.", ""),
    embedding="wte",
    layer="blocks.{}.",
    norm="norm_f",
    attention_norm="norm_1",
    feed_forward_norm="norm_2",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices. With linear biases `learned_pos_emb` says nothing."""
    fields = Fields(config)
    attention = fields.part("attn_config")
    fields.refuse("no_bias", True)
    fields.refuse("norm_type", "low_precision_layernorm", "layernorm")
    fields.refuse("logit_scale")
    attention.refuse("attn_type", "multihead_attention")
    attention.refuse("alibi", True)
    attention.refuse("qk_ln", False)
    attention.refuse("prefix_lm", False)
    attention.refuse("rope", False)
    width, heads = fields.count("d_model", "hidden_size"), fields.count("n_heads", "num_attention_heads")
    head_dim = fields.head_dim(width, heads)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("expansion_ratio", default=4) * width,
        layers=(LayerConfig(),) * fields.count("n_layers", "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        max_positions=fields.count("max_seq_len", default=2048),
        norm=fields.norm("layer_norm_epsilon", 1e-5, layer=True),
        activation="gelu",
        scale=attention.number("softmax_scale", default=head_dim**-0.5),
        slopes=alibi.slopes_from_above(heads, attention.number("alibi_bias_max", default=8.0)),
        clip_qkv=attention.number("clip_qkv", default=0.0),
        gated=False,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
