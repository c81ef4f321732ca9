"""RecurrentGemma (Griffin): two layers of three are gated recurrences, the others attention with a window; Gemma's norms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig, Window
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import GatedRecurrence
from penstock.models.recurrent_config import GriffinConfig
from penstock.models.recurrent_loader import convolution, linear, numbers, scaled
from penstock.parallel.group import ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

KEYS = replace(
    llama.KEYS,
    norm="model.final_norm",
    attention_norm="temporal_pre_norm",
    feed_forward_norm="channel_pre_norm",
    q="temporal_block.q_proj",
    k="temporal_block.k_proj",
    v="temporal_block.v_proj",
    out="temporal_block.o_proj",
    gate="mlp_block.gate_proj",
    up="mlp_block.up_proj",
    down="mlp_block.down_proj",
)
# Configurations name none; the models were trained with so many.
POSITIONS = 8192
KINDS = ("recurrent", "recurrent", "attention")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("embeddings_scale_by_sqrt_dim", True)
    forward = fields.count("intermediate_size", default=7680)
    defaults = {"max_position_embeddings": POSITIONS, "partial_rotary_factor": 0.5}
    given = {**defaults, **config, "intermediate_size": forward // 2, "hidden_act": "silu"}
    read = llama.read_config(given)
    pattern = config.get("block_types") or config.get("_block_types") or KINDS  # the latter as published
    if not isinstance(pattern, (list, tuple)) or set(pattern) - set(KINDS):
        raise UnusableModel("config.json: block_types is not a list of recurrent and attention")
    kinds = [pattern[i % len(pattern)] for i in range(read.num_layers)]
    activation = fields.activation("hidden_activation", default="gelu_pytorch_tanh")
    channels = fields.count("lru_width", default=read.width)
    fields.head_dim(channels, read.heads)
    mixer = GriffinConfig(channels, read.heads, fields.count("conv1d_width", default=4), activation)
    window = Window(fields.count("attention_window_size", default=2048))
    read = replace(
        read,
        norm=fields.norm("rms_norm_eps", 1e-6, offset=1.0),
        activation=activation,
        attention_out_bias=True,
        up_bias=True,
        down_bias=True,
        # In bf16 in every dtype.
        embedding_scale=float(tensors.tensor(math.sqrt(read.width), dtype=tensors.bfloat16)),
        logit_softcap=fields.number("logits_soft_cap", default=30.0),
        tied_head=fields.flag("tie_word_embeddings", True),
    )
    return read.with_layers(
        window=[window] * read.num_layers,
        attends=[kind == "attention" for kind in kinds],
        recurrent=[mixer if kind == "recurrent" else None for kind in kinds],
    )


class GriffinLoader(Loader):
    """Reads gated recurrences, whose heads are divided."""

    def recurrent(self, at: str, index: int) -> GatedRecurrence:
        """One rank's heads."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, GriffinConfig)
        at, total, heads = f"{at}temporal_block.", mixer.channels, mixer.heads
        mine = self.group.even_share(heads, "the heads of the recurrence (num_attention_heads)")
        size = total // heads
        rows = scaled([mine], size)

        def of_heads(name: str, *shape: int) -> Tensor:
            both = [
                self.checkpoint.tensor(f"{at}rg_lru.{gate}_gate_{name}", (heads, *shape), ranges([mine]))
                for gate in ("input", "recurrent")
            ]
            return tensors.cat(both, -1)

        return GatedRecurrence(
            mixer,
            linear(self, [(at + "linear_x", total, rows), (at + "linear_y", total, rows)], bias=True),
            convolution(self, [(at + "conv_1d", total, rows)], mixer.kernel, bias=True),
            of_heads("weight", size, size),
            of_heads("bias", size),
            numbers(self, at + "rg_lru.recurrent_param", (total,), rows),
            self.row_parallel(at + "linear_out", size, mine, heads, self.config.width, True),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GriffinLoader)
