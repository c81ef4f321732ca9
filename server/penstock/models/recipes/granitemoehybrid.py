"""Granite 4: most layers are Mamba 2, some attention, mostly without positions; a shared expert in each layer, and others beside
it or not. Multipliers as in Granite 3.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import granite, granitemoe, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2_layers import Mamba2Loader, read_mamba2, with_kinds
from penstock.models.recipes.stacked_experts import StackedExpertsLoader

KEYS = replace(
    llama.KEYS,
    gate_up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
    experts=ExpertKeys(
        router="block_sparse_moe.router.layer",
        up="block_sparse_moe.input_linear.weight",
        down="block_sparse_moe.output_linear.weight",
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = granite.read_config({"intermediate_size": 1, **config})
    shared = fields.count("shared_intermediate_size", default=1024)
    kinds = config.get("layers_block_type") or ["linear_attention"] * read.num_layers
    named = {**config, "layer_types": config.get("layer_types") or kinds}
    kinds = Fields(named).layer_kinds(read.num_layers, [])
    read = with_kinds(replace(read, feed_forward=shared), kinds, read_mamba2(fields, read.width))
    fields.refuse("position_embedding_type", "rope", "nope")
    if config.get("position_embedding_type") != "rope":
        read = read.with_layers(rope=[None] * read.num_layers)
    count = fields.whole("num_local_experts", 8)
    if count:
        routing = ops.Routing(fields.count("num_experts_per_tok", default=2), normalize=True)
        experts = ExpertsConfig(count, fields.count("intermediate_size"), routing, shared_width=shared)
        read = read.with_layers(experts=[experts] * read.num_layers)
    return read


class GraniteLoader(StackedExpertsLoader, Mamba2Loader):
    """Reads experts that are stacked in two tensors, or each in its own."""

    each = granitemoe.GraniteMoeLoader.each


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GraniteLoader)
