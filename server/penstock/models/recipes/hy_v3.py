"""Hunyuan 3: normalised queries and keys; experts chosen by sigmoids with a correction, and a shared one."""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    experts=ExpertKeys(
        router="mlp.router.gate",
        gate="mlp.experts.{}.gate_proj",
        up="mlp.experts.{}.up_proj",
        down="mlp.experts.{}.down_proj",
        shared_gate_proj="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
        correction="mlp.expert_bias",
    ),
)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Without the layers that predict several tokens ahead."""
    return replace(KEYS, ignored=deepseek.predicting_layers(config))


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    defaults = {"rope_theta": 11158840.0, "rms_norm_eps": 1e-5, "head_dim": 128}
    read = llama.read_config({**defaults, **config})
    shared, scale = config.get("num_shared_experts", 1), config.get("router_scaling_factor", 2.826)
    names = {"n_shared_experts": shared, "routed_scaling_factor": scale, "first_k_dense_replace": 1}
    fields = Fields({**names, "max_position_embeddings": 131072, **config})
    fields.refuse("moe_router_use_sigmoid", True)
    fields.refuse("route_norm", True)
    experts = deepseek.sigmoid_experts(fields)
    return replace(read, qk_norm=read.norm, long_head=fields.flag("enable_lm_head_fp32")).with_layers(
        experts=[experts if here else None for here in fields.sparse_layers(read.num_layers)]
    )


RECIPE = DecoderRecipe(read_config, keys)
