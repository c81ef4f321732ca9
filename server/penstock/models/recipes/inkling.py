"""The text of Inkling, alone or as published with towers for images and sound: attention with windows and without positions, to whose
scores queries add what they say of distances; short convolutions of keys, values and what every branch gives; and experts of which
some are chosen for every token.

Source: transformers 5.23 (inkling), whose defaults are those of thinkingmachines/Inkling, and the names of tensors that it converts.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import (
    DecoderConfig,
    DistanceConfig,
    ExpertsConfig,
    LayerConfig,
    Temperature,
    Window,
)
from penstock.models.decoder import Attention, Distances, Experts, FeedForward, LatentAttention, Layer
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.qwen3_5 import text_of
from penstock.models.recipes.text_of_vision_models import text_keys
from penstock.models.recurrent import Convolution
from penstock.models.recurrent_config import SmoothingConfig
from penstock.models.recurrent_loader import Part, convolution, scaled
from penstock.parallel.group import TensorGroup, ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

NEAR, ALL = "hybrid_sliding", "hybrid"
EVERY = 6  # of so many layers the last attends to all tokens, where config.json does not say which do

# As transformers names tensors. Experts are read by names below these.
KEYS = text_keys(
    replace(
        llama.KEYS,
        embedding_norm="embed_tokens.embed_norm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        experts=ExpertKeys(router="mlp.gate", correction="mlp.gate.e_score_correction_bias"),
    )
)
# As published, where gate and up are one matrix, whose rows are one of each in turn.
PUBLISHED = replace(
    KEYS,
    embedding="embed",
    head="model.llm.unembed",
    other_heads=(),
    prefixes=("model.llm.",),
    embedding_norm="embed_norm",
    attention_norm="attn_norm",
    feed_forward_norm="mlp_norm",
    q="attn.wq_du",
    k="attn.wk_dv",
    v="attn.wv_dv",
    q_norm="attn.q_norm",
    k_norm="attn.k_norm",
    out="attn.wo_ud",
    gate_up="mlp.w13_dn",
    down="mlp.w2_md",
    experts=ExpertKeys(router="mlp.gate", correction="mlp.gate.bias"),
    ignored=(*KEYS.ignored, r"model\.(audio|visual|mtp)\..*"),
)
LARGE = 1e9  # over any score: experts with this correction are chosen for every token


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = {name: value for name, value in text_of(config).items() if value is not None}
    fields = Fields(text)
    fields.refuse("hidden_act", "silu")
    fields.refuse("shared_expert_sink", True)
    fields.refuse("gate_activation", "sigmoid")
    for name in ("use_embed_norm", "use_sconv", "use_gate_bias", "use_global_scale", "norm_after_topk"):
        fields.refuse(name, True)
    head_dim = fields.count("head_dim", default=128)
    fields.refuse("swa_head_dim", head_dim)
    width = fields.count("intermediate_size", default=24576)
    experts_width = fields.count("moe_intermediate_size", default=3072)
    if "dense_intermediate_size" in text:
        experts_width, width = width, fields.count("dense_intermediate_size")
    positions = fields.count("max_position_embeddings", "model_max_length", default=131072)
    read = llama.read_config(
        {
            **text,
            "head_dim": head_dim,
            "intermediate_size": width,
            "max_position_embeddings": positions,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        }
    )
    real = min(fields.count("unpadded_vocab_size", default=read.vocab_size), read.vocab_size)
    near = layers_with_windows(fields, read.num_layers)
    sparse = sparse_layers(fields, read.num_layers)
    experts = experts_of(fields, experts_width)
    size, rank = (
        fields.count("sliding_window_size", "sliding_window", default=512),
        fields.count("d_rel", default=16),
    )
    reach, kernel = (
        fields.count("rel_extent", default=1024),
        fields.count("conv_kernel_size", "sconv_kernel_size", default=4),
    )
    if kernel < 2:
        raise UnusableModel("config.json: conv_kernel_size is 1, which is no convolution")
    temperature = None
    if "log_scaling_n_floor" in text:
        alpha = fields.number("log_scaling_alpha", default=0.1)
        temperature = Temperature(alpha, fields.count("log_scaling_n_floor"), stepped=False)
    layers = []
    for is_near, has_experts in zip(near, sparse, strict=True):
        kv_heads = fields.count("swa_num_key_value_heads", default=16) if is_near else read.kv_heads
        heads = fields.count("swa_num_attention_heads", default=64) if is_near else read.heads
        if heads % kv_heads:
            raise UnusableModel(
                f"config.json: swa_num_attention_heads {heads} is no multiple of swa_num_key_value_heads {kv_heads}"
            )
        layers.append(
            LayerConfig(
                window=Window(size) if is_near else None,
                experts=experts if has_experts else None,
                temperature=None if is_near else temperature,
                heads=heads,
                kv_heads=kv_heads,
                distances=DistanceConfig(rank, size if is_near else reach),
                smoothing=SmoothingConfig(kv_heads, head_dim, read.width, kernel),
            )
        )
    return replace(
        read,
        layers=tuple(layers),
        vocab_size=real,
        further_embeddings=read.vocab_size - real,
        scale=1 / head_dim,
        qk_norm=read.norm,
        embedding_norm=True,
        logit_scale=1 / fields.number("logits_mup_width_multiplier", "embedding_multiplier", default=24.0),
    )


def layers_with_windows(fields: Fields, layers: int) -> list[bool]:
    """`layer_types`, or `local_layer_ids`. Raises UnusableModel."""
    near = fields.config.get("local_layer_ids", [at for at in range(layers) if (at + 1) % EVERY])
    if not isinstance(near, list):
        raise UnusableModel("config.json: local_layer_ids is not a list of layers")
    kinds = fields.layer_kinds(layers, [NEAR if at in near else ALL for at in range(layers)])
    if set(kinds) - {NEAR, ALL}:
        raise UnusableModel(f"config.json: layer_types has {sorted(set(kinds))}; served are {ALL} and {NEAR}")
    return [kind == NEAR for kind in kinds]


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Those with experts: `mlp_layer_types`, or all from `dense_mlp_idx` on."""
    first = fields.whole("dense_mlp_idx", 0)
    return Fields({**fields.config, "first_k_dense_replace": first}).sparse_layers(layers)


def experts_of(fields: Fields, width: int) -> ExpertsConfig:
    """A token's weights are shares of the sigmoids of those chosen and of the shared ones, which are chosen for every token."""
    shared = fields.count("n_shared_experts", default=2)
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=6) + shared,
        sigmoid=True,
        normalize=True,
        scale=fields.number("route_scale", default=8.0),
    )
    count = fields.count("n_routed_experts", "num_local_experts", default=256)
    return ExpertsConfig(count + shared, width, routing, always=shared, correction=True, long_router=True)


class InklingLoader(Loader):
    """Reads what no other family has, as published or as transformers names it."""

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        self.is_published = checkpoint.has("model.llm.embed.weight")
        super().__init__(config, PUBLISHED if self.is_published else keys, checkpoint, group)
        held = checkpoint.stored.get(f"{self.head}.weight")
        self.further_head_rows = 0 if held is None else max(held.shape[0] - config.vocab_size, 0)

    def layer(self, index: int) -> Layer:
        """One layer. What a scale of its own multiplies the feed-forward layer's output with, its convolution does."""
        made, at = super().layer(index), self.prefix + self.keys.at_layer(index)
        scale = "mlp.gate.global_scale" if self.config.layers[index].experts else "mlp.global_scale"
        scale_1 = self.checkpoint.tensor(at + scale, (1,), dtype=tensors.float32)
        every = [range(self.config.width)]
        made.attention_smoothing = self.smoothing([(f"{at}attn_sconv", self.config.width, every)], index, 1)
        smoothed = self.smoothing([(f"{at}mlp_sconv", self.config.width, every)], index, 2)
        smoothed.weight_WC = smoothed.weight_WC * scale_1
        made.feed_forward_smoothing = smoothed
        return made

    def smoothing(self, parts: list[Part], index: int, place: int) -> Convolution:
        """A convolution to which what it reads is added: its newest weights are larger by 1."""
        choice = self.config.layers[index].smoothing
        assert choice is not None
        below = "" if self.is_published else ".conv1d"
        made = convolution(self, [(name + below, *rest) for name, *rest in parts], choice.kernel)  # type: ignore[misc]
        made.weight_WC[-1] = made.weight_WC[-1] + 1.0
        made.place = place
        return made

    def attention(self, at: str, index: int) -> Attention | LatentAttention:
        """Attention, with what queries say of distances."""
        made, config, choice = super().attention(at, index), self.config, self.config.layers[index]
        assert isinstance(made, Attention) and choice.distances is not None
        at += "attn." if self.is_published else "self_attn."
        rank, heads, size = choice.distances.rank, self.heads_of(index), config.head_dim
        states = self.read(
            at + ("wr_du" if self.is_published else "r_proj"),
            (config.heads_of(index) * rank, config.width),
            rows=scaled([heads], rank),
        )
        profiles = self.checkpoint.tensor(f"{at}rel_logits_proj.proj", (rank, choice.distances.reach))
        made.distances = Distances(Linear(states), profiles)
        total, mine = config.kv_heads_of(index) * size, scaled([self.kv_heads_of(index)], size)
        parts = [(f"{at}{name}_sconv", total, mine) for name in ("k", "v")]
        made.smoothing = self.smoothing(parts, index, 0)
        return made

    def feed_forward(self, at: str) -> FeedForward:
        """A dense layer."""
        if not self.is_published:
            return super().feed_forward(at)
        config, keys, width = self.config, self.keys, self.config.feed_forward
        mine = self.group.even_share(width, "the feed-forward width (intermediate_size)")
        both = self.read(
            at + keys.gate_up, (2 * width, config.width), rows=[range(2 * mine.start, 2 * mine.stop)]
        )
        down = self.row_parallel(at + keys.down, 1, mine, width, config.width, False)
        return FeedForward(Linear(gates_first(both.unsqueeze(0)).squeeze(0)), down, self.activation())

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """This rank's experts, those for every token behind the others."""
        width, inner, mine = self.config.width, choice.width, self.group.share(choice.count)
        chosen = choice.count - choice.always
        few = range(min(mine.start, chosen), min(mine.stop, chosen))
        every = range(max(mine.start, chosen) - chosen, max(mine.stop, chosen) - chosen)

        def stack(name: str, held: range, total: int, *shape: int) -> Tensor:
            return self.checkpoint.tensor(at + name, (total, *shape), ranges([held]))

        if self.is_published:
            ups = [
                gates_first(stack(name, held, total, 2 * inner, width))
                for name, held, total in (
                    ("mlp.experts.w13_weight", few, chosen),
                    ("mlp.shared_experts.shared_w13_weight", every, choice.always),
                )
            ]
            names = "mlp.experts.w2_weight", "mlp.shared_experts.shared_w2_weight"
        else:
            gate, up = (
                stack(f"mlp.shared_experts.{name}_proj", every, choice.always, inner, width)
                for name in ("gate", "up")
            )
            routed = stack("mlp.experts.gate_up_proj", few, chosen, 2 * inner, width)
            ups = [routed, tensors.cat((gate, up), 1)]
            names = "mlp.experts.down_proj", "mlp.shared_experts.down_proj"
        downs = [
            stack(name, held, total, width, inner)
            for name, held, total in zip(names, (few, every), (chosen, choice.always), strict=True)
        ]
        return self.mixture(at, choice, mine.start, tensors.cat(ups), None, tensors.cat(downs), None)

    def correction(self, at: str, choice: ExpertsConfig) -> Tensor:
        """Those for every token are always chosen."""
        assert self.keys.experts is not None
        chosen = choice.count - choice.always
        found = self.checkpoint.tensor(at + self.keys.experts.correction, (chosen,), dtype=tensors.float32)
        return tensors.cat((found, tensors.tensor([LARGE] * choice.always)))


def gates_first(rows_XGE: Tensor) -> Tensor:
    """Rows of gate and up in turn to those of gate, then those of up."""
    order = [*range(0, rows_XGE.shape[1], 2), *range(1, rows_XGE.shape[1], 2)]
    return rows_XGE[:, order]


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, InklingLoader)
