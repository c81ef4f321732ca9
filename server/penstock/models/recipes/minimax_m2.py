"""MiniMax M2: experts chosen by sigmoids with a correction, all queries and all keys normalised at once, a part of each
head rotated.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, mixtral
from penstock.models.recipes.fields import Fields

EXPERTS = mixtral.KEYS.experts
assert EXPERTS is not None
KEYS = replace(
    llama.KEYS,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    experts=replace(EXPERTS, correction="block_sparse_moe.e_score_correction_bias"),
    # Modules that predict several tokens ahead.
    ignored=(r"(?:.*\.)?mtp.*",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("scoring_func", "sigmoid")
    fields.refuse("qk_norm_type", "per_layer")
    fields.refuse("attn_type_list", [1] * fields.count("num_hidden_layers"))
    fields.refuse("shared_intermediate_size", 0)
    read = llama.read_config({"head_dim": 128, "rope_theta": 5e6, **config})
    rotated = fields.whole("rotary_dim", read.head_dim)
    positions = fields.count("max_position_embeddings", default=196608)
    rope = fields.rope(read.head_dim, positions, share=rotated / read.head_dim, theta=5e6)
    routing = ops.Routing(fields.count("num_experts_per_tok", default=8), sigmoid=True, normalize=True)
    experts = ExpertsConfig(
        fields.count("num_local_experts", default=256),
        read.feed_forward,
        routing,
        correction=True,
        long_router=True,  # as it is published
    )
    has_norms = fields.flag("use_qk_norm", True)
    read = replace(read, qk_norm=read.norm if has_norms else None, qk_norm_over="all")
    return read.with_layers(rope=[rope] * read.num_layers, experts=[experts] * read.num_layers)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
