"""ERNIE 4.5 with experts: a softmax with a correction chooses them, and every token goes to shared ones as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, ernie4_5
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

EXPERTS = deepseek.KEYS.experts
assert EXPERTS is not None
KEYS = replace(
    deepseek.KEYS,
    experts=replace(EXPERTS, correction="mlp.moe_statics.e_score_correction_bias"),
    # Layers that predict several tokens ahead.
    ignored=(r"(?:.*\.)?mtp.*",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read, experts = ernie4_5.read_config(config), experts_of(fields)
    first, every = fields.whole("moe_layer_start_index", 1), fields.count("moe_layer_interval", default=1)
    last = config.get("moe_layer_end_index", -1)
    end = read.num_layers if last in (None, -1) else fields.whole("moe_layer_end_index", 0) + 1
    layers = range(read.num_layers)
    return read.with_layers(
        experts=[experts if first <= at < end and (at + 1) % every == 0 else None for at in layers]
    )


def experts_of(fields: Fields) -> ExpertsConfig:
    """Of a layer that has some."""
    fields.refuse("moe_gate", "topk")
    fields.refuse("moe_use_aux_free", True)
    width = fields.count("moe_intermediate_size", default=1536)
    return ExpertsConfig(
        fields.count("moe_num_experts", "num_experts", default=64),
        width,
        ops.Routing(fields.count("moe_k", "num_experts_per_tok", default=6), normalize=True),
        shared_width=width * fields.whole("moe_num_shared_experts", 2),
        correction=True,
        long_router=True,
    )


class ErnieLoader(Loader):
    """Reads the correction, which has a row for each group of experts, of which there is one."""

    def correction(self, at: str, choice: ExpertsConfig) -> Tensor:
        """(X,) fp32."""
        assert self.keys.experts is not None
        name = at + self.keys.experts.correction
        return self.checkpoint.tensor(name, (1, choice.count), dtype=tensors.float32)[0]


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, ErnieLoader)
