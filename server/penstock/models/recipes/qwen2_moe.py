"""Qwen 1.5 and 2 with experts, of which every token goes to a shared one as well."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="mlp.gate",
        gate="mlp.experts.{}.gate_proj",
        up="mlp.experts.{}.up_proj",
        down="mlp.experts.{}.down_proj",
        shared_gate_proj="mlp.shared_expert.gate_proj",
        shared_up="mlp.shared_expert.up_proj",
        shared_down="mlp.shared_expert.down_proj",
        shared_gate="mlp.shared_expert_gate",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = replace(qwen2.read_config(config), qkv_bias=fields.flag("qkv_bias", True))
    shared = fields.count("shared_expert_intermediate_size", default=5632)
    return with_experts(config, read, shared)


def with_experts(config: dict[str, Any], read: DecoderConfig, shared_width: int = 0) -> DecoderConfig:
    """With experts in the layers that `decoder_sparse_step` and `mlp_only_layers` leave them."""
    fields = Fields(config)
    step, dense = fields.count("decoder_sparse_step", default=1), config.get("mlp_only_layers") or []
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=4), normalize=fields.flag("norm_topk_prob")
    )
    experts = ExpertsConfig(
        fields.count("num_experts", "num_local_experts", default=60),
        fields.count("moe_intermediate_size"),
        routing,
        shared_width=shared_width,
        shared_gate=shared_width > 0,
    )
    return read.with_layers(
        experts=[experts if i not in dense and (i + 1) % step == 0 else None for i in range(read.num_layers)]
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
