"""K-EXAONE: the attention of EXAONE 4 before DeepSeek's experts; what a branch reads is normalised."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, exaone4, llama
from penstock.models.recipes.fields import Fields

EXPERTS = deepseek.KEYS.experts
assert EXPERTS is not None
KEYS = replace(
    deepseek.KEYS,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    experts=replace(EXPERTS, correction="mlp.e_score_correction_bias"),
    # Layers that predict several tokens ahead.
    ignored=(r"(?:.*\.)?mtp.*",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    # The published file says of each layer whether it has experts; transformers saves kinds in place of that.
    sparse = config.get("is_moe_layer")
    if config.get("mlp_layer_types") is None and isinstance(sparse, list):
        config = config | {"mlp_layer_types": ["sparse" if here else "dense" for here in sparse]}
    read = llama.read_config({"rms_norm_eps": 1e-5, **config})
    read = exaone4.with_windows(config, replace(read, qk_norm=read.norm))
    shared = config.get("num_shared_experts", 1)
    fields = Fields({"n_shared_experts": shared, "first_k_dense_replace": 1, **config})
    experts = deepseek.sigmoid_experts(fields, default_scale=2.5)
    return read.with_layers(
        experts=[experts if here else None for here in fields.sparse_layers(read.num_layers)]
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
