"""Granite 3 with experts, in one tensor for all of them; some have a shared one beside these."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import FeedForward
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import granite, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import StackedExpertsLoader

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="block_sparse_moe.router.layer",
        up="block_sparse_moe.input_linear.weight",
        down="block_sparse_moe.output_linear.weight",
        shared_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = granite.read_config(config)
    # Weights are the softmax over the chosen experts, which is that over all of them, made to add up to 1.
    routing = ops.Routing(fields.count("num_experts_per_tok", default=2), normalize=True)
    experts = ExpertsConfig(
        fields.count("num_local_experts", default=8),
        read.feed_forward,
        routing,
        shared_width=fields.whole("shared_intermediate_size", 0),
    )
    return read.with_layers(experts=[experts] * read.num_layers)


class GraniteMoeLoader(StackedExpertsLoader):
    """Reads the shared expert, whose gate and up are one matrix."""

    each = "block_sparse_moe.experts.{}."  # as llm-compressor leaves them

    def shared(self, at: str, choice: ExpertsConfig) -> FeedForward:
        """This rank's part."""
        keys = self.keys.experts
        assert keys is not None
        return self.dense(at, choice.shared_width, "", "", keys.shared_up, keys.shared_down)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GraniteMoeLoader)
