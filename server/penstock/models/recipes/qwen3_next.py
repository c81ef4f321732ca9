"""Qwen3-Next: three layers of four are gated delta rules, and attention has a gate; experts in every layer, norms around 1."""

from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig, NormConfig, OutputGate
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2_moe, qwen3
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import Convolution, GatedDeltaNet
from penstock.models.recurrent_config import DeltaConfig
from penstock.models.recurrent_loader import Part, convolution, linear, numbers, scaled

# Heads that predict further tokens, for speculation.
FURTHER = r"mtp\..*"

KEYS = replace(qwen3.KEYS, experts=qwen2_moe.KEYS.experts, ignored=(FURTHER,))


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = hybrid(config)
    defaults = {"num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True}
    shared = fields.count("shared_expert_intermediate_size", default=512)
    return qwen2_moe.with_experts({**defaults, "moe_intermediate_size": 512, **config}, read, shared)


def hybrid(config: dict[str, Any]) -> DecoderConfig:
    """The decoder without its experts: its layers of both kinds, norms and gates."""
    fields = Fields(config)
    read = llama.read_config(
        {"head_dim": 256, "intermediate_size": 1, "partial_rotary_factor": 0.25, **config}
    )
    norm = fields.norm("rms_norm_eps", 1e-6, offset=1.0)
    every = fields.count("full_attention_interval", default=4)
    default = [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(read.num_layers)
    ]
    kinds = fields.layer_kinds(read.num_layers, default)
    unknown = next((kind for kind in kinds if kind not in ("full_attention", "linear_attention")), None)
    if unknown is not None:
        raise UnusableModel(
            f"config.json: layer_types names {unknown!r}; supported: full_attention, linear_attention"
        )
    fields.refuse("attn_output_gate", True)
    recurrent = [kind == "linear_attention" for kind in kinds]
    mixer = delta_rule(fields, norm)
    read = replace(
        read, norm=norm, qk_norm=norm, output_gate=OutputGate("sigmoid", per_number=True, in_query=True)
    )
    return read.with_layers(
        attends=[not is_recurrent for is_recurrent in recurrent],
        recurrent=[mixer if is_recurrent else None for is_recurrent in recurrent],
    )


def delta_rule(fields: Fields, norm: NormConfig) -> DeltaConfig:
    """The recurrent layers."""
    keys = fields.count("linear_num_key_heads", default=16)
    values = fields.count("linear_num_value_heads", default=32)
    if values % keys:
        raise UnusableModel(
            f"config.json: linear_num_value_heads {values} is no multiple of linear_num_key_heads {keys}"
        )
    fields.refuse("hidden_act", "silu", "swish")
    fields.refuse("output_gate_type", "silu", "swish", "sigmoid")
    return DeltaConfig(
        key_heads=keys,
        value_heads=values,
        key_dim=fields.count("linear_key_head_dim", default=128),
        value_dim=fields.count("linear_value_head_dim", default=128),
        kernel=fields.count("linear_conv_kernel_dim", default=4),
        eps=norm.eps,
        gate="sigmoid" if fields.config.get("output_gate_type") == "sigmoid" else "silu",
    )


@dataclass(frozen=True)
class DeltaNames:
    """Modules of a layer's delta rule."""

    norm: str = "norm"
    out: str = "out_proj"


class DeltaLoader(Loader):
    """Reads gated delta rules. Of the matrices, rows are in the order of key heads."""

    names = DeltaNames()

    def recurrent(self, at: str, index: int) -> GatedDeltaNet:
        """One rank's key heads, and the value heads that they serve."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, DeltaConfig)
        at = f"{at}linear_attn."
        mine = self.group.even_share(
            mixer.key_heads, "the key heads of linear attention (linear_num_key_heads)"
        )
        shared = mixer.value_heads // mixer.key_heads
        heads = scaled([mine], shared)
        return GatedDeltaNet(
            mixer,
            len(mine),
            linear(self, self.delta_parts(at, mixer, mine)),
            self.delta_convolution(at, mixer, mine),
            numbers(self, at + "A_log", (mixer.value_heads,), heads),
            numbers(self, at + "dt_bias", (mixer.value_heads,), heads),
            numbers(self, f"{at}{self.names.norm}.weight", (mixer.value_dim,)),
            self.row_parallel(
                at + self.names.out,
                mixer.value_dim,
                range(mine.start * shared, mine.stop * shared),
                mixer.value_heads,
                self.config.width,
                False,
            ),
        )

    def delta_convolution(self, at: str, mixer: DeltaConfig, mine: range) -> Convolution:
        """Of queries, keys and values."""
        shared = mixer.value_heads // mixer.key_heads
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        channels = [
            *scaled([mine], mixer.key_dim),
            *scaled([mine], mixer.key_dim, keys),
            *scaled([mine], shared * mixer.value_dim, 2 * keys),
        ]
        return convolution(self, [(at + "conv1d", 2 * keys + values, channels)], mixer.kernel)

    def delta_parts(self, at: str, mixer: DeltaConfig, mine: range) -> list[Part]:
        """Queries, keys, values, gates z, b and a: for each key head all of its own, one after the other."""
        shared = mixer.value_heads // mixer.key_heads
        both = ("in_proj_qkvz", [mixer.key_dim, mixer.key_dim, *[shared * mixer.value_dim] * 2])
        rates = ("in_proj_ba", [shared, shared])
        parts: list[Part] = []
        for name, sizes in (both, rates):
            a_head, begin = sum(sizes), 0
            for size in sizes:
                rows = [range(head * a_head + begin, head * a_head + begin + size) for head in mine]
                parts.append((at + name, mixer.key_heads * a_head, rows))
                begin += size
        return parts


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, DeltaLoader)
