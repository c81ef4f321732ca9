"""RWKV 4: every block is attention by decaying weights of keys and a feed-forward layer, and both read a mixture of each token and the
one before it. A block is two layers here.

transformers 5.23 (rwkv) halves the residual behind every `rescale_every` blocks where it does not train, and the matrices that add to
it as often, for fp16's sake: so does this, in every dtype, since norms have an eps. Its kernels for GPUs are not used.
"""

from dataclasses import replace
from typing import Any

from penstock.layers.linear import Linear, OpenedLinear
from penstock.layers.norm import Norm
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig, NormConfig
from penstock.models.decoder import Layer
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mamba
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import ChannelMix, Recurrent, TimeMix
from penstock.models.recurrent_config import ChannelMixConfig, TimeMixConfig
from penstock.models.recurrent_loader import numbers, scale
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

KEYS = CheckpointKeys(
    embedding="rwkv.embeddings",
    embedding_norm="rwkv.blocks.0.pre_ln",
    layer="rwkv.blocks.{}.",
    norm="rwkv.ln_out",
    head="head",
)
FINAL = NormConfig(1e-5, layer=True, bias=True)  # whatever config.json says of the others


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields({"max_position_embeddings": config.get("context_length", 1024), **config})
    width, blocks = fields.count("hidden_size"), fields.count("num_hidden_layers")
    attention = TimeMixConfig(width, fields.count("attention_hidden_size", default=width))
    read = mamba.without_attention(fields, attention, tied=False)
    forward = ChannelMixConfig(width, fields.count("intermediate_size", default=4 * width))
    layers = [
        LayerConfig(attends=False, recurrent=kind, feeds_forward=False) for kind in (attention, forward)
    ]
    norm = fields.norm("layer_norm_epsilon", 1e-5, layer=True, bias=True)
    every = max(int(fields.number("rescale_every", default=6)), 0)
    return replace(
        read, norm=norm, layers=tuple(layers) * blocks, embedding_norm=True, halved_every=2 * every
    )


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """A block is two layers."""
    blocks = Fields(config).count("num_hidden_layers")
    return replace(KEYS, numbers=tuple(at // 2 for at in range(2 * blocks)))


class RwkvLoader(Loader):
    """Reads both halves of a block. Channels are divided."""

    def norm(self, name: str, width: int, choice: NormConfig | None = None) -> Norm:
        """The last one has an eps of its own."""
        return super().norm(name, width, FINAL if name == self.prefix + self.keys.norm else choice)

    def layer(self, index: int) -> Layer:
        """Half of a block, with its norm."""
        made, at, every = super().layer(index), self.keys.at_layer(index), self.config.halved_every
        made.attention_norm = self.norm(f"{self.prefix}{at}ln{1 + index % 2}", self.config.width)
        if every and (index + 1) % every == 0:
            made.scale_1 = tensors.tensor([0.5], dtype=self.checkpoint.dtype)
        return made

    def recurrent(self, at: str, index: int) -> Recurrent:
        """One rank's channels."""
        config, mixer, every = self.config, self.config.layers[index].recurrent, self.config.halved_every
        width = config.width
        halved = 0.5 ** (index // every) if every else 1.0

        def mixes(*names: str) -> Tensor:
            found = [numbers(self, f"{at}time_mix_{name}", (1, 1, width)).view(width) for name in names]
            return tensors.stack(found)

        def rows(name: str, total: int, mine: range) -> Linear:
            return Linear(self.read(at + name, (total, width), rows=[mine]))

        if isinstance(mixer, TimeMixConfig):
            at += "attention."
            total = mixer.channels
            mine = self.group.even_share(total, "the channels of attention (attention_hidden_size)")
            out = self.row_parallel(at + "output", 1, mine, total, width, False)
            scale(out, halved)
            decay_I = numbers(self, at + "time_decay", (total,), [mine])
            return TimeMix(
                mixes("key", "value", "receptance"),
                rows("key", total, mine),
                rows("value", total, mine),
                rows("receptance", total, mine),
                -decay_I.exp(),
                numbers(self, at + "time_first", (total,), [mine]),
                out,
            )
        assert isinstance(mixer, ChannelMixConfig)
        at += "feed_forward."
        mine = self.group.even_share(mixer.inner, "the feed-forward width (intermediate_size)")
        opened = OpenedLinear(self.row_parallel(at + "value", 1, mine, mixer.inner, width, False).weight_OI)
        scale(opened, halved)
        gates = rows("receptance", width, range(width))
        return ChannelMix(mixes("key", "receptance"), rows("key", mixer.inner, mine), gates, opened)


RECIPE = DecoderRecipe(read_config, keys, RwkvLoader)
