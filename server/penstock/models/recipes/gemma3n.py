"""Gemma 3n, the text models: four residual streams, per-layer embeddings, a low-rank branch beside attention, layers that
read the keys and values of earlier ones, and gates of which only the largest open.
"""

import re
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, NormConfig, PerLayerConfig, StreamsConfig
from penstock.models.decoder import Ends, Layer
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma3, gemma4
from penstock.models.recipes.fields import Fields
from penstock.models.streams import AlternatingUpdates, LowRankResidual, StreamEnds
from penstock.parallel.group import TensorGroup
from penstock_kernels.later import Tensor, torch

# Of transformers' Gemma3nTextConfig.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "sliding_window_pattern": 5,
    "num_kv_shared_layers": 15,
}


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Without the matrices of layers that read the keys of others."""
    return gemma4.keys({**DEFAULTS, **config})


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    given = {**DEFAULTS, **config}
    fields = Fields(given)
    layers = fields.count("num_hidden_layers")
    widths = of_layers(given.get("intermediate_size", 16384), layers, "intermediate_size")
    sparsities = given.get("activation_sparsity_pattern")
    if sparsities is None:
        sparsities = [0.95 if layers > 10 and at < 10 else 0.0 for at in range(layers)]
    sparsities = of_layers(sparsities, layers, "activation_sparsity_pattern")
    if not all(isinstance(one, (int, float)) and 0 <= one < 1 for one in sparsities):
        raise UnusableModel(
            f"config.json: activation_sparsity_pattern is not a list of {layers} shares below 1"
        )
    for width in widths:
        Fields({"intermediate_size": width}).count("intermediate_size")
    read = gemma3.read_config({**given, "intermediate_size": max(widths), "query_pre_attn_scalar": 1.0})
    every = fields.count("sliding_window_pattern")
    default = ["sliding_attention" if (at + 1) % every else "full_attention" for at in range(layers)]
    kinds = fields.attention_kinds(layers, default)
    shared = gemma4.donors(kinds, fields.whole("num_kv_shared_layers", 0))
    norm = NormConfig(read.norm.eps)
    streams = fields.count("altup_num_inputs", default=4)
    active = fields.whole("altup_active_idx", 0)
    if active >= streams:
        raise UnusableModel(f"config.json: altup_active_idx is {active}, and altup_num_inputs {streams}")
    return replace(
        read,
        layers=tuple(
            replace(layer, keys_of=donor, feed_forward=width, gate_sparsity=float(sparsity))
            for layer, donor, width, sparsity in zip(read.layers, shared, widths, sparsities, strict=True)
        ),
        norm=norm,
        qk_norm=norm,
        value_norm=replace(norm, weight=False),
        logit_softcap=fields.number("final_logit_softcapping", default=30.0),
        per_layer=PerLayerConfig(
            fields.count("vocab_size_per_layer_input", default=262144),
            fields.count("hidden_size_per_layer_input", default=256),
        ),
        streams=StreamsConfig(
            streams,
            active,
            rank=fields.count("laurel_rank", default=64),
            scales_output=fields.flag("altup_correct_scale", True),
        ),
    )


def of_layers(value: Any, layers: int, name: str) -> list[Any]:
    """A value for each layer, where config.json has one or a list. Raises UnusableModel."""
    values = value if isinstance(value, list) else [value] * layers
    if len(values) != layers:
        raise UnusableModel(f"config.json: {name} has {len(values)} values for {layers} layers")
    return values


def sparsely_gated(
    gate_up_T2F: Tensor, open_from: float, width: int, group: TensorGroup, activation: str
) -> Tensor:
    """(T, 2 F) to (T, F) where only gates open that are so many deviations over the mean of all of a token's gates."""
    half = gate_up_T2F.shape[-1] // 2
    gate_TF = gate_up_T2F[..., :half].float()
    mean_T1 = group.all_reduce(gate_TF.sum(-1, keepdim=True)) / width
    variance_T1 = group.all_reduce((gate_TF - mean_T1).square().sum(-1, keepdim=True)) / width
    opened_TF = torch.relu(gate_TF - (mean_T1 + variance_T1.sqrt() * open_from)).to(gate_up_T2F.dtype)
    return ops.ACTIVATIONS[activation](opened_TF).mul_(gate_up_T2F[..., half:])


class Gemma3nLoader(gemma4.Gemma4Loader):
    """Reads streams and low-rank branches. They are the same on every rank."""

    def ends(self) -> Ends:
        """With what makes several streams of one."""
        ends, config = super().ends(), self.config
        assert config.streams is not None
        square = (config.width, config.width)

        def matrices(name: str) -> list[Linear]:
            at = self.prefix + gemma4.stem(name, self)
            assert config.streams is not None
            return [Linear(self.read(f"{at}.{stream}", square)) for stream in range(config.streams.count - 1)]

        ends.streams = StreamEnds(
            config.streams.count,
            matrices("altup_projections") if self.group.is_first_stage else [],
            matrices("altup_unembed_projections") if self.group.is_last_stage else [],
        )
        return ends

    def of_other_stages(self, mine: range) -> list[str]:
        """With what makes several streams of one, and one of several."""
        names = ("altup_projections", "altup_unembed_projections")
        others = [re.escape(f"{self.prefix}{gemma4.stem(name, self)}.") + ".*" for name in names]
        return super().of_other_stages(mine) + others

    def layer(self, index: int) -> Layer:
        """One layer."""
        config = self.config
        layer, choice, streams = super().layer(index), config.layers[index], config.streams
        assert streams is not None
        at, width, count = self.prefix + self.keys.layer.format(index), config.width, streams.count
        if choice.gate_sparsity and layer.feed_forward is not None:
            open_from = NormalDist().inv_cdf(choice.gate_sparsity)
            layer.feed_forward.activation = partial(
                sparsely_gated,
                open_from=open_from,
                width=choice.feed_forward,
                group=self.group,
                activation=config.activation,
            )
        scale = None
        if streams.scales_output:
            scale = self.checkpoint.tensor(f"{at}altup.correct_output_scale", (width,))
        layer.streams = AlternatingUpdates(
            streams.active,
            self.norm(f"{at}altup.router_norm", width),
            Linear(self.read(f"{at}altup.modality_router", (count, width))),
            Linear(self.read(f"{at}altup.prediction_coefs", (count * count, count))),
            Linear(self.read(f"{at}altup.correction_coefs", (count, count))),
            scale,
        )
        layer.beside_attention = LowRankResidual(
            Linear(self.read(f"{at}laurel.linear_left", (streams.rank, width))),
            Linear(self.read(f"{at}laurel.linear_right", (width, streams.rank))),
            self.norm(f"{at}laurel.post_laurel_norm", width),
        )
        return layer


RECIPE = DecoderRecipe(read_config, keys, Gemma3nLoader)
