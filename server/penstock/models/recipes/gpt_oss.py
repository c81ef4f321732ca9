"""GPT-OSS: experts with biases and a clamped gate, sinks, and a sliding window in every other layer."""

from dataclasses import replace
from typing import Any

import torch

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig, Window
from penstock.models.decoder import Experts
from penstock.models.loading import Loader
from penstock.models.names import ExpertNames
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.parallel import ranges

NAMES = replace(
    llama.NAMES,
    sinks="self_attn.sinks",
    experts=ExpertNames(router="mlp.router", up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"attention_bias": True, "rope_theta": 150000.0, **config, "mlp_bias": False})
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(read.layers)]
    kinds = fields.layer_kinds(read.layers, default)
    routing = ops.Routing(fields.count("num_experts_per_tok", "experts_per_token", default=4), normalize=True)
    clamp = (fields.number("swiglu_limit", default=7.0), fields.number("swiglu_alpha", default=1.702))
    return replace(
        read,
        sinks=True,
        windows=(None, Window(fields.count("sliding_window", default=128))),
        window_of=tuple(int(kind == "sliding_attention") for kind in kinds),
        experts=ExpertsConfig(
            fields.count("num_local_experts", default=128),
            read.feed_forward,
            routing,
            biases=True,
            clamp=clamp,
        ),
    )


class LOADER(Loader):
    """Reads its experts from tensors of all."""

    def experts(self, at: str) -> Experts:
        """Matrices are (in, out); columns of gate and up take turns."""
        names, choice, width = self.names.experts, self.expert_choice, self.config.width
        assert names is not None
        mine = self.group.share(choice.count)
        rows, count, inner = ranges([mine]), choice.count, choice.width

        def taken(name: str, *shape: int) -> torch.Tensor:
            return self.checkpoint.tensor(at + name, (count, *shape), rows)

        up = taken(names.up, width, 2 * inner).transpose(1, 2)
        up_bias = taken(f"{names.up}_bias", 2 * inner)
        down = taken(names.down, inner, width).transpose(1, 2).contiguous()
        return self.mixture(
            at,
            mine.start,
            torch.cat((up[:, ::2], up[:, 1::2]), 1),
            torch.cat((up_bias[:, ::2], up_bias[:, 1::2]), 1),
            down,
            taken(f"{names.down}_bias", width),
        )
