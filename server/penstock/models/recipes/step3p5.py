"""Step 3.5 Flash, and the text of Step 3.7 Flash: Laguna's kind of layers, with query heads, windows and rotary tables by kind, a gate
for each head, norms around 1, and experts chosen by sigmoids with a correction, whose gates are capped in the last layers.

Source: transformers 5.23 (step3p7), whose defaults are those of stepfun-ai/Step-3.7-Flash, and the names of tensors that it converts.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.rope import RopeConfig
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, NormConfig, OutputGate, Window
from penstock.models.decoder import Experts, FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.qwen3_5 import text_of
from penstock.models.recipes.stacked_experts import apart
from penstock.models.recipes.text_of_vision_models import text_keys
from penstock.parallel.group import ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

KINDS = ("full_attention", "sliding_attention")


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Layers behind the last one predict several tokens ahead, and are left out."""
    layers = Fields(text_of(config)).count("num_hidden_layers", default=45)
    experts = ExpertKeys(
        router="moe.gate",
        gate="moe.gate_proj",
        up="moe.up_proj",
        down="moe.down_proj",
        shared_gate_proj="share_expert.gate_proj",
        shared_up="share_expert.up_proj",
        shared_down="share_expert.down_proj",
        correction="moe.router_bias",
    )
    named = replace(
        llama.KEYS,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        output_gate="self_attn.g_proj",
        experts=experts,
        ignored=(
            rf"(?:.*\.)?layers\.(?:{'|'.join(str(layers + at) for at in range(8))})\..*",
            r"(?:model\.)?vit_large_projector\..*",
        ),
    )
    return text_keys(named)


def of_layers(fields: Fields, name: str, layers: int, default: Any) -> list[Any]:
    """A value for each layer: a list, which may go on with layers that predict tokens ahead, or one for all. An empty list is none."""
    given = fields.config.get(name)
    if given is None or given == []:
        return [default] * layers
    if not isinstance(given, list):
        return [given] * layers
    if len(given) < layers:
        raise UnusableModel(f"config.json: {name} has {len(given)} values for {layers} layers")
    return given[:layers]


def caps(fields: Fields, name: str, layers: int) -> list[float]:
    """Of each layer; 0: none."""
    found = [0 if one is None else one for one in of_layers(fields, name, layers, 0)]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and one >= 0 for one in found):
        raise UnusableModel(f"config.json: {name} is not a list of numbers of 0 or more")
    return list(map(float, found))


def rotations(fields: Fields, kinds: list[str], head_dim: int, positions: int) -> list[RopeConfig]:
    """Of each layer: by its kind, as transformers saves it, or by the layer, as published."""
    by_kind = fields.config.get("rope_parameters")
    if isinstance(by_kind, dict) and set(KINDS) & by_kind.keys():
        return [fields.rope(head_dim, positions, kind=kind) for kind in kinds]
    thetas = of_layers(fields, "rope_theta", len(kinds), 10000.0)
    shares = of_layers(fields, "partial_rotary_factors", len(kinds), 1.0)
    stretched = fields.config.get("yarn_only_types") or ["full_attention"]
    made = []
    for kind, theta, share in zip(kinds, thetas, shares, strict=True):
        scaling = fields.config.get("rope_scaling") if kind in stretched else None
        one = {"rope_theta": theta, "partial_rotary_factor": share, "rope_scaling": scaling}
        made.append(Fields({**one, "max_position_embeddings": positions}).rope(head_dim, positions))
    return made


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_of(config)
    named = {"num_key_value_heads": "num_attention_groups", "n_routed_experts": "moe_num_experts"}
    named |= {"num_experts_per_tok": "moe_top_k", "share_expert_dim": "share_expert_dims"}
    text = {"head_dim": 128, "rms_norm_eps": 1e-5, **text}
    text |= {ours: text[theirs] for ours, theirs in named.items() if theirs in text}
    fields = Fields(text)
    for name, served in (
        ("moe_router_activation", "sigmoid"),
        ("norm_expert_weight", True),
        ("use_head_wise_attn_gate", True),
        ("use_moe_router_bias", True),
        ("query_pre_attn_scalar", text["head_dim"]),
        ("use_bidirectional_attention", False),
        ("sink", False),
        ("zero_centered", True),
    ):
        fields.refuse(name, served)
    plain = {"rope_theta": 10000.0, "rope_scaling": None, "rope_parameters": None, "mlp_bias": False}
    read = llama.read_config({**text, **plain})
    layers = read.num_layers
    kinds = Fields({"layer_types": of_layers(fields, "layer_types", layers, KINDS[0])}).attention_kinds(
        layers, []
    )
    if not all(of_layers(fields, "use_rope_layers", layers, True)):
        raise UnusableModel("config.json: use_rope_layers is not true for each layer")
    other = fields.part("attention_other_setting")
    other.refuse("attention_type", "sliding_attention")
    other.refuse("num_attention_groups", read.kv_heads)
    other.refuse("head_dim", read.head_dim)
    near_heads = other.count(
        "num_attention_heads", default=fields.count("num_sliding_attention_heads", default=read.heads)
    )
    Fields({**text, "num_attention_heads": near_heads}).heads()
    norm = NormConfig(read.norm.eps, offset=1.0)
    window = Window(fields.count("sliding_window", default=512))
    return replace(
        read,
        norm=norm,
        qk_norm=norm,
        output_gate=OutputGate("sigmoid"),
        layers=tuple(
            replace(
                layer,
                rope=rope,
                window=window if kind == "sliding_attention" else None,
                heads=0 if kind == KINDS[0] or near_heads == read.heads else near_heads,
                experts=experts,
            )
            for layer, rope, kind, experts in zip(
                read.layers,
                rotations(fields, kinds, read.head_dim, read.max_positions),
                kinds,
                mixtures(fields, layers),
                strict=True,
            )
        ),
    )


def mixtures(fields: Fields, layers: int) -> list[ExpertsConfig | None]:
    """Of each layer; None: it is dense."""
    given = fields.config.get("moe_layers_enum")
    if fields.config.get("mlp_layer_types") is not None:
        kinds = of_layers(fields, "mlp_layer_types", layers, "sparse")
        sparse = Fields({"mlp_layer_types": kinds}).sparse_layers(layers)
    elif given is None:
        sparse = [at >= 3 for at in range(layers)]
    else:
        listed = given.split(",") if isinstance(given, str) else given
        if not isinstance(listed, list) or not all(re.fullmatch(r"\s*\d+\s*", str(one)) for one in listed):
            raise UnusableModel("config.json: moe_layers_enum is not a list of layers")
        numbers = {int(one) for one in listed}
        sparse = [at in numbers for at in range(layers)]
    routed, shared = caps(fields, "swiglu_limits", layers), caps(fields, "swiglu_limits_shared", layers)
    if any(cap for cap, has_experts in zip(shared, sparse, strict=True) if not has_experts):
        raise UnusableModel("config.json: swiglu_limits_shared caps a dense layer")
    plain = ExpertsConfig(
        fields.count("n_routed_experts", default=288),
        fields.count("moe_intermediate_size", default=1280),
        ops.Routing(
            fields.count("num_experts_per_tok", default=8),
            sigmoid=True,
            normalize=True,
            scale=fields.number("moe_router_scaling_factor", default=1.0),
        ),
        shared_width=fields.count("share_expert_dim", default=1280),
        correction=True,
        long_router=fields.flag("need_fp32_gate"),
    )
    return [
        replace(plain, cap=routed[at], shared_cap=shared[at]) if sparse[at] else None for at in range(layers)
    ]


# Below which each expert has tensors of its own, as llm-compressor and AMD's Quark leave them.
APART = ("moe.experts.{}.", "moe.{}.")


class Step3p5Loader(Loader):
    """Reads experts whose gates, ups and downs are a tensor each, and caps those of the shared one."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """This rank's experts."""
        names, width = self.keys.experts, self.config.width
        assert names is not None
        for each in APART:
            if self.checkpoint.has(f"{at}{each.format(0)}down_proj.weight"):
                return self.experts_apart(at, choice, apart(names, each))
        mine = self.group.share(choice.count)

        def taken(name: str, outputs: int, inputs: int) -> Tensor:
            return self.checkpoint.tensor(
                f"{at}{name}.weight", (choice.count, outputs, inputs), ranges([mine])
            )

        up_XGE = tensors.cat(
            (taken(names.gate, choice.width, width), taken(names.up, choice.width, width)), 1
        )
        return self.mixture(
            at, choice, mine.start, up_XGE, None, taken(names.down, width, choice.width), None
        )

    def shared(self, at: str, choice: ExpertsConfig) -> FeedForward:
        """The expert that every token goes to."""
        made = super().shared(at, choice)
        if choice.shared_cap:
            plain: Callable[[Tensor], Tensor] = ops.ACTIVATIONS[self.config.activation]
            made.activation = partial(ops.gated_capped, activation=plain, limit=choice.shared_cap)
        return made


RECIPE = DecoderRecipe(read_config, keys, Step3p5Loader)
