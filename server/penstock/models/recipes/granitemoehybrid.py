"""Granite 4: most layers are Mamba 2, some attention, mostly without positions; a shared expert in each layer, and others beside
it or not. Multipliers as in Granite 3.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import Experts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import granite, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2_layers import Mamba2Loader, read_mamba2, with_kinds
from penstock.parallel.group import ranges

KEYS = replace(
    llama.KEYS,
    gate_up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
    experts=ExpertKeys(
        router="block_sparse_moe.router.layer",
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


class GraniteLoader(Mamba2Loader):
    """Reads experts that are stacked in two tensors."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """The experts below `at`."""
        name, width, mine = f"{at}block_sparse_moe.", self.config.width, self.group.share(choice.count)
        up_XGE = self.checkpoint.tensor(
            name + "input_linear.weight", (choice.count, 2 * choice.width, width), ranges([mine])
        )
        down_XEF = self.checkpoint.tensor(
            name + "output_linear.weight", (choice.count, width, choice.width), ranges([mine])
        )
        return self.mixture(at, choice, mine.start, up_XGE, None, down_XEF, None)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GraniteLoader)
