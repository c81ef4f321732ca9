"""Kimi Linear: three layers of four are delta rules with a decay for each channel, the others latent attention without
positions; experts as in DeepSeek V3, under other names.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig
from penstock.models.decoder import FeedForward
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import ChannelDelta
from penstock.models.recurrent_config import ChannelDeltaConfig
from penstock.models.recurrent_loader import convolution, linear, numbers, scaled

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="block_sparse_moe.gate",
        gate="block_sparse_moe.experts.{}.w1",
        up="block_sparse_moe.experts.{}.w3",
        down="block_sparse_moe.experts.{}.w2",
        shared_gate_proj="block_sparse_moe.shared_experts.gate_proj",
        shared_up="block_sparse_moe.shared_experts.up_proj",
        shared_down="block_sparse_moe.shared_experts.down_proj",
        correction="block_sparse_moe.gate.e_score_correction_bias",
    ),
)

# What DeepSeek V3 calls the same.
NAMES = {
    "max_position_embeddings": "model_max_length",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "n_group": "num_expert_group",
    "norm_topk_prob": "moe_renormalize",
}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    named = {ours: config[theirs] for ours, theirs in NAMES.items() if theirs in config}
    fields.refuse("mla_use_nope", True)
    fields.refuse("moe_router_activation_func", "sigmoid")
    v3 = {"model_type": "deepseek_v3", "rope_scaling": None, "rope_parameters": None}
    # Of the class, where the file has none.
    defaults = {"routed_scaling_factor": 2.446, "max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-5}
    read = deepseek.read_config({**defaults, **config, **named, **v3})
    shape = Fields({**saved(fields, read.num_layers), **fields.part("linear_attn_config").config})
    attends = layers_of(shape, "full_attn_layers", read.num_layers)
    recurrent = layers_of(shape, "kda_layers", read.num_layers)
    if attends & recurrent or len(attends) + len(recurrent) != read.num_layers:
        raise UnusableModel(
            f"config.json: full_attn_layers and kda_layers do not name each of {read.num_layers} layers once"
        )
    fields.refuse("hidden_act", "silu", "swish")
    mixer = ChannelDeltaConfig(
        heads=shape.count("num_heads", default=32),
        head_dim=shape.count("head_dim", default=128),
        kernel=shape.count("short_conv_kernel_size", default=4),
        eps=read.norm.eps,
    )
    layers = range(read.num_layers)
    return replace(read, interleaved=False).with_layers(
        rope=[None for _ in layers],
        attends=[i in attends for i in layers],
        recurrent=[mixer if i in recurrent else None for i in layers],
    )


def saved(fields: Fields, layers: int) -> dict[str, Any]:
    """`linear_attn_config` as transformers saves it, in fields of the whole."""
    names = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim"}
    names["short_conv_kernel_size"] = "linear_conv_kernel_dim"
    found = {ours: fields.config[theirs] for ours, theirs in names.items() if theirs in fields.config}
    kinds = fields.attention_kinds(layers, [], local="linear_attention")
    if kinds:
        for name, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
            found[name] = [at for at, one in enumerate(kinds, 1) if one == kind]
    return found


def layers_of(shape: Fields, name: str, layers: int) -> set[int]:
    """Numbers of layers, which the file counts from 1."""
    given = shape.config.get(name)
    if not isinstance(given, list) or not all(isinstance(x, int) and 1 <= x <= layers for x in given):
        raise UnusableModel(
            f"config.json: {name} in linear_attn_config is not a list of layers, 1 to {layers}"
        )
    return {number - 1 for number in given}


class KimiLoader(deepseek.DeepseekLoader):
    """Reads delta rules, whose heads are divided; what decays and gates are made of is the same for all ranks."""

    def feed_forward(self, at: str) -> FeedForward:
        """Dense layers; transformers saves them under the name that experts have."""
        published = self.checkpoint.has(f"{at}mlp.gate_proj.weight")
        below = "mlp" if published else "block_sparse_moe"
        names = (f"{below}.gate_proj", f"{below}.up_proj", "", f"{below}.down_proj")
        return self.dense(at, self.config.feed_forward, *names)

    def recurrent(self, at: str, index: int) -> ChannelDelta:
        """One rank's heads."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, ChannelDeltaConfig)
        at, size, total = f"{at}{self.below}", mixer.head_dim, mixer.heads * mixer.head_dim
        mine = self.group.even_share(
            mixer.heads, "the heads of linear attention (linear_attn_config.num_heads)"
        )
        rows, low = scaled([mine], size), [range(size)]
        parts = [(at + f"{name}_proj", total, rows) for name in "qkv"]
        decays: Linear | None = None
        gates: Linear | None = None
        if mixer.low_rank:
            parts += [(at + f"{name}_a_proj", size, low) for name in "fg"]
            behind = [self.read(at + f"{name}_b_proj", (total, size), rows=rows) for name in "fg"]
            decays, gates = Linear(behind[0]), Linear(behind[1])
        else:
            parts += [(at + f"{name}_proj", total, rows) for name in "fg"]
        parts.append((at + "b_proj", mixer.heads, [mine]))
        rate_bias = numbers(self, at + "dt_bias", (total,), rows)
        shape = (1, 1, mixer.heads, 1) if mixer.low_rank else (mixer.heads,)
        # transformers saves it under the name that latent attention's has.
        last = "o_proj" if self.checkpoint.has(f"{at}o_proj.weight") else self.last
        log_decay = numbers(self, at + "A_log", shape).flatten()[mine.start : mine.stop]
        return ChannelDelta(
            mixer,
            len(mine),
            linear(self, parts),
            convolution(self, [(at + f"{name}_conv1d", total, rows) for name in "qkv"], mixer.kernel),
            decays,
            gates,
            log_decay.clone(),
            rate_bias.view(len(mine), size),
            numbers(self, at + "o_norm.weight", (size,)),
            self.row_parallel(at + last, size, mine, mixer.heads, self.config.width, False),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, KimiLoader)
