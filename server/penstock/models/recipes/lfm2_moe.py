"""LFM2 with experts, but in its first layers."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import lfm2
from penstock.models.recipes.fields import Fields

KEYS = replace(
    lfm2.KEYS,
    experts=ExpertKeys(
        router="feed_forward.gate",
        gate="feed_forward.experts.{}.w1",
        up="feed_forward.experts.{}.w3",
        down="feed_forward.experts.{}.w2",
        correction="feed_forward.expert_bias",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = replace(lfm2.hybrid(config), feed_forward=fields.count("intermediate_size", default=7168))
    experts = ExpertsConfig(
        fields.count("num_experts", default=32),
        fields.count("moe_intermediate_size", default=1792),
        ops.Routing(
            fields.count("num_experts_per_tok", default=4),
            sigmoid=True,
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", default=1.0),
        ),
        correction=fields.flag("use_expert_bias", True),
    )
    dense = fields.whole("num_dense_layers", 2)
    return read.with_layers(experts=[experts if i >= dense else None for i in range(read.num_layers)])


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, lfm2.ShortConvLoader)
