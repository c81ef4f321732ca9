"""Laguna: query heads of each layer's own number, a gate for what each attends to, windows and rotary tables by kind of
layer, and experts chosen by sigmoids with a correction.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, OutputGate, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2_moe
from penstock.models.recipes.fields import Fields

EXPERTS = qwen2_moe.KEYS.experts
assert EXPERTS is not None
KEYS = replace(
    llama.KEYS,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    output_gate="self_attn.g_proj",
    experts=replace(EXPERTS, correction="mlp.experts.e_score_correction_bias", shared_gate=""),
)

# Of transformers' LagunaConfig.
ROPES: dict[str, dict[str, Any]] = {
    "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


def keys(_: dict[str, Any]) -> CheckpointKeys:
    """The same for all."""
    return KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("moe_apply_router_weight_on_input", False)
    fields.refuse("moe_router_logit_softcapping", 0, 0.0)
    fields.refuse("gating", True, "per-head", "per-element")
    fields.refuse("use_bidirectional_attention", False)
    gating = "per-element" if config.get("gating", True) == "per-element" else "per-head"
    kinds_of_gates = config.get("gating_types") or []  # of each layer, beside what `gating` says of all
    if not isinstance(kinds_of_gates, list) or any(
        str(kind).replace("_", "-") != gating for kind in kinds_of_gates
    ):
        raise UnusableModel(f"config.json: gating_types is not a list of {gating!r} alone, as gating says")
    read = llama.read_config({"head_dim": 128, **config, "rope_parameters": None, "mlp_bias": False})
    layers = read.num_layers
    kinds = fields.attention_kinds(layers, ["full_attention"] * layers)
    ropes = {"rope_parameters": fields.part("rope_parameters").config or ROPES}
    positions = fields.count("max_position_embeddings", default=131072)
    # Laguna M.1 has no window, and says 0.
    window = Window(fields.count("sliding_window", default=512)) if "sliding_attention" in kinds else None
    heads = config.get("num_attention_heads_per_layer") or [read.heads] * layers
    if not isinstance(heads, list) or len(heads) != layers:
        raise UnusableModel(f"config.json: num_attention_heads_per_layer is not a list of {layers} numbers")
    for count in heads:
        Fields({**config, "num_attention_heads": count}).heads()
    experts = ExpertsConfig(
        fields.count("num_experts", default=256),
        fields.count("moe_intermediate_size", default=512),
        ops.Routing(
            fields.count("num_experts_per_tok", default=8),
            sigmoid=True,
            normalize=True,
            scale=fields.number("moe_routed_scaling_factor", default=1.0),
        ),
        shared_width=fields.whole("shared_expert_intermediate_size", 512),
        correction=True,
    )
    sparse = Fields({"first_k_dense_replace": 1, **config}).sparse_layers(layers)
    rotations = {kind: Fields(ropes).rope(read.head_dim, positions, kind=kind) for kind in set(kinds)}
    return replace(
        read,
        qk_norm=read.norm,
        max_positions=positions,
        output_gate=OutputGate("softplus", per_number=gating == "per-element"),
        layers=tuple(
            replace(
                layer,
                rope=rotations[kind],
                window=window if kind == "sliding_attention" else None,
                heads=0 if count == read.heads else count,
                experts=experts if has_experts else None,
            )
            for layer, kind, count, has_experts in zip(read.layers, kinds, heads, sparse, strict=True)
        ),
    )


RECIPE = DecoderRecipe(read_config, keys)
