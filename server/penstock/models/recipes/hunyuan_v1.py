"""Hunyuan 0.5B to 7B and A13B: Llama whose queries and keys are normalised behind the rotation; A13B has experts, and a
shared one beside these.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.models.architectures import architecture_of
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    q_norm="self_attn.query_layernorm",
    k_norm="self_attn.key_layernorm",
    experts=ExpertKeys(
        router="mlp.gate.wg",
        gate="mlp.experts.{}.gate_proj",
        up="mlp.experts.{}.up_proj",
        down="mlp.experts.{}.down_proj",
        shared_gate_proj="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("use_cla", False)
    fields.refuse("use_qk_norm", True)
    read = llama.read_config({"rms_norm_eps": 1e-5, **stretched(config), "mlp_bias": False})
    read = replace(read, qk_norm=read.norm, qk_norm_rotated=True)
    # Tencent's FP8 and GPTQ of A13B are of model_type `hunyuan`: the architecture says that there are experts.
    if architecture_of(config) != "HunYuanMoEV1ForCausalLM" and config.get("model_type") != "hunyuan_v1_moe":
        return read
    fields.refuse("moe_layer_num_skipped", 0)
    same = Fields({name: one_for_all(config, name) for name in PER_LAYER})
    width = same.count("moe_intermediate_size", default=read.feed_forward)
    if width != read.feed_forward or same.count("num_shared_expert", default=1) != 1:
        raise UnusableModel(
            f"config.json: moe_intermediate_size {width} and num_shared_expert {same.config['num_shared_expert']}; "
            f"served are experts of intermediate_size ({read.feed_forward}), one of them shared"
        )
    experts = ExpertsConfig(
        fields.count("num_experts", default=1),
        width,
        ops.Routing(same.count("moe_topk", default=1), normalize=True),
        shared_width=read.feed_forward,
        long_router=True,
    )
    return read.with_layers(experts=[experts] * read.num_layers)


# Kinds of rotary tables with `alpha`: of text, and of several positions for tokens of images.
STRETCHED = ("dynamic", "xdrope")

# Fields that have one value for all layers, or a list of the layers' values.
PER_LAYER = ("moe_intermediate_size", "num_shared_expert", "moe_topk")


def one_for_all(config: dict[str, Any], name: str) -> Any:
    """The value that all layers have. Raises UnusableModel where they differ."""
    value = config.get(name)
    if not isinstance(value, list):
        return value
    if len(set(map(repr, value))) > 1:
        raise UnusableModel(
            f"config.json: {name} has different values, and only one for all layers is served"
        )
    return value[0] if value else None


def stretched(config: dict[str, Any]) -> dict[str, Any]:
    """config.json with the base that `alpha` stands for: a context that is stretched for all lengths alike."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    scaling = Fields(config).part(name).config
    if not scaling.get("alpha") or scaling.get("rope_type", scaling.get("type")) not in STRETCHED:
        return config
    heads, width = Fields(config).count("num_attention_heads"), Fields(config).count("hidden_size")
    size = Fields(config).count("head_dim", default=width // heads)
    base = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    theta = Fields({"rope_theta": base}).number("rope_theta", default=10000.0)
    theta *= Fields(scaling).number("alpha", default=1.0) ** (size / (size - 2))
    return {**config, "rope_scaling": None, "rope_parameters": None, "rope_theta": theta}


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
