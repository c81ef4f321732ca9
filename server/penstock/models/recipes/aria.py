"""The text of Aria: Llama with experts in one tensor for all of them, stored as (X, in, out), and shared ones beside them.

Aria-sequential_mlp, which others quantize, has each expert in tensors of its own. Their names are a guess from a description of a SequentialMLP
(2024, "Finetune MoE with LoRA"): `experts` of a module that is `experts` itself. Under any others the model is refused.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import Experts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import TransposedExpertsLoader

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="mlp.router",
        up="mlp.experts.fc1.weight",
        down="mlp.experts.fc2.weight",
        shared_gate_proj="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields({"moe_num_experts": 8, "moe_topk": 2, "intermediate_size": 4096, **config})
    # The first checkpoints (aria_moe_lm) say both, and mean an expert's by this.
    width = fields.count("moe_intermediate_size", "intermediate_size")
    read = llama.read_config({**fields.config, "intermediate_size": width})
    experts = ExpertsConfig(
        fields.count("moe_num_experts"),
        width,
        ops.Routing(fields.count("moe_topk"), normalize=True),
        shared_width=width * fields.whole("moe_num_shared_experts", 2),
    )
    return read.with_layers(experts=[experts] * read.num_layers)


class AriaLoader(TransposedExpertsLoader):
    """Reads experts of both kinds."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """This rank's experts."""
        keys = self.keys.experts
        assert keys is not None
        for inner in ("mlp.experts.experts.{}.", "mlp.experts.{}."):
            if self.checkpoint.has(f"{at}{inner.format(0)}down_proj.weight"):
                names = {one: f"{inner}{one}_proj" for one in ("gate", "up", "down")}
                return self.experts_apart(at, choice, replace(keys, **names))
        return super().experts(at, choice)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, AriaLoader)
