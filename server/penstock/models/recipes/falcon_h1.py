"""Falcon-H1: attention and Mamba 2 in every layer beside one another, with a factor at every matrix. The factors are in the
weights once these are read.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Attention, FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2_layers import read_mamba2
from penstock.models.recurrent import Mamba2
from penstock.models.recurrent_config import Factors, Mamba2Config
from penstock.models.recurrent_loader import mamba2, scale, scale_rows

KEYS = replace(
    llama.KEYS,
    norm="model.final_layernorm",
    feed_forward_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config(config)
    channels = fields.count("mamba_d_ssm", default=fields.count("mamba_expand", default=2) * read.width)
    norm = "none"
    if fields.flag("mamba_rms_norm"):
        norm = "gate last" if fields.flag("mamba_norm_before_gate", True) else "gate first"
    into = fields.number("ssm_in_multiplier", default=1.0)
    scales = tuple(into * scale for scale in factors(config, "ssm_multipliers", 5))
    gate, down = factors(config, "mlp_multipliers", 2)
    mixer = read_mamba2(fields, read.width, channels=channels, norm=norm, scales=scales)
    mixer = replace(
        mixer,
        out_bias=fields.flag("projectors_bias"),
        factors=Factors(
            attention_in=fields.number("attention_in_multiplier", default=1.0),
            attention_out=fields.number("attention_out_multiplier", default=1.0),
            key=fields.number("key_multiplier", default=1.0),
            out=fields.number("ssm_out_multiplier", default=1.0),
            gate=gate,
            down=down,
        ),
    )
    if mixer.bias and into != 1.0:
        raise UnusableModel("config.json: mamba_proj_bias with an ssm_in_multiplier is not supported")
    read = replace(
        read,
        norm=fields.norm("rms_norm_eps", 1e-5),
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        logit_scale=fields.number("lm_head_multiplier", default=1.0),
    )
    return read.with_layers(recurrent=[mixer] * read.num_layers)


def factors(config: dict[str, Any], name: str, count: int) -> list[float]:
    """A list of so many numbers, or ones."""
    given = config.get(name)
    if given is None:
        return [1.0] * count
    if (
        not isinstance(given, list)
        or len(given) != count
        or not all(isinstance(x, (int, float)) for x in given)
    ):
        raise UnusableModel(f"config.json: {name} is not a list of {count} numbers")
    return [float(x) for x in given]


class FalconH1Loader(Loader):
    """Multiplies weights with the factors of what reads or follows them."""

    def mixer(self, index: int) -> Mamba2Config:
        """The recurrent part of a layer, which has the factors of all."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, Mamba2Config)
        return mixer

    def attention(self, at: str, index: int) -> Attention:
        """Attention; biases are added behind the factor of what is read, and before that of keys."""
        found, has = super().attention(at, index), self.mixer(index).factors
        assert isinstance(found, Attention)
        found.qkv.weight_OI.mul_(has.attention_in)
        rows = [len(heads) * self.config.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        scale_rows(found.qkv, rows, (1.0, has.key, 1.0))
        scale(found.out, has.attention_out)
        return found

    def recurrent(self, at: str, index: int) -> Mamba2:
        """One rank's heads."""
        mixer = self.mixer(index)
        found = mamba2(self, f"{at}mamba.", mixer)
        scale(found.out, mixer.factors.out)
        return found

    def feed_forward(self, at: str) -> FeedForward:
        """Gate and down have factors."""
        found, has = super().feed_forward(at), self.mixer(0).factors
        half = len(found.up.weight_OI) // 2
        scale_rows(found.up, [half, half], (has.gate, 1.0))
        scale(found.out, has.down)
        return found


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, FalconH1Loader)
