"""Command A+ and North Mini: Cohere 2 with experts, the first layers dense."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.models.config import DecoderConfig, ExpertsConfig, Window
from penstock.models.decoder import FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import cohere, deepseek
from penstock.models.recipes.fields import Fields

EXPERTS = deepseek.KEYS.experts
assert EXPERTS is not None
KEYS = replace(cohere.KEYS, experts=replace(EXPERTS, correction=""))


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields({"first_k_dense_replace": 0, **config})
    fields.refuse("shared_expert_combination_strategy", "average", "sum")
    fields.refuse("expert_selection_fn", "softmax", "sigmoid")
    given = {"head_dim": 128, **config, "use_qk_norm": None, "attention_bias": config.get("attention_bias")}
    read = cohere.read_config(given)
    if config.get("rms_norm_eps") is not None:
        read = replace(read, norm=fields.norm("rms_norm_eps", 1e-5))
    sparse = fields.sparse_layers(read.num_layers)
    prefix = sparse.index(True) if True in sparse else len(sparse)
    every = fields.count("sliding_window_pattern", default=4)
    before = fields.count("prefix_dense_sliding_window_pattern", default=1)
    default = [
        "sliding_attention"
        if ((at + 1) % before if at < prefix else (at - prefix + 1) % every)
        else "full_attention"
        for at in range(read.num_layers)
    ]
    local = [kind == "sliding_attention" for kind in fields.attention_kinds(read.num_layers, default)]
    window = Window(fields.count("sliding_window", default=4096))
    is_sigmoid = config.get("expert_selection_fn") == "sigmoid"
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=2),
        sigmoid=is_sigmoid,
        normalize=fields.flag("norm_topk_prob", True) if is_sigmoid else True,
        scale=mean_of_two(config),
    )
    width = fields.count("intermediate_size")
    experts = ExpertsConfig(
        fields.count("num_experts", default=8),
        width,
        routing,
        shared_width=width * fields.whole("num_shared_experts", 0),
    )
    read = replace(
        read,
        attention_out_bias=fields.flag("attention_bias"),
        feed_forward=fields.count("prefix_dense_intermediate_size", "intermediate_size"),
    )
    return read.with_layers(
        window=[window if here else None for here in local],
        # The dense layers before the others are rotated wherever they attend to all.
        rope=[
            layer.rope if here or (before == 1 and not has_experts) else None
            for layer, here, has_experts in zip(read.layers, local, sparse, strict=True)
        ],
        experts=[experts if here else None for here in sparse],
    )


def mean_of_two(config: dict[str, Any]) -> float:
    """The factor of what the experts give and of what the shared one gives."""
    fields = Fields(config)
    is_mean = config.get("shared_expert_combination_strategy", "average") == "average"
    return 0.5 if is_mean and fields.whole("num_shared_experts", 0) else 1.0


class Cohere2MoeLoader(Loader):
    """Halves what the shared expert gives, where the family takes the mean: exact, as a power of two."""

    def shared(self, at: str, choice: ExpertsConfig) -> FeedForward:
        """This rank's part."""
        made = super().shared(at, choice)
        if choice.routing.scale == 0.5:
            made.out.weight_OI *= 0.5
        return made


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, Cohere2MoeLoader)
