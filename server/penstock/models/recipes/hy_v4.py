"""Hunyuan 4: DeepSeek V3.2's layers, of which most attend to the keys that an earlier one chooses, with attention sinks,
output gates, limited gates of experts, and hyper-connections in place of one residual.

Source: transformers 5.23 (hy_v4), whose defaults are those of tencent/Hy4-preview, and the names of tensors that it converts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from penstock.layers.linear import Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, HyperConfig, OutputGate
from penstock.models.decoder import Ends, Layer
from penstock.models.hyper_connections import HyperConnection, HyperHead, read_parts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import StackedExpertsLoader
from penstock.parallel.group import TensorGroup
from penstock_kernels.later import Tensor

assert deepseek.KEYS.experts is not None
KEYS = replace(
    deepseek.KEYS,
    sinks="learnable_sink_param",
    output_gate="linear_gate",
    experts=replace(
        deepseek.KEYS.experts, gate="", up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"
    ),
    ignored=(r"(model\.)?mtp_layers\..*",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers", default=34)
    kinds = config.get("indexer_types")
    if kinds is None:
        kinds = ["full" if at == 0 or (at - 1) % 4 == 0 else "shared" for at in range(layers)]
    defaults: dict[str, Any] = {
        "first_k_dense_replace": 1,
        "index_n_heads": 16,
        "routed_scaling_factor": 2.827,
        "n_shared_experts": 1,
    }
    ours = {
        "model_type": "glm_moe_dsa",
        "indexer_types": kinds,
        # As the published rows are ordered, whatever transformers 5.23 makes of them.
        "indexer_rope_interleave": True,
        "rope_interleave": True,
    }
    read = deepseek.read_config({**defaults, **config, **ours})
    assert read.latent is not None and read.latent.index is not None
    limit = fields.number("swiglu_limit", default=10.0)
    experts = [
        None if layer.experts is None else replace(layer.experts, limit=max(limit, 0.0))
        for layer in read.layers
    ]
    index = replace(read.latent.index, key_eps=read.norm.eps, rotated_last=True)
    hyper = HyperConfig(
        fields.count("hc_mult", default=4),
        magnitude=fields.number("hc_magnitude", default=2.0),
        eps=fields.number("hc_eps", default=1e-6),
        norm_eps=read.norm.eps,
    )
    return replace(
        read,
        latent=replace(read.latent, index=index),
        sinks=True,
        output_gate=OutputGate("sigmoid", per_number=True),
        long_head=fields.flag("enable_lm_head_fp32", True),
        hyper=hyper,
    ).with_layers(experts=experts)


class HunyuanLoader(StackedExpertsLoader, deepseek.DeepseekLoader):
    """Reads hyper-connections, which all ranks hold."""

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        super().__init__(config, keys, checkpoint, group)
        # As published, or as transformers names them when it saves.
        self.base = self.prefix + keys.norm.removesuffix("norm")
        layers = [self.prefix + keys.at_layer(index) for index in range(config.num_layers)]
        gates = (f"{layer}mlp.linear_gate.weight" for layer in layers)
        if any(map(checkpoint.has, gates)):
            assert keys.experts is not None
            shared = replace(keys.experts, shared_gate_proj="mlp.shared_experts.linear_gate")
            self.keys = replace(keys, gate="mlp.linear_gate", experts=shared)
        self.within_hyper = "hc_pre." if checkpoint.has(f"{layers[0]}hc_attn_layer.hc_pre.hc_fn") else ""
        self.below_hyper = "hc_pre." if checkpoint.has(f"{self.base}hc_pre.hc_head.hc_head_fn") else ""
        self.hyper_head = f"{self.base}{self.below_hyper}hc_head.hc_head_"

    def layer(self, index: int) -> Layer:
        """One layer."""
        made, at = super().layer(index), self.prefix + self.keys.at_layer(index) + self.below_hyper
        made.attention_hyper = self.connection(f"{at}hc_attn_layer.{self.within_hyper}hc_")
        made.feed_forward_hyper = self.connection(f"{at}hc_mlp_layer.{self.within_hyper}hc_")
        return made

    def ends(self) -> Ends:
        """Embeddings, last norm and head."""
        made, config = super().ends(), self.hyper
        if self.group.is_last_stage:
            made.hyper = HyperHead(config, *self.parts(self.hyper_head, config.count, 1))
        return made

    def of_other_stages(self, mine: range) -> list[str]:
        """Patterns of what other stages of the pipeline read."""
        return [*super().of_other_stages(mine), re.escape(self.hyper_head) + ".*"]

    @property
    def hyper(self) -> HyperConfig:
        """The family's."""
        assert isinstance(self.config.hyper, HyperConfig)
        return self.config.hyper

    def connection(self, at: str) -> HyperConnection:
        """Of a branch."""
        return HyperConnection(self.hyper, *self.parts(at, 2 * self.hyper.count, 2))

    def parts(self, at: str, rows: int, scales: int) -> tuple[Linear, Tensor, Tensor]:
        """Weights, bases and scales, in fp32."""
        names = (f"{at}fn", f"{at}base", f"{at}scale")
        return read_parts(self.checkpoint, names, rows, self.hyper.count * self.config.width, scales)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, HunyuanLoader)
