"""From a checkpoint to an encoder-decoder: what the families call their tensors, and how they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import UnusableModel
from penstock.layers.linear import Embedding, Linear
from penstock.layers.norm import LayerNorm, Norm, RmsNorm
from penstock.loading.checkpoint import Checkpoint
from penstock.models.encoder_decoder import (
    CrossAttention,
    DecoderLayer,
    EncoderDecoder,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Side,
    by_distance,
    is_wide,
    table_of_sines,
)
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.packing import Quantizer
from penstock.parallel.group import TensorGroup
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.tensors import Dtype

HEAD = "lm_head.weight"
# The logit of a token that is never said: finite, since logits that are not are refused.
NEVER = -1e9


@dataclass(frozen=True)
class SideKeys:
    """Of an encoder or a decoder: modules, to which `.weight` and `.bias` are added. An empty name: there is none."""

    layer: str  # with {} for its number; what follows is named below it
    attention: str  # what q, k, v and out are below
    attention_norm: str
    up: tuple[str, ...]  # the gate first, if there is one
    down: str
    feed_forward_norm: str
    across: str = ""
    across_norm: str = ""
    positions: str = ""
    embedding_norm: str = ""
    final_norm: str = ""
    relative: str = ""


@dataclass(frozen=True)
class EncoderDecoderKeys:
    """What a family calls its tensors."""

    embeddings: tuple[str, ...]  # the one table, under the first of these names that is there
    encoder: SideKeys
    decoder: SideKeys
    qkv: tuple[str, str, str]
    out: str
    prefixes: tuple[str, ...] = ("",)  # the base model's names may be below one of these; the head's never
    own_head: bool = True  # `lm_head` is a table of its own, where it is there
    logits_bias: str = ""
    ignored: tuple[str, ...] = ()


class EncoderDecoderLoader:
    """Reads one model. It is not divided over ranks."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        keys: EncoderDecoderKeys,
        checkpoint: Checkpoint,
        group: TensorGroup,
    ) -> None:
        if group.pipeline is not None:
            raise UnusableModel(
                f"an encoder-decoder is not divided over processes: --pipeline-parallel is {group.pipeline.stages}, "
                "use --pipeline-parallel 1"
            )
        if group.size > 1:
            raise UnusableModel(
                f"an encoder-decoder is not divided over processes: --num-shard is {group.size}, use --num-shard 1"
            )
        self.config, self.keys, self.checkpoint = config, keys, checkpoint
        self.quantizer: Quantizer | None = None
        self.wide = is_wide(config, checkpoint.dtype)
        places = [(prefix, name) for prefix in keys.prefixes for name in keys.embeddings]
        self.prefix, self.embedding = next(
            (place for place in places if checkpoint.has(f"{place[0]}{place[1]}.weight")), places[0]
        )

    def load(self) -> EncoderDecoder:
        """The whole model. Raises UnusableModel where checkpoint and config.json contradict each other."""
        config, keys = self.config, self.keys
        shape = (config.vocab_size, config.width)
        embedding = Embedding(self._tensor(f"{self.prefix}{self.embedding}.weight", shape))
        head = Linear(embedding.weight_VE)
        if self._has_own_head(shape):
            head = Linear(self._tensor(HEAD, shape))
        if self.quantizer is not None:
            self.quantizer.take_head(head, embedding, self.checkpoint)
        bias_V = None
        if keys.logits_bias and self.checkpoint.has(keys.logits_bias):
            bias_V = self._tensor(keys.logits_bias, (1, config.vocab_size), tensors.float32)[0]
        if config.never_said is not None:
            if bias_V is None:
                bias_V = self.checkpoint.new((config.vocab_size,), tensors.float32).zero_()
            bias_V[config.never_said] = NEVER
        model = EncoderDecoder(
            config,
            embedding,
            self._side(keys.encoder, bidirectional=True),
            [self._encoder_layer(index) for index in range(config.encoder_layers)],
            self._side(keys.decoder, bidirectional=False),
            [self._decoder_layer(index) for index in range(config.num_layers)],
            head,
            bias_V,
        )
        copies = [re.escape(name) for name in self._copies(shape)]
        ignored = [*copies, re.escape(HEAD), *keys.ignored]
        self.checkpoint.check_all_used(re.compile("|".join(f"(?:{pattern})" for pattern in ignored)))
        return model

    def _has_own_head(self, shape: tuple[int, ...]) -> bool:
        """Whether the head is a table of its own: where config.json says so, and where it differs from the embedding all the same."""
        embedding = f"{self.prefix}{self.embedding}.weight"
        if not self.checkpoint.has(HEAD):
            return False
        if self.keys.own_head:
            return True
        if self.checkpoint.is_copy(HEAD, embedding, shape):
            return False
        self.checkpoint.tell_of_head(HEAD, embedding)
        return True

    def _copies(self, shape: tuple[int, ...]) -> list[str]:
        """Tensors in which a checkpoint holds the embedding once more. Raises UnusableModel where one holds something else: both sides
        have one table here.
        """
        embedding = f"{self.prefix}{self.embedding}.weight"
        names = [f"{self.prefix}{name}.weight" for name in self.keys.embeddings]
        others = [name for name in names if name != embedding and self.checkpoint.has(name)]
        for name in others:
            if not self.checkpoint.is_copy(name, embedding, shape):
                raise UnusableModel(
                    f"{name} differs from {embedding}: encoder and decoder with embeddings of their own are not served"
                )
        return others

    def _side(self, keys: SideKeys, *, bidirectional: bool) -> Side:
        config = self.config
        positions = bias_HN = None
        if keys.positions:
            shape = (config.max_side_positions + config.position_offset, config.width)
            if config.sines is None:
                positions = Embedding(self._tensor(f"{self.prefix}{keys.positions}.weight", shape))
            else:
                positions = Embedding(self.checkpoint.new(shape).copy_(table_of_sines(*shape, config.sines)))
        if config.relative is not None:
            heads = config.encoder_heads if bidirectional else config.heads
            name = f"{self.prefix}{keys.relative}.weight"
            table_BH = self._tensor(name, (config.relative.buckets, heads))
            bias_HN = by_distance(table_BH, config.relative, bidirectional=bidirectional)

        def norm(name: str, wanted: bool) -> Norm | None:
            return self._norm(self.prefix + name) if wanted else None

        return Side(
            positions=positions,
            embedding_norm=norm(keys.embedding_norm, config.embedding_norm),
            final_norm=norm(keys.final_norm, config.final_norm),
            bias_HN=bias_HN,
        )

    def _encoder_layer(self, index: int) -> EncoderLayer:
        config, keys = self.config, self.keys.encoder
        at = self.prefix + keys.layer.format(index)
        layer = EncoderLayer(
            attention=self._attention(at, keys, config.encoder_heads),
            feed_forward=self._feed_forward(at, keys, config.encoder_feed_forward),
        )
        self._quantize([layer.attention.qkv, layer.attention.out], layer.feed_forward)
        return layer

    def _decoder_layer(self, index: int) -> DecoderLayer:
        config, keys = self.config, self.keys.decoder
        at = self.prefix + keys.layer.format(index)
        inner = config.heads * config.head_dim
        q, k, v = self.keys.qkv
        layer = DecoderLayer(
            attention=self._attention(at, keys, config.heads),
            across=CrossAttention(
                norm=self._norm(at + keys.across_norm),
                q=self._linear(at + keys.across, (q,), inner, config.width),
                kv=self._linear(at + keys.across, (k, v), inner, config.width),
                out=self._linear(at + keys.across, (self.keys.out,), config.width, inner),
            ),
            feed_forward=self._feed_forward(at, keys, config.feed_forward),
        )
        own, across = layer.attention, layer.across
        self._quantize([own.qkv, own.out, across.q, across.kv, across.out], layer.feed_forward)
        return layer

    def _quantize(self, linears: list[Linear], feed_forward: FeedForward) -> None:
        """The matrices of a layer that was just read, where that is asked for."""
        if self.quantizer is None:
            return
        up = feed_forward.up
        matrices = [*linears, up, feed_forward.down]
        self.quantizer.take_matrices(matrices, up if self.config.gated else None, self.checkpoint)

    def _attention(self, at: str, keys: SideKeys, heads: int) -> SelfAttention:
        inner, width = heads * self.config.head_dim, self.config.width
        return SelfAttention(
            norm=self._norm(at + keys.attention_norm),
            qkv=self._linear(at + keys.attention, self.keys.qkv, inner, width),
            out=self._linear(at + keys.attention, (self.keys.out,), width, inner),
        )

    def _feed_forward(self, at: str, keys: SideKeys, inner: int) -> FeedForward:
        width = self.config.width
        return FeedForward(
            norm=self._norm(at + keys.feed_forward_norm),
            up=self._linear(at, keys.up, inner, width),
            down=self._linear(at, (keys.down,), width, inner, tensors.float32 if self.wide else None),
        )

    def _linear(
        self, at: str, parts: tuple[str, ...], rows: int, columns: int, dtype: Dtype | None = None
    ) -> Linear:
        """One matrix of several, each (rows, columns), one below the other."""
        weight = self._stacked([f"{at}{part}.weight" for part in parts], (rows, columns), dtype)
        if not self.config.bias:
            return Linear(weight)
        return Linear(weight, self._stacked([f"{at}{part}.bias" for part in parts], (rows,), dtype))

    def _stacked(self, names: list[str], shape: tuple[int, ...], dtype: Dtype | None) -> Tensor:
        """Tensors of one shape, below one another in one."""
        made = self.checkpoint.new((len(names) * shape[0], *shape[1:]), dtype)
        for name, into in zip(names, tensors.split(made, shape[0]), strict=True):
            self.checkpoint.fill(into, name, shape)
        return made

    def _norm(self, name: str) -> Norm:
        shape, choice = (self.config.width,), self.config.norm
        weight = self._tensor(f"{name}.weight", shape, tensors.float32 if self.wide else None)
        if not choice.layer:
            return RmsNorm(weight, choice.eps)
        return LayerNorm(weight, self._tensor(f"{name}.bias", shape) if choice.bias else None, choice.eps)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: Dtype | None = None) -> Tensor:
        return self.checkpoint.tensor(name, shape, dtype=dtype)
