"""Phi-3.5-MoE: layer norms, biases of attention and head, and two experts of each token chosen one after the other."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mistral, mixtral
from penstock.models.recipes.fields import Fields

KEYS = mixtral.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    # Its code knows two.
    fields.refuse("num_experts_per_tok", 2)
    # The length that the frequencies depend on may stand beside `rope_scaling`.
    read = mistral.read_config({"rope_theta": 1e6, "max_position_embeddings": 131072, **config})
    routing = ops.Routing(2, one_by_one=2 * fields.number("router_jitter_noise", default=0.01))
    experts = ExpertsConfig(fields.count("num_local_experts", default=16), read.feed_forward, routing)
    return replace(
        read,
        norm=fields.norm("rms_norm_eps", 1e-5, layer=True, bias=True),
        head_bias=fields.flag("lm_head_bias"),
    ).with_layers(experts=[experts] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
