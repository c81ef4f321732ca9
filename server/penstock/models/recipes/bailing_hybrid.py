"""Ling 3.0 (Bailing hybrid): Kimi Linear's layers with gates of whole matrices and bounded decays, and latent attention with
positions and a gate for each head.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, OutputGate
from penstock.models.decoder import FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, kimi_linear
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent_config import ChannelDeltaConfig


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
    named = {ours: config[theirs] for ours, theirs in kimi_linear.NAMES.items() if theirs in config}
    defaults = {"routed_scaling_factor": 2.5, "rope_theta": 6_000_000.0, "rms_norm_eps": 1e-6}
    ours = {"model_type": "deepseek_v3", "qkv_bias": None, "rope_interleave": True}
    read = deepseek.read_config({**defaults, **config, **named, **ours})
    every = fields.count("layer_group_size", default=6)
    default = [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(read.num_layers)
    ]
    kinds = fields.layer_kinds(read.num_layers, default)
    recurrent = [kind != "full_attention" for kind in kinds]
    fields.refuse("hidden_act", "silu", "swish")
    mixer = ChannelDeltaConfig(
        heads=read.heads,
        head_dim=fields.count("head_dim", default=128),
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
