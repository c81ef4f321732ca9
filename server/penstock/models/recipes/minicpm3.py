"""MiniCPM 3: DeepSeek's latent attention, dense layers, and a factor wherever numbers are added."""

import math
from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek
from penstock.models.recipes.fields import Fields


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    defaults = {
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": width // heads,
        "rope_interleave": False,
    }
    given = {name: value for name, value in config.items() if name != "v_head_dim" or value is not None}
    read = deepseek.read_config({**defaults, **given})
    # Of these null is no factor, in place of the default.
    root = math.sqrt(read.num_layers)
    depth = fields.number("scale_depth", default=root if "scale_depth" in config else 1.4) / root
    base = fields.count("dim_model_base", default=width if "dim_model_base" in config else 256)
    return replace(
        read,
        embedding_scale=fields.number("scale_emb", default=12.0),
        residual_scale=depth,
        logit_scale=base / width,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, deepseek.keys, deepseek.DeepseekLoader)
