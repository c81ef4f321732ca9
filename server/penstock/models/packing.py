"""Brings a decoder's matrices into the CPU engine's tiles: in bf16 where they lie, once the model is loaded; or as whole numbers of
8 or 4 bits (`--quantize`), layer by layer while it is read, so that memory never holds the model in bf16.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.layers.linear import Linear
from penstock.loading.checkpoint import META, Checkpoint
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Attention, Ends, FeedForward, Layer
from penstock_kernels import cpu_engine
from penstock_kernels.program import (
    TILE_OUTPUTS,
    Format,
    QuantizedMatrix,
    in_whole_tiles,
    quantized_bytes,
    rounded_up,
)

FORMATS = {"int8": Format.INT8, "int4": Format.INT4}


@dataclass(frozen=True)
class Quantizer:
    """How the matrices of a model's layers, and if `head` is set that of its head, are quantized while they are read."""

    format: Format
    head: bool
    instruction_set: str
    threads: int

    def take_layer(self, layer: Layer, config: DecoderConfig, checkpoint: Checkpoint) -> None:
        """Quantizes a layer that was just read."""
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(attention, Attention) and isinstance(feed_forward, FeedForward), (
            "the engine serves it"
        )
        if config.gated:
            align_halves(feed_forward.up)
        for linear in (attention.qkv, attention.out, feed_forward.up, feed_forward.out):
            self._take(linear, checkpoint)

    def take_ends(self, ends: Ends, checkpoint: Checkpoint) -> None:
        """Quantizes the head, where that is asked for. A table that is the head's and the embedding's stays as it is beside it."""
        assert ends.head is not None and ends.embedding is not None, "asked of a decoder in one piece"
        if self.head:
            self._take(ends.head, checkpoint, is_shared=ends.head.weight_OI is ends.embedding.weight_VE)

    def _take(self, linear: Linear, checkpoint: Checkpoint, *, is_shared: bool = False) -> None:
        weight_OI = linear.weight_OI
        rows, columns = weight_OI.shape
        into = checkpoint.new((quantized_bytes(self.format, rows, columns),), torch.uint8)
        if checkpoint.device == META:
            linear.quantized = QuantizedMatrix(self.format, rows, columns, into, into, into)
        else:
            linear.quantized = cpu_engine.quantize(
                weight_OI, self.format, self.instruction_set, self.threads, into
            )
        if not is_shared:
            checkpoint.bytes_made -= weight_OI.nbytes
            linear.weight_OI = weight_OI.new_empty((0, columns))


def packed(matrix_OI: Tensor) -> Tensor:
    """In tiles of bf16: in its own memory where its sides are whole tiles."""
    made = in_whole_tiles(matrix_OI)
    cpu_engine.pack(made)
    return made


def align_halves(up: Linear) -> None:
    """Has gate and up begin with a tile each."""
    half = len(up.weight_OI) // 2
    wanted = rounded_up(half, TILE_OUTPUTS)
    if half == wanted:
        return

    def aligned(rows: Tensor) -> Tensor:
        made = rows.new_zeros((2 * wanted, *rows.shape[1:]))
        made[:half], made[wanted : wanted + half] = rows[:half], rows[half:]
        return made

    up.weight_OI = aligned(up.weight_OI)
    if up.bias_O is not None:
        up.bias_O = aligned(up.bias_O)
