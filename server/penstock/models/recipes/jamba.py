"""Jamba: most layers are Mamba, some attention without positions; experts in some, a dense feed-forward layer in the others."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import Recurrent
from penstock.models.recurrent_config import Mamba1Config
from penstock.models.recurrent_loader import mamba1

KEYS = replace(
    llama.KEYS,
    norm="model.final_layernorm",
    feed_forward_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    experts=ExpertKeys(
        router="feed_forward.router",
        gate="feed_forward.experts.{}.gate_proj",
        up="feed_forward.experts.{}.up_proj",
        down="feed_forward.experts.{}.down_proj",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"max_position_embeddings": 262144, **config})
    layers = range(read.num_layers)
    period, offset = fields.count("attn_layer_period", default=8), fields.whole("attn_layer_offset", 4)
    attends = [i % period == offset for i in layers]
    rank = config.get("mamba_dt_rank", "auto")
    mixer = Mamba1Config(
        channels=fields.count("mamba_expand", default=2) * read.width,
        state=fields.count("mamba_d_state", default=16),
        rate_rank=-(-read.width // 16) if rank == "auto" else fields.count("mamba_dt_rank"),
        kernel=fields.count("mamba_d_conv", default=4),
        activation=read.activation,
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        norms=(True, read.norm.eps),
    )
    count = fields.count("num_experts", default=16)
    every, first = fields.count("expert_layer_period", default=2), fields.whole("expert_layer_offset", 1)
    routing = ops.Routing(fields.count("num_experts_per_tok", default=2))
    experts = ExpertsConfig(count, read.feed_forward, routing)
    return read.with_layers(
        rope=[None for _ in layers],
        attends=attends,
        recurrent=[None if here else mixer for here in attends],
        experts=[experts if count > 1 and i % every == first else None for i in layers],
    )


class JambaLoader(Loader):
    """Reads Mamba below `mamba`."""

    def recurrent(self, at: str, index: int) -> Recurrent:
        """One rank's channels."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, Mamba1Config)
        return mamba1(self, f"{at}mamba.", mixer)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, JambaLoader)
