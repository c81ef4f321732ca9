"""Mistral Small 4: DeepSeek's latent attention with queries scaled by their position, and experts chosen by a softmax, in
one tensor for all of them.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, Temperature
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import StackedExpertsLoader

KEYS = replace(
    deepseek.KEYS,
    experts=ExpertKeys(
        router="mlp.gate",
        up="mlp.experts.gate_up_proj",
        down="mlp.experts.down_proj",
        shared_gate_proj="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
    ),
)

# Of transformers' Mistral4Config.
DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 1048576,
}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    given = {**DEFAULTS, **config}
    name = "rope_parameters" if given.get("rope_parameters") else "rope_scaling"
    rope = Fields(given).part(name)
    # It is the rotated part of a whole head, which has its own size here.
    size = Fields(given).count("qk_rope_head_dim")
    whole = size + Fields(given).count("qk_nope_head_dim")
    share = rope.number("partial_rotary_factor", default=size / whole)
    if int(share * whole + 1e-6) != size:
        raise UnusableModel(
            f"config.json: partial_rotary_factor is {share}, and {size} of {whole} numbers of a head are rotated"
        )
    given[name] = {**rope.config, "partial_rotary_factor": 1.0}
    read = deepseek.read_config({**given, "n_routed_experts": None, "mlp_layer_types": None})
    fields = Fields(given)
    width = fields.count("moe_intermediate_size", default=2048)
    experts = ExpertsConfig(
        fields.count("n_routed_experts", default=128),
        width,
        ops.Routing(
            fields.count("num_experts_per_tok", default=4),
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", default=1.0),
            groups=fields.count("n_group", default=1),
            top_groups=fields.count("topk_group", default=1),
            group_best=2,
        ),
        shared_width=width * fields.whole("n_shared_experts", 1),
    )
    scale = rope.number("llama_4_scaling_beta", default=0.0)
    temperature = Temperature(scale, rope.count("original_max_position_embeddings")) if scale else None
    sparse = fields.sparse_layers(read.num_layers)
    return replace(
        read,
        layers=tuple(
            replace(layer, experts=experts if here else None, temperature=temperature)
            for layer, here in zip(read.layers, sparse, strict=True)
        ),
    )


class Mistral4Loader(StackedExpertsLoader, deepseek.DeepseekLoader):
    """Reads latent attention, and experts in one tensor."""


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, Mistral4Loader)
