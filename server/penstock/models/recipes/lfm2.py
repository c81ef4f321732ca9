"""LFM2: most layers are short convolutions between two gates, the others attention with normalised queries and keys."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import ShortConv
from penstock.models.recurrent_config import ShortConvConfig
from penstock.models.recurrent_loader import convolution, linear

KEYS = replace(
    llama.KEYS,
    norm="model.embedding_norm",
    attention_norm="operator_norm",
    feed_forward_norm="ffn_norm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    out="self_attn.out_proj",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = hybrid(config)
    width = fields.count("block_ff_dim", "intermediate_size", default=12288)
    if fields.flag("block_auto_adjust_ff_dim", True):
        width = int(fields.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
        multiple = fields.count("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return replace(read, feed_forward=width)


def hybrid(config: dict[str, Any]) -> DecoderConfig:
    """The decoder, but for how wide its feed-forward layers are."""
    fields = Fields(config)
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    defaults = {"max_position_embeddings": 128_000, "rope_theta": 1_000_000.0, "intermediate_size": 1}
    read = llama.read_config({**defaults, **config, "tie_word_embeddings": tied, "attention_bias": False})
    norm = fields.norm("norm_eps", 1e-5)
    attends = config.get("full_attn_idxs")
    layers = range(read.num_layers)
    default = ["conv" if isinstance(attends, list) and i not in attends else "full_attention" for i in layers]
    kinds = fields.layer_kinds(read.num_layers, default)
    unknown = next((kind for kind in kinds if kind not in ("full_attention", "conv")), None)
    if unknown is not None:
        raise UnusableModel(f"config.json: layer_types names {unknown!r}; supported: full_attention, conv")
    mixer = ShortConvConfig(
        read.width, fields.count("conv_L_cache", default=3), bias=fields.flag("conv_bias")
    )
    read = replace(read, norm=norm, qk_norm=norm)
    return read.with_layers(
        attends=[kind != "conv" for kind in kinds],
        recurrent=[mixer if kind == "conv" else None for kind in kinds],
    )


class ShortConvLoader(Loader):
    """Reads short convolutions, whose channels are divided."""

    def recurrent(self, at: str, index: int) -> ShortConv:
        """One rank's channels."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, ShortConvConfig)
        at, channels = f"{at}conv.", mixer.channels
        mine = self.group.even_share(channels, "the channels of the convolution (hidden_size)")
        rows = [range(part * channels + mine.start, part * channels + mine.stop) for part in range(3)]
        return ShortConv(
            linear(self, [(at + "in_proj", 3 * channels, rows)], mixer.bias),
            convolution(self, [(at + "conv", channels, [mine])], mixer.kernel, mixer.bias),
            self.row_parallel(at + "out_proj", 1, mine, channels, self.config.width, mixer.bias),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, ShortConvLoader)
