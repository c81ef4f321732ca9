"""GPT-OSS: experts with biases and a clamped gate, sinks, and a sliding window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, Window
from penstock.models.decoder import Experts
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.parallel.group import ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

KEYS = replace(
    llama.KEYS,
    sinks="self_attn.sinks",
    experts=ExpertKeys(router="mlp.router", up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"attention_bias": True, "rope_theta": 150000.0, **config, "mlp_bias": False})
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(read.num_layers)]
    kinds = fields.layer_kinds(read.num_layers, default)
    routing = ops.Routing(fields.count("num_experts_per_tok", "experts_per_token", default=4), normalize=True)
    clamp = (fields.number("swiglu_limit", default=7.0), fields.number("swiglu_alpha", default=1.702))
    window = Window(fields.count("sliding_window", default=128))
    experts = ExpertsConfig(
        fields.count("num_local_experts", default=128),
        read.feed_forward,
        routing,
        biases=True,
        clamp=clamp,
    )
    return replace(read, sinks=True).with_layers(
        window=[window if kind == "sliding_attention" else None for kind in kinds],
        experts=[experts] * read.num_layers,
    )


class GptOssLoader(Loader):
    """Reads its experts from tensors of all."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """Matrices are (in, out) unless they are of fp4; columns of gate and up take turns."""
        keys, width = self.keys.experts, self.config.width
        assert keys is not None
        mine = self.group.share(choice.count)
        rows, count, inner = ranges([mine]), choice.count, choice.width

        def taken(name: str, *shape: int) -> Tensor:
            return self.checkpoint.tensor(at + name, (count, *shape), rows)

        if self.checkpoint.has(f"{at}{keys.up}_blocks"):  # as published: rows of fp4, (out, in)
            up, down = taken(keys.up, 2 * inner, width), taken(keys.down, width, inner)
        else:
            up = taken(keys.up, width, 2 * inner).transpose(1, 2)
            down = taken(keys.down, inner, width).transpose(1, 2).contiguous()
        up_bias = taken(f"{keys.up}_bias", 2 * inner)
        return self.mixture(
            at,
            choice,
            mine.start,
            tensors.cat((up[:, ::2], up[:, 1::2]), 1),
            tensors.cat((up_bias[:, ::2], up_bias[:, 1::2]), 1),
            down,
            taken(f"{keys.down}_bias", width),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GptOssLoader)
