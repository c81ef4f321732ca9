"""LFM3: LFM2 with a sliding window in some layers that attend, a gate for each head, and norms behind each branch."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.layers.norm import RmsNorm
from penstock.layers.rope import RopeConfig, read_rope
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, OutputGate, Window
from penstock.models.decoder import Attention
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import lfm2, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent_config import ShortConvConfig

KEYS = replace(
    lfm2.KEYS,
    attention_out_norm="post_operator_norm",
    feed_forward_out_norm="post_ffn_norm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    out="self_attn.o_proj",
    output_gate="self_attn.gate_proj",
)
KINDS = ("full_attention", "sliding_attention", "conv")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    defaults = {"max_position_embeddings": 128_000, "head_dim": 128, "tie_word_embeddings": True}
    read = llama.read_config({**defaults, **config, "rope_parameters": None})
    layers = range(read.num_layers)
    default = [KINDS[0] if i % 4 == 2 else KINDS[1] if i % 4 == 0 and i > 0 else KINDS[2] for i in layers]
    kinds = fields.layer_kinds(read.num_layers, default)
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None:
        raise UnusableModel(f"config.json: layer_types names {unknown!r}; supported: {', '.join(KINDS)}")
    mixer = ShortConvConfig(
        read.width, fields.count("conv_L_cache", default=7), bias=fields.flag("conv_bias")
    )
    ropes = {kind: rope_of(config, kind, read) for kind in KINDS[:2]}
    window = Window(fields.count("sliding_window", default=256))
    behind = fields.flag("use_sandwich_norm", True)
    read = replace(
        read,
        norm=fields.norm("norm_eps", 1e-5),
        qk_norm=fields.norm("rms_norm_eps", 1e-5),
        output_gate=OutputGate("sigmoid") if fields.flag("use_attention_gate", True) else None,
        branch_norm=behind,
    )
    return read.with_layers(
        rope=[ropes.get(kind) for kind in kinds],
        window=[window if kind == "sliding_attention" else None for kind in kinds],
        attends=[kind != "conv" for kind in kinds],
        recurrent=[mixer if kind == "conv" else None for kind in kinds],
    )


def rope_of(config: dict[str, Any], kind: str, read: DecoderConfig) -> RopeConfig:
    """The rotary table of a kind of layers. Proportional ones turn the first planes of a whole head: here those are a part by
    themselves, and their base is such that they turn as fast.

    The published LFM3-1.7B calls its half-turned heads "default". Liquid AI's code and NVIDIA's NeMo AutoModel (documentation of
    lfm3.config) read that as proportional, which the model was trained with; transformers 5.23 turns the whole head.
    """
    usual: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
    if kind == "full_attention":
        usual = {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5}
    given = Fields(Fields(config).part("rope_parameters").config).part(kind).config or usual
    fields = Fields(given)
    turned = fields.number("partial_rotary_factor", default=1.0)
    if given.get("rope_type") != "proportional" and turned == 1.0:
        return read_rope({"rope_parameters": given}, read.head_dim, read.max_positions)
    fields.refuse("rope_type", "proportional", "default")
    planes = int(turned * read.head_dim // 2)
    share = 2 * planes / read.head_dim
    theta = fields.number("rope_theta", default=1_000_000.0) ** share
    plain = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}
    return read_rope({"rope_parameters": plain}, read.head_dim, read.max_positions)


class Lfm3Loader(lfm2.ShortConvLoader):
    """Brings the coordinates of a head that are rotated together."""

    def attention(self, at: str, index: int) -> Attention:
        """One rank's heads."""
        made, rope, size = super().attention(at, index), self.config.layers[index].rope, self.config.head_dim
        assert isinstance(made, Attention) and rope is not None
        if rope.head_dim < size:
            planes, half = rope.head_dim // 2, size // 2
            order = [
                *range(planes),
                *range(half, half + planes),
                *range(planes, half),
                *range(half + planes, size),
            ]
            rows = (len(self.heads) + len(self.kv_heads)) * size
            for matrix in (made.qkv.weight_OI, made.qkv.bias_O):
                if matrix is not None:
                    heads = matrix[:rows].view(-1, size, *matrix.shape[1:])
                    matrix[:rows] = heads[:, order].flatten(0, 1)
            for norm in (made.q_norm, made.k_norm):
                assert isinstance(norm, RmsNorm) and norm.weight_E is not None
                norm.weight_E = norm.weight_E[order]
        return made


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Without the norms behind branches where there are none."""
    if Fields(config).flag("use_sandwich_norm", True):
        return KEYS
    return replace(KEYS, attention_out_norm="", feed_forward_out_norm="")


RECIPE = DecoderRecipe(read_config, keys, Lfm3Loader)
