"""MiMo V2 Flash: layers with a window have twice as many key heads, a rotary table of their own, and sinks; values are
shorter than keys, and scaled.
"""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.models.config import DecoderConfig, Window
from penstock.models.decoder import Attention
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields
from penstock.parallel.group import ranges
from penstock_kernels import tensors

KEYS = replace(
    deepseek.KEYS,
    sinks="self_attn.attention_sink_bias",
    # Layers that predict several tokens ahead.
    ignored=(r"(?:.*\.)?mtp\..*",),
)


def in_transformers_names(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers has it. Xiaomi's own says by other names which layers have a window and experts."""
    fields = Fields(config)
    said: dict[str, Any] = {}
    for name, theirs, (no, yes) in (
        ("layer_types", "hybrid_layer_pattern", ("full_attention", "sliding_attention")),
        ("mlp_layer_types", "moe_layer_freq", ("dense", "sparse")),
    ):
        pattern = config.get(theirs)
        if config.get(name) is None and pattern is not None:
            if not isinstance(pattern, list) or set(pattern) - {0, 1}:
                raise UnusableModel(f"config.json: {theirs} is not a list of 0 and 1")
            said[name] = [yes if here else no for here in pattern]
    if config.get("sliding_window_size") is not None:
        said["sliding_window"] = fields.count("sliding_window_size") + 1
    if not config.get("rope_parameters"):
        share = fields.number("partial_rotary_factor", default=0.334)
        bases = {"full_attention": ("rope_theta", 5e6), "sliding_attention": ("swa_rope_theta", 1e4)}
        said["rope_parameters"] = {
            kind: {"rope_theta": fields.number(name, default=base), "partial_rotary_factor": share}
            for kind, (name, base) in bases.items()
        }
    if config.get("rms_norm_eps") is None and config.get("layernorm_epsilon") is not None:
        said["rms_norm_eps"] = config["layernorm_epsilon"]
    return {**config, **said}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    config = in_transformers_names(config)
    fields = Fields({**config, "first_k_dense_replace": config.get("first_k_dense_replace", 1)})
    fields.refuse("attention_bias", False)
    fields.refuse("add_full_attention_sink_bias", False)
    fields.refuse("add_swa_attention_sink_bias", True)
    read = llama.read_config({"head_dim": 192, **config, "rope_parameters": None, "mlp_bias": False})
    for name, served in (("swa_head_dim", read.head_dim), ("swa_num_attention_heads", read.heads)):
        fields.refuse(name, served)
    layers = read.num_layers
    default = ["sliding_attention" if at and (at + 1) % 6 else "full_attention" for at in range(layers)]
    local = [kind == "sliding_attention" for kind in fields.attention_kinds(layers, default)]
    positions = fields.count("max_position_embeddings", default=131072)
    near = fields.rope(read.head_dim, positions, kind="sliding_attention")
    everywhere = fields.rope(read.head_dim, positions, kind="full_attention")
    window = Window(fields.count("sliding_window", default=129))
    near_heads = fields.count("swa_num_key_value_heads", default=2 * read.kv_heads)
    fields_of_experts = Fields({**fields.config, "n_shared_experts": None})
    experts = deepseek.sigmoid_experts(fields_of_experts)
    return replace(
        read,
        max_positions=positions,
        value_scale=fields.number("attention_value_scale", default=1.0),
        layers=tuple(
            replace(
                layer,
                rope=near if is_local else everywhere,
                window=window if is_local else None,
                kv_heads=near_heads if is_local else read.kv_heads,
                experts=experts if has_experts else None,
            )
            for layer, is_local, has_experts in zip(
                read.layers, local, fields.sparse_layers(layers), strict=True
            )
        ),
        value_dim=fields.count("v_head_dim", "swa_v_head_dim", default=128),
    )


class MimoLoader(Loader):
    """Fills values up with zeros to the length of keys, and the columns that read them."""

    def attention(self, at: str, index: int) -> Attention:
        """With sinks, in layers with a window."""
        made = super().attention(at, index)
        assert isinstance(made, Attention)
        if self.config.layers[index].window is not None:
            heads = self.config.heads
            sinks_H = self.checkpoint.tensor(
                at + self.keys.sinks, (heads,), ranges([self.heads]), dtype=tensors.float32
            )
            made.score_modifiers = ops.ScoreModifiers(sinks_H=sinks_H)
        return made

    def qkv(self, at: str, index: int) -> Linear:
        """Queries, keys and values of this rank's heads."""
        config, keys, mine = self.config, self.keys, self.kv_heads_of(index)
        size, short, width = config.head_dim, config.value_dim, config.width
        total = config.kv_heads_of(index)
        parts = [
            (at + name, count * size, [range(heads.start * size, heads.stop * size)])
            for name, count, heads in ((keys.q, config.heads, self.heads), (keys.k, total, mine))
        ]
        rows = [range(mine.start * short, mine.stop * short)]
        values = self.read(at + keys.v, (total * short, width), rows=rows).view(len(mine), short, width)
        filled = tensors.pad(values, (0, 0, 0, size - short)).flatten(0, 1)
        return Linear(tensors.cat((self.stacked(parts, width), filled)))

    def row_parallel(
        self,
        name: str,
        size: int,
        mine: range,
        total: int,
        rows: int,
        bias: bool,
        transposed: bool | None = None,
    ) -> Linear:
        """The matrix behind attention reads values."""
        if not name.endswith(self.keys.out):
            return super().row_parallel(name, size, mine, total, rows, bias, transposed)
        short = self.config.value_dim
        made = super().row_parallel(name, short, mine, total, rows, bias, transposed)
        columns = made.weight_OI.view(rows, len(mine), short)
        made.weight_OI = tensors.pad(columns, (0, size - short)).flatten(1)
        return made


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, MimoLoader)
