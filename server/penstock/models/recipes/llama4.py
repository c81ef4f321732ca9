"""Llama 4: three layers of four are rotated and see their chunk of the context only, the fourth sees all and has a
temperature; experts read what their weight has scaled, and every token goes to a shared one as well. Some have no experts (Llama Guard 4,
MobileLLM-R1) or no chunks.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, NormConfig, Temperature, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import TransposedExpertsLoader

KEYS = replace(
    llama.KEYS,
    prefixes=("", "language_model."),
    other_heads=("language_model.lm_head",),
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    experts=ExpertKeys(
        router="feed_forward.router",
        up="feed_forward.experts.gate_up_proj",
        down="feed_forward.experts.down_proj",
        shared_gate_proj="feed_forward.shared_expert.gate_proj",
        shared_up="feed_forward.shared_expert.up_proj",
        shared_down="feed_forward.shared_expert.down_proj",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    defaults = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "head_dim": 128}
    read = llama.read_config({**defaults, "max_position_embeddings": 131072, **config, "mlp_bias": False})
    rotated = rotated_layers(fields, read.num_layers)
    default = ["chunked_attention" if here else "full_attention" for here in rotated]
    kinds = fields.attention_kinds(read.num_layers, default, "chunked_attention")
    # null: no chunks, in spite of layers of their kind.
    size = fields.whole("attention_chunk_size", 0 if "attention_chunk_size" in config else 8192)
    with_experts = expert_layers(fields, read.num_layers)
    experts = experts_of(fields, read.feed_forward) if with_experts else None
    temperature = None
    if config.get("attn_temperature_tuning", True):  # true, or the 4 of the first releases
        temperature = Temperature(
            fields.number("attn_scale", default=0.1), fields.count("floor_scale", default=8192), offset=1
        )
    read = read.with_layers(
        rope=[layer.rope if here else None for layer, here in zip(read.layers, rotated, strict=True)],
        window=[
            Window(size, chunked=True) if kind == "chunked_attention" and size else None for kind in kinds
        ],
        experts=[experts if at in with_experts else None for at in range(read.num_layers)],
    )
    return replace(
        read,
        layers=tuple(
            replace(layer, qk_normed=here, temperature=None if here else temperature)
            for layer, here in zip(read.layers, rotated, strict=True)
        ),
        feed_forward=fields.count("intermediate_size_mlp", default=16384),
        interleaved=True,
        # Behind the rotation in their code, which is the same without a weight.
        qk_norm=NormConfig(read.norm.eps, weight=False) if fields.flag("use_qk_norm", True) else None,
    )


def experts_of(fields: Fields, width: int) -> ExpertsConfig:
    """Those of every layer that has some."""
    return ExpertsConfig(
        fields.count("num_local_experts", default=16),
        width,
        ops.Routing(fields.count("num_experts_per_tok", default=1), sigmoid=True),
        shared_width=width,
        weighs_input=True,
    )


def rotated_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers are rotated: in spite of its name, `no_rope_layers` has a 1 for these. It may be longer than there are layers."""
    every = fields.count("no_rope_layer_interval", default=4)
    given = fields.config.get("no_rope_layers") or [int((at + 1) % every != 0) for at in range(layers)]
    if not isinstance(given, list) or len(given) < layers or set(given) - {0, 1}:
        raise UnusableModel(f"config.json: no_rope_layers is not a list of {layers} times 0 or 1")
    return [bool(here) for here in given[:layers]]


def expert_layers(fields: Fields, layers: int) -> set[int]:
    """The numbers of layers with experts; a step of 0: none has."""
    step = fields.whole("interleave_moe_layer_step", 1)
    given = fields.config.get("moe_layers")
    if given is None:
        return set(range(step - 1, layers, step)) if step else set()
    if not isinstance(given, list) or set(given) - set(range(layers)):
        raise UnusableModel(f"config.json: moe_layers is not a list of layers below {layers}")
    return set(given)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, TransposedExpertsLoader)
