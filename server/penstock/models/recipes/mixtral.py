"""Mixtral: Mistral with a mixture of experts in every layer."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, mistral
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="block_sparse_moe.gate",
        gate="block_sparse_moe.experts.{}.w1",
        up="block_sparse_moe.experts.{}.w3",
        down="block_sparse_moe.experts.{}.w2",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = mistral.read_config(config)
    routing = ops.Routing(fields.count("num_experts_per_tok", default=2), normalize=True)
    experts = ExpertsConfig(fields.count("num_local_experts", default=8), read.feed_forward, routing)
    return read.with_layers(experts=[experts] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
