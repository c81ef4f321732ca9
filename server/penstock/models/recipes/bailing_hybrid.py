"""Ling 3.0 (Bailing hybrid): Kimi Linear's layers with gates of whole matrices and bounded decays, and latent attention with
positions and a gate for each head.

Sources: transformers 5.23 (bailing_hybrid); for what the published files have besides (BailingMoeV3ForCausalLM), vLLM's
bailing_moe_v3 and the config.json of Edge0-8B, which integration-tests/parity/test_quoted_configs.py quotes.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.architectures import architecture_of
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, OutputGate
from penstock.models.decoder import FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, kimi_linear
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent_config import ChannelDeltaConfig

# Choices of the published code, and what is served of each.
SERVED = {
    "no_kda_lora": True,
    "use_kda_lora": False,
    "gated_attention_proj_granularity_type": "head_wise",
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    **dict.fromkeys(("use_bias", "use_qkv_bias", "use_mla_nope", "use_nGPT"), False),
    **dict.fromkeys(("value_norm", "up_proj_norm", "scale_router_input"), False),
}


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """The names of DeepSeek V3 but for a few; layers that predict further tokens come after the others, and are not used."""
    further = {"num_nextn_predict_layers": config.get("num_nextn_predict_layers", 0)}
    found = deepseek.keys({**config, **further})
    experts = found.experts
    assert isinstance(experts, ExpertKeys)
    return replace(
        found,
        embedding="model.word_embeddings",
        output_gate="g_proj",  # below attention
        experts=replace(experts, correction="mlp.gate.expert_bias"),
    )


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    for name, served in SERVED.items():
        fields.refuse(name, served)
    fields.refuse("moe_shared_expert_intermediate_size", config.get("moe_intermediate_size"))
    for name in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        if any(config.get(name) or ()):
            raise UnusableModel(f"config.json: {name} caps experts, which is not supported")
    # The rotary width is qk_rope_head_dim; the share of a head that some files have beside it changes nothing.
    whole: dict[str, Any] = {"partial_rotary_factor": None}
    for name in ("rope_parameters", "rope_scaling"):
        table = {**fields.part(name).config}
        table.pop("partial_rotary_factor", None)
        whole[name] = table or None
    named = {ours: config[theirs] for ours, theirs in kimi_linear.NAMES.items() if theirs in config}
    defaults = {"routed_scaling_factor": 2.5, "rope_theta": 6_000_000.0, "rms_norm_eps": 1e-6}
    ours = {"model_type": "deepseek_v3", "qkv_bias": None, "rope_interleave": True}
    read = deepseek.read_config({**defaults, **config, **named, **ours, **whole})
    every = fields.count("layer_group_size", default=6)
    # Layers behind the last whole group attend in the published code, and are recurrent in transformers' class.
    published = architecture_of(config) == "BailingMoeV3ForCausalLM"
    grouped = read.num_layers // every * every if published else read.num_layers
    default = [
        "full_attention" if (i + 1) % every == 0 or i >= grouped else "linear_attention"
        for i in range(read.num_layers)
    ]
    kinds = fields.layer_kinds(read.num_layers, default)
    recurrent = [kind != "full_attention" for kind in kinds]
    fields.refuse("hidden_act", "silu", "swish")
    mixer = ChannelDeltaConfig(
        heads=read.heads,
        # As transformers saves it, whose head_dim is then what is rotated; and as it is published.
        head_dim=fields.count("linear_head_dim", "head_dim", default=128),
        kernel=fields.count("short_conv_kernel_size", default=4),
        eps=read.norm.eps,
        low_rank=False,
        lower_bound=fields.number("kda_lower_bound", default=-5.0)
        if fields.flag("kda_safe_gate", True)
        else None,
    )
    return replace(read, output_gate=OutputGate("sigmoid")).with_layers(
        attends=[not here for here in recurrent],
        recurrent=[mixer if here else None for here in recurrent],
    )


class BailingLoader(kimi_linear.KimiLoader):
    """Reads Kimi Linear's layers under other names."""

    below, last = "attention.", "dense"

    def feed_forward(self, at: str) -> FeedForward:
        """Dense layers."""
        return Loader.feed_forward(self, at)


RECIPE = DecoderRecipe(read_config, keys, BailingLoader)
