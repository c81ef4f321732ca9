"""From an encoder-decoder to a program that the CPU engine runs: an encoder beside body and head. `recorder` does it for decoders.

Follows `EncoderDecoder.forward` and `logits`. Layers of the encoder attend over pages that the decoder's first layer will have: nothing else
needs those while an input is read, and what they are for is written behind the last layer. Letters as in `encoder_decoder`.
"""

from typing import Any

import numpy as np

from penstock.layers.linear import Embedding, Linear
from penstock.layers.norm import Norm
from penstock.models.encoder_decoder import (
    CrossAttention,
    EncoderDecoder,
    FeedForward,
    SelfAttention,
    Side,
)
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.packing import align_halves, packed
from penstock.models.program_writer import ACTIVATIONS, ProgramWriter, fp32
from penstock.models.recorder import LARGEST_HEAD
from penstock.models.recording import Recording, in_numpy
from penstock.parallel.group import ALONE
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import TILE_OUTPUTS, Epilogue, Kind, Layout, Sees, Values, rounded_up
from penstock_kernels.tensors import host

LANES = 16


def unknown_choice(config: EncoderDecoderConfig) -> str | None:
    """A choice of the family that the engine does not know, in words; None: it can be recorded."""
    checks = (
        (config.activation not in ACTIVATIONS, f"the activation {config.activation}"),
        (config.head_dim > LARGEST_HEAD or config.head_dim % 2 == 1, f"heads of {config.head_dim}"),
        (config.encoder_heads != config.heads, "other heads of the encoder than of the decoder"),
    )
    return next((what for is_there, what in checks if is_there), None)


def record(model: EncoderDecoder) -> Recording:
    """Its program, with tensors in numpy. Packs its weights."""
    return in_numpy(_Recorder(model).record())


class _Recorder:
    def __init__(self, model: EncoderDecoder) -> None:
        self.model, self.config = model, model.config
        is_quantized = any(layer.across.out.quantized is not None for layer in model.layers)
        self.writer = ProgramWriter(model.config.width, is_quantized, ALONE)
        self.x, self.normed = self.writer.x, self.writer.normed
        # Every layer of either side has the same.
        self.inner = self.config.heads * self.config.head_dim
        self.queries = self.writer.buffer("queries", Layout.QUERIES, self.inner)
        self.heads = {
            "heads": self.config.heads,
            "kv_heads": self.config.heads,
            "head_dim": self.config.head_dim,
        }

    def record(self) -> Recording:
        model, made = self.model, self.writer.made
        self.table_VE = packed(model.embedding.weight_VE)
        is_tied = model.head.weight_OI is model.embedding.weight_VE
        model.embedding.weight_VE = self.table_VE
        if is_tied:
            model.head.weight_OI = self.table_VE
        elif model.head.quantized is None:
            model.head.weight_OI = packed(model.head.weight_OI)
        self.writer.operations = made.program.encoder
        self._read()
        self.writer.operations = made.program.body
        self._decode()
        self.writer.operations = made.program.head
        self._head()
        return made

    def _read(self) -> None:
        """What the encoder does, and what the decoder's layers attend to of that."""
        encoder, config = self.model.encoder, self.config
        relative = config.relative
        biases = _biases(encoder.bias_HN, 0 if relative is None else relative.furthest)
        self._embed(encoder, norm_first=False)
        for layer in self.model.encoder_layers:
            self._among(0, layer.attention, Sees.ROW, biases)
            self._feed_forward(layer.feed_forward)
        self.writer.norm(self.x, self.normed, encoder.final_norm)
        kv = self.writer.buffer("keys and values", Layout.F32, 2 * self.inner)
        for index, decoding in enumerate(self.model.layers):
            self.writer.linear(self.normed, kv, decoding.across.kv)
            self.writer.add(Kind.WRITE_KV, kv, self.queries, layer=index, values=Values.ALONE, **self.heads)

    def _decode(self) -> None:
        decoder = self.model.decoder
        furthest = 0 if decoder.bias_HN is None else decoder.bias_HN.shape[1] - 1
        biases = _biases(decoder.bias_HN, furthest, is_before=True)
        self._embed(decoder, norm_first=self.config.normed_before_positions)
        for index, layer in enumerate(self.model.layers):
            self._among(index, layer.attention, Sees.BEFORE, biases)
            self._across(index, layer.across)
            self._feed_forward(layer.feed_forward)

    def _embed(self, side: Side, *, norm_first: bool) -> None:
        config, writer = self.config, self.writer
        norm_first = norm_first and side.embedding_norm is not None
        positions = None if side.positions is None else fp32(side.positions.weight_VE)
        writer.add(
            Kind.EMBED,
            -1,
            self.x,
            columns=config.width,
            scale=config.embedding_scale,
            weight=self.table_VE,
            positions=None if norm_first else positions,
            offset=0 if norm_first else config.position_offset,
        )
        if norm_first and positions is not None:
            writer.norm(self.x, self.x, side.embedding_norm)
            # Positions alone: every token has the one row of a table, of zeros.
            alone = writer.buffer("positions", Layout.F32, config.width)
            zeros = Embedding(packed(tensors.zeros(TILE_OUTPUTS, config.width, dtype=tensors.bfloat16)))
            writer.add(
                Kind.EMBED,
                -1,
                alone,
                columns=config.width,
                rows=1,
                weight=zeros.weight_VE,
                positions=positions,
                offset=config.position_offset,
            )
            writer.norm(alone, self.x, None, accumulate=True)
        elif side.embedding_norm is not None:
            writer.norm(self.x, self.x, side.embedding_norm)

    def _input(self, norm: Norm) -> None:
        """What a branch reads."""
        self.writer.norm(self.x, self.normed, norm if self.config.pre_norm else None)

    def _add(self, source: int, out: Linear, norm: Norm) -> None:
        """The residual with what a branch gives."""
        self.writer.linear(source, self.x, out, epilogue=Epilogue.ADD)
        if not self.config.pre_norm:
            self.writer.norm(self.x, self.x, norm)

    def _attend(self, index: int, out: Linear, norm: Norm, **choices: Any) -> None:
        attended = self.writer.buffer("attended", Layout.BF16, self.inner)
        choices |= {"layer": index, "scale": self.model.scale, **self.heads}
        self.writer.add(Kind.ATTENTION, self.queries, attended, **choices)
        self._add(self.writer.readable(attended), out, norm)

    def _among(self, index: int, attention: SelfAttention, sees: Sees, biases: dict[str, Any]) -> None:
        """Attention of a side's tokens among themselves, over the pages of the decoder's layer `index`."""
        self._input(attention.norm)
        qkv = self.writer.buffer("qkv", Layout.F32, 3 * self.inner)
        self.writer.linear(self.normed, qkv, attention.qkv)
        self.writer.add(Kind.WRITE_KV, qkv, self.queries, layer=index, **self.heads)
        self._attend(index, attention.out, attention.norm, sees=sees, **biases)

    def _across(self, index: int, across: CrossAttention) -> None:
        """Attention to what the encoder has read."""
        self._input(across.norm)
        asked = self.writer.buffer("asked", Layout.F32, self.inner)
        self.writer.linear(self.normed, asked, across.q)
        self.writer.add(Kind.WRITE_KV, asked, self.queries, layer=index, values=Values.NONE, **self.heads)
        self._attend(index, across.out, across.norm, sees=Sees.READ)

    def _feed_forward(self, layer: FeedForward) -> None:
        gated, width = self.config.gated, layer.down.inputs
        self._input(layer.norm)
        if gated:
            if layer.up.quantized is None:
                align_halves(layer.up)
            width = rounded_up(width, TILE_OUTPUTS)
        hidden = self.writer.buffer("hidden", Layout.BF16, width)
        epilogue = Epilogue.GATE if gated else Epilogue.ACTIVATE
        activation = ACTIVATIONS[self.config.activation]
        self.writer.linear(self.normed, hidden, layer.up, epilogue=epilogue, activation=activation)
        self._add(self.writer.readable(hidden), layer.down, layer.norm)

    def _head(self) -> None:
        config, model, writer = self.config, self.model, self.writer
        assert config.hidden_scale == 1 or model.logits_bias_V is None, "no family has both"
        chosen = writer.buffer("chosen", Layout.EXTERNAL, config.width)
        logits = writer.buffer("logits", Layout.EXTERNAL, config.vocab_size)
        layout = Layout.BF16 if model.head.quantized is None else Layout.BYTES
        normed = writer.buffer("chosen normed", layout, config.width)
        writer.norm(chosen, normed, model.decoder.final_norm)
        model.head.bias_O = model.logits_bias_V
        writer.linear(normed, logits, model.head, scale=config.hidden_scale, is_packed=True)


def _biases(bias_HN: Tensor | None, no_distance: int, *, is_before: bool = False) -> dict[str, Any]:
    """What attention adds to scores: of a key at its query's place entry `no_distance`, and of each one further behind the next. `is_before`:
    the model has them by the distance before the query.
    """
    if bias_HN is None:
        return {}
    numbers = host(bias_HN.float())
    numbers = numbers[:, ::-1] if is_before else numbers
    repeated = np.pad(numbers, ((0, 0), (LANES, LANES)), mode="edge")
    made = tensors.of(np.ascontiguousarray(repeated), tensors.float32)
    return {"positions": made, "columns": bias_HN.shape[1], "offset": no_distance}
