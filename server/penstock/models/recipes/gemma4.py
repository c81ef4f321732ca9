"""Gemma 4, the text models: layers with a window have smaller heads than those without; the last ones may read keys and
values of earlier ones; the small models have per-layer embeddings, and one has experts beside every dense layer.
"""

import math
import re
from dataclasses import replace
from typing import Any, NamedTuple

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Embedding, Linear
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, LayerConfig, PerLayerConfig, Window
from penstock.models.decoder import Ends, ExpertsBeside, Layer
from penstock.models.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma3
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.stacked_experts import StackedExpertsLoader
from penstock_kernels import tensors

KEYS = replace(
    gemma3.KEYS,
    experts=ExpertKeys(router="router.proj", up="experts.gate_up_proj", down="experts.down_proj"),
)

# Of transformers' Gemma4TextConfig.
ROPES: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Layers that read the keys of others may have matrices for their own, which are not used."""
    fields = Fields(config)
    layers, shared = fields.count("num_hidden_layers", default=30), fields.whole("num_kv_shared_layers", 0)
    which = "|".join(map(str, range(layers - shared, layers)))
    unused = (rf"(?:.*\.)?layers\.(?:{which})\.self_attn\.[kv]_(?:proj|norm)\..*",) if shared else ()
    return replace(KEYS, ignored=unused)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    # Of images alone, which are not read.
    fields.refuse("use_bidirectional_attention", "vision")
    fields.refuse("attention_bias", False)
    layers = fields.count("num_hidden_layers", default=30)
    default = ["sliding_attention" if (at + 1) % 6 else "full_attention" for at in range(layers)]
    kinds = fields.attention_kinds(layers, default)
    if kinds[-1] != "full_attention":
        raise UnusableModel(
            f"config.json: layer_types ends with {kinds[-1]!r}; the last layer attends to all tokens"
        )
    heads = fields.count("num_attention_heads", default=8)
    size, kv_heads = fields.count("head_dim", default=256), fields.count("num_key_value_heads", default=4)
    positions = fields.count("max_position_embeddings", default=131072)
    ropes = {"rope_parameters": {**ROPES, **fields.part("rope_parameters").config}}
    width = fields.count("intermediate_size", default=9216)
    same = fields.flag("attention_k_eq_v")
    unified = config.get("model_type") == "gemma4_unified_text"  # 12B, whose encoders are a part of it
    window = Window(fields.count("sliding_window", default=1024 if unified else 512))
    attention = [
        LayerConfig(
            rope=Fields(ropes).rope(own.size, positions, kind=kind),
            window=window if kind == "sliding_attention" else None,
            head_dim=own.size,
            kv_heads=own.kv_heads,
            values_are_keys=same and kind == "full_attention",
        )
        for kind, own in zip(kinds, heads_of_layers(fields, kinds, heads, Heads(size, kv_heads)), strict=True)
    ]
    shared = donors(kinds, fields.whole("num_kv_shared_layers", 0))
    doubled = 2 if fields.flag("use_double_wide_mlp") else 1
    experts = experts_of(fields) if fields.flag("enable_moe_block") else None
    per_layer = fields.whole("hidden_size_per_layer_input", 0 if unified else 256)
    norm = fields.norm("rms_norm_eps", 1e-6)
    hidden = fields.count("hidden_size", default=2304)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size", default=262144),
        width=hidden,
        feed_forward=width,
        layers=tuple(
            replace(
                layer,
                experts=experts,
                keys_of=donor,
                feed_forward=width * (1 if donor is None else doubled),
            )
            for layer, donor in zip(attention, shared, strict=True)
        ),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        max_positions=positions,
        norm=norm,
        activation=fields.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
        scale=1.0,
        qk_norm=norm,
        value_norm=replace(norm, weight=False),
        branch_norm=True,
        experts_beside=experts is not None,
        layer_scales=True,
        per_layer=PerLayerConfig(fields.count("vocab_size_per_layer_input", default=262144), per_layer)
        if per_layer
        else None,
        embedding_scale=math.sqrt(hidden),
        tied_head=fields.flag("tie_word_embeddings", True),
        logit_softcap=fields.number("final_logit_softcapping", default=0.0),
    )


class Heads(NamedTuple):
    """The size of a layer's heads, and how many of them are of keys."""

    size: int
    kv_heads: int


def heads_of_layers(fields: Fields, kinds: list[str], heads: int, near: Heads) -> list[Heads]:
    """Those of each layer: as published, where layers without a window have others, or as transformers saves them (`per_layer_config`).
    Raises UnusableModel.
    """
    if fields.config.get("per_layer_config") is None:
        same = fields.flag("attention_k_eq_v")
        kv_heads = (
            fields.count("num_global_key_value_heads", default=near.kv_heads) if same else near.kv_heads
        )
        far = Heads(fields.count("global_head_dim", default=512), kv_heads)
        found = [near if kind == "sliding_attention" else far for kind in kinds]
    else:
        of_layers = fields.of_layers(len(kinds), "head_dim", "num_key_value_heads")
        found = [
            Heads(
                layer.count("head_dim", default=near.size),
                layer.count("num_key_value_heads", default=near.kv_heads),
            )
            for layer in map(Fields, of_layers)
        ]
    for kind, own in zip(kinds, found, strict=True):
        if heads % own.kv_heads:
            name = "num_key_value_heads" if kind == "sliding_attention" else "num_global_key_value_heads"
            raise UnusableModel(
                f"config.json: num_attention_heads {heads} is no multiple of {name} {own.kv_heads}"
            )
    return found


def donors(kinds: list[str], shared: int) -> list[int | None]:
    """Of each layer the one whose keys and values it reads, the last before them of its kind; None: its own."""
    first = len(kinds) - shared
    own = kinds[: max(first, 0)]
    if set(kinds) - set(own):
        raise UnusableModel(
            f"config.json: num_kv_shared_layers is {shared}, which leaves no layer with keys of its own for each kind "
            f"of the {len(kinds)} layers"
        )
    last = {kind: at for at, kind in enumerate(own)}
    return [None if at < first else last[kind] for at, kind in enumerate(kinds)]


def experts_of(fields: Fields) -> ExpertsConfig:
    """Those beside every dense layer."""
    routing = ops.Routing(fields.count("top_k_experts"), normalize=True)
    return ExpertsConfig(
        fields.count("num_experts"), fields.count("moe_intermediate_size"), routing, long_router=True
    )


class Gemma4Loader(StackedExpertsLoader):
    """Reads what the layers and ends of other families do not have."""

    def ends(self) -> Ends:
        """With per-layer embeddings, whose table is divided as that of the vocabulary is."""
        ends, config = super().ends(), self.config
        choice, layers = config.per_layer, len(config.layers)
        if choice is None or ends.embedding is None:
            return ends
        part = -(-choice.rows // self.group.size)
        rows = range(min(self.group.rank * part, choice.rows), min((self.group.rank + 1) * part, choice.rows))
        wide = layers * choice.width
        table = self.read(
            self.prefix + stem("embed_tokens_per_layer", self), (choice.rows, wide), rows=[rows]
        )
        ends.per_layer = PerLayerEmbedding(
            Embedding(self.filled(table, part), rows, self.group),
            choice.rows,
            Linear(self.read(self.prefix + stem("per_layer_model_projection", self), (wide, config.width))),
            self.norm(self.prefix + stem("per_layer_projection_norm", self), choice.width),
            layers,
        )
        return ends

    def of_other_stages(self, mine: range) -> list[str]:
        """With the per-layer embeddings, which the first stage hands on."""
        if self.config.per_layer is None:
            return super().of_other_stages(mine)
        names = ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
        others = [re.escape(f"{self.prefix}{stem(name, self)}.") + ".*" for name in names]
        return super().of_other_stages(mine) + others

    def layer(self, index: int) -> Layer:
        """One layer."""
        config, keys = self.config, self.keys
        at = self.prefix + keys.layer.format(index)
        choice = config.layers[index]

        def norm(name: str) -> Any:
            return self.norm(at + name, config.width)

        layer = Layer(
            attention=self.attention(at, index),
            feed_forward=self.dense(at, choice.feed_forward, keys.gate, keys.up, "", keys.down),
            attention_norm=norm(keys.attention_norm),
            feed_forward_norm=norm(keys.feed_forward_norm),
            attention_out_norm=norm(keys.attention_out_norm),
            feed_forward_out_norm=norm(keys.feed_forward_out_norm),
        )
        if choice.experts is not None:
            layer.beside = self.beside(at, choice.experts)
        if config.per_layer is not None:
            layer.per_layer = self.per_layer(at)
        if config.layer_scales:
            layer.scale_1 = self.checkpoint.tensor(f"{at}layer_scalar", (1,))
        return layer

    def per_layer(self, at: str) -> PerLayerInput:
        """The same on every rank."""
        config = self.config
        assert config.per_layer is not None
        size = config.per_layer.width
        return PerLayerInput(
            Linear(self.read(f"{at}per_layer_input_gate", (size, config.width))),
            Linear(self.read(f"{at}per_layer_projection", (config.width, size))),
            self.norm(f"{at}post_per_layer_input_norm", config.width),
            ops.ACTIVATIONS[config.activation],
        )

    def beside(self, at: str, choice: ExpertsConfig) -> ExpertsBeside:
        """Experts beside the dense layer. The factors of what their router reads are brought into its matrix."""
        config = self.config
        experts = self.experts(at, choice)
        scale_E = self.checkpoint.tensor(f"{at}router.scale", (config.width,), dtype=tensors.float32)
        experts.router.weight_OI *= scale_E * config.width**-0.5
        return ExpertsBeside(
            experts,
            self.checkpoint.tensor(f"{at}router.per_expert_scale", (choice.count,), dtype=tensors.float32),
            config.norm.eps,
            self.norm(f"{at}pre_feedforward_layernorm_2", config.width),
            self.norm(f"{at}post_feedforward_layernorm_1", config.width),
            self.norm(f"{at}post_feedforward_layernorm_2", config.width),
        )


def stem(name: str, loader: Gemma4Loader) -> str:
    """Beside the embedding of the vocabulary."""
    return loader.keys.embedding.removesuffix("embed_tokens") + name


RECIPE = DecoderRecipe(read_config, keys, Gemma4Loader)
