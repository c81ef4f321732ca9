"""OLMoE: Llama with experts in every layer, and all queries and all keys normalised at once."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2_moe
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    experts=qwen2_moe.KEYS.experts,
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("clip_qkv")
    read = llama.read_config({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, **config})
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=8), normalize=fields.flag("norm_topk_prob")
    )
    experts = ExpertsConfig(fields.count("num_experts", default=64), read.feed_forward, routing)
    return replace(read, qk_norm=read.norm, qk_norm_over="all").with_layers(
        experts=[experts] * read.num_layers
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
