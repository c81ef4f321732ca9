"""The text of Molmo 2: Qwen 3 or OLMo 2 under names of its own; one matrix for up and gate, in this order, and a second
table for tokens of images, which no text has.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = CheckpointKeys(
    embedding="model.transformer.wte",
    layer="model.transformer.blocks.{}.",
    norm="model.transformer.ln_f",
    attention_norm="attn_norm",
    feed_forward_norm="ff_norm",
    qkv="self_attn.att_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    out="self_attn.attn_out",
    gate_up="mlp.ff_proj",
    down="mlp.ff_out",
    ignored=(r"(?:.*\.)?wte\.new_embedding", r"(?:.*\.)?vision_backbone\..*"),
)
AFTER = replace(
    KEYS,
    attention_norm="",
    feed_forward_norm="",
    attention_out_norm="attn_norm",
    feed_forward_out_norm="ff_norm",
)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Norms before the branches, or after them."""
    return AFTER if Fields(config).flag("norm_after") else KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("qk_norm_type", "qwen3", "olmo")
    after, bias = fields.flag("norm_after"), fields.flag("attention_bias", fields.flag("qkv_bias"))
    # `layer_norm_eps` is what it was called first.
    eps = {"rms_norm_eps": fields.number("rms_norm_eps", "layer_norm_eps", default=1e-6)}
    read = llama.read_config({"max_position_embeddings": 36864, **config, **eps, "attention_bias": False})
    stretched, table = config.get("rope_scaling_layers"), read.layers[0].rope
    assert table is not None
    plain = Fields({"rope_theta": table.theta}).rope(read.head_dim, table.max_position_embeddings)
    read = replace(
        read,
        qkv_bias=bias,
        qk_norm=read.norm,
        qk_norm_over="all" if config.get("qk_norm_type") == "olmo" else "head",
        pre_norm=not after,
        branch_norm=after,
    )
    return read.with_layers(
        rope=[table if stretched is None or at in stretched else plain for at in range(read.num_layers)]
    )


class MolmoLoader(Loader):
    """Reads the table of text, and up before gate."""

    embedding_kind, gate_first = "embedding", False


RECIPE = DecoderRecipe(read_config, keys, MolmoLoader)
