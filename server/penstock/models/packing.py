"""Brings a model's matrices into the CPU engine's tiles: in bf16 where they lie, once the model is loaded; or as whole numbers of
8 or 4 bits (`--quantize`), layer by layer while it is read, so that memory never holds the model in bf16. Those of a checkpoint that is
published in 4 bits become what they were there.

Matrices of experts are one, of all experts' rows, where each expert begins with a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from penstock.layers.linear import Embedding, Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.models.compressed_attention import CompressedAttention
from penstock.models.config import DecoderConfig
from penstock.models.decoder import (
    Attention,
    Beside,
    Ends,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
)
from penstock.models.recurrent import ChannelMix, ShortConv, TimeMix
from penstock_kernels import tensors, tiles
from penstock_kernels.later import Tensor
from penstock_kernels.program import (
    TILE_OUTPUTS,
    Format,
    QuantizedMatrix,
    Rounding,
    quantized_bytes,
    rounded_up,
)
from penstock_kernels.tensors import host

ROWS_AT_ONCE = 4096
# Values of --quantize. Symmetric groups of 32 are whole numbers all through.
FORMATS = {
    "int8": (Format.INT8, Rounding.NOTHING),
    "int4": (Format.INT4, Rounding.NOTHING),
    "int4-zp": (Format.GROUPS_32, Rounding.WITH_ZERO_POINTS),
    "int4-g64": (Format.GROUPS_64, Rounding.SYMMETRIC),
    "int4-g64-zp": (Format.GROUPS_64, Rounding.WITH_ZERO_POINTS),
    "int4-g128": (Format.GROUPS_128, Rounding.SYMMETRIC),
    "int4-g128-zp": (Format.GROUPS_128, Rounding.WITH_ZERO_POINTS),
}


@dataclass(frozen=True)
class Quantizer:
    """How the matrices of a model's layers, and if `head` is set that of its head, are quantized while they are read."""

    in_torch: ClassVar[bool] = False

    format: Format
    head: bool
    instruction_set: str
    threads: int
    rounding: Rounding = Rounding.NOTHING
    published: Format | None = None
    """The groups of a checkpoint of 4 bits: matrices that are of such groups stay what they are, and others are quantized."""
    share: float = 1.0
    """Of the numbers that are of such groups, as far as a rehearsal has to know."""

    def take_layer(self, layer: Layer, config: DecoderConfig, checkpoint: Checkpoint) -> None:
        """Quantizes the matrices of a layer that was just read. Those that choose and open stay as they are: they are small."""
        if layer.attention is not None:
            for linear in matrices_of(layer.attention):
                self._take(linear, checkpoint)
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, Experts):
            self._take_experts(feed_forward, config, checkpoint)
            feed_forward = feed_forward.shared
        if layer.beside is not None:
            self._take_experts(layer.beside.experts, config, checkpoint)
        if feed_forward is not None:
            if config.gated:
                align_halves(feed_forward.up)
            for linear in (feed_forward.up, feed_forward.out):
                self._take(linear, checkpoint)

    def take_matrices(self, linears: list[Linear], halves: Linear | None, checkpoint: Checkpoint) -> None:
        """Quantizes these. `halves`: one of them, whose rows are those of gates, then as many others."""
        if halves is not None:
            align_halves(halves)
        for linear in linears:
            self._take(linear, checkpoint)

    def take_ends(self, ends: Ends, checkpoint: Checkpoint) -> None:
        """Quantizes the head, where that is asked for."""
        assert ends.head is not None and ends.embedding is not None, "asked of a decoder in one piece"
        self.take_head(ends.head, ends.embedding, checkpoint)

    def take_head(self, head: Linear, embedding: Embedding, checkpoint: Checkpoint) -> None:
        """The same. A table that is the head's and the embedding's stays as it is beside it."""
        if self.head:
            self._take(head, checkpoint, is_shared=head.weight_OI is embedding.weight_VE)

    def _take(self, linear: Linear, checkpoint: Checkpoint, *, is_shared: bool = False) -> None:
        linear.quantized = self._quantized(linear.weight_OI, checkpoint)
        if not is_shared:
            checkpoint.bytes_made -= linear.weight_OI.nbytes
            linear.weight_OI = linear.weight_OI.new_empty((0, linear.quantized.columns))

    def _take_experts(self, experts: Experts, config: DecoderConfig, checkpoint: Checkpoint) -> None:
        align_experts(experts, config.gated)
        checkpoint.bytes_made -= experts.up_XGE.nbytes + experts.down_XEF.nbytes
        experts.quantized_up = self._quantized(one_matrix(experts.up_XGE), checkpoint)
        experts.up_XGE = experts.up_XGE.new_empty((0, *experts.up_XGE.shape[1:]))
        experts.quantized_down = self._quantized(one_matrix(experts.down_XEF), checkpoint)
        experts.down_XEF = experts.down_XEF.new_empty((0, *experts.down_XEF.shape[1:]))

    def _quantized(self, matrix_OI: Tensor, checkpoint: Checkpoint) -> QuantizedMatrix:
        rows, columns = matrix_OI.shape
        size = quantized_bytes(self.format, rows, columns)
        if checkpoint.is_rehearsal:
            if self.published is not None:
                size += round(self.share * (quantized_bytes(self.published, rows, columns) - size))
            into = checkpoint.new((size,), tensors.uint8)
            return QuantizedMatrix(self.published or self.format, rows, columns, into, into, into)
        if self.published is not None:
            for found in tiles.group_formats(matrix_OI, self.published, self.instruction_set):
                made = self._regrouped(matrix_OI, found, checkpoint)
                if made is not None:
                    return made
        into = checkpoint.new((size,), tensors.uint8)
        return tiles.quantize(matrix_OI, self.format, self.instruction_set, self.threads, into, self.rounding)

    def _regrouped(self, matrix_OI: Tensor, format: Format, checkpoint: Checkpoint) -> QuantizedMatrix | None:
        into = checkpoint.new((quantized_bytes(format, *matrix_OI.shape),), tensors.uint8)
        made = tiles.in_tiles(matrix_OI, format, self.instruction_set, self.threads, into)
        if made is None:
            checkpoint.bytes_made -= into.nbytes
        return made


def matrices_of(mixer: Mixer) -> Iterator[Linear]:
    """The large ones of what mixes tokens."""
    if isinstance(mixer, Beside):
        for one in (mixer.attention, mixer.recurrent):
            yield from (linear for linear in matrices_of(one) if linear is not mixer.out)
    elif isinstance(mixer, Attention):
        yield mixer.qkv
    elif isinstance(mixer, LatentAttention):
        yield from (mixer.query, mixer.latent)
        if mixer.query_down is not None:
            yield mixer.query_down
    elif isinstance(mixer, ShortConv):
        yield mixer.gates
    elif isinstance(mixer, CompressedAttention):
        yield from (mixer.down, mixer.query)
    elif isinstance(mixer, TimeMix):
        yield from (mixer.keys, mixer.values, mixer.gates)
    elif isinstance(mixer, ChannelMix):
        yield from (mixer.keys, mixer.gates)
    else:
        yield mixer.parts
    yield mixer.out


def packed(matrix_OI: Tensor) -> Tensor:
    """In tiles of bf16: in its own memory where its sides are whole tiles. A rehearsal's has no numbers to be moved."""
    made = tiles.in_whole_tiles(matrix_OI)
    if not tensors.is_rehearsed(made):
        tiles.pack(made)
    return made


def align_halves(up: Linear) -> None:
    """Has gate and up begin with a tile each."""
    up.weight_OI = aligned_halves(up.weight_OI)
    if up.bias_O is not None:
        up.bias_O = aligned_halves(up.bias_O)


def align_experts(experts: Experts, gated: bool) -> None:
    """The same of experts."""
    if not gated:
        return
    experts.up_XGE = aligned_halves(experts.up_XGE, 1)
    if experts.up_bias_XG is not None:
        experts.up_bias_XG = aligned_halves(experts.up_bias_XG, 1)


def aligned_halves(rows: Tensor, dimension: int = 0) -> Tensor:
    """Rows whose halves are filled up with zeros to whole tiles; themselves where they are."""
    half = rows.shape[dimension] // 2
    wanted = rounded_up(half, TILE_OUTPUTS)
    if half == wanted:
        return rows
    shape = list(rows.shape)
    shape[dimension] = 2 * wanted
    made = rows.new_zeros(shape)
    made.narrow(dimension, 0, half).copy_(rows.narrow(dimension, 0, half))
    made.narrow(dimension, wanted, half).copy_(rows.narrow(dimension, half, half))
    return made


def one_matrix(matrices_XOI: Tensor) -> Tensor:
    """The rows of all experts' matrices, each filled up with zeros to whole tiles: (X O, I)."""
    count, rows, columns = matrices_XOI.shape
    wanted = rounded_up(rows, TILE_OUTPUTS)
    if rows != wanted:
        made = matrices_XOI.new_zeros((count, wanted, columns))
        made[:, :rows] = matrices_XOI
        matrices_XOI = made
    return matrices_XOI.reshape(count * wanted, columns)


def product(rows_VI: Tensor, weight_OI: Tensor) -> Tensor:
    """Rows times a matrix: (V, O) in bf16, summed in fp32."""
    made = rows_VI.new_empty((len(rows_VI), len(weight_OI)))
    by_IO = host(weight_OI.float()).T
    for begin in range(0, len(rows_VI), ROWS_AT_ONCE):
        some_VI = host(rows_VI[begin : begin + ROWS_AT_ONCE].float())
        made[begin : begin + ROWS_AT_ONCE] = tensors.of(some_VI @ by_IO, tensors.bfloat16)
    return made


def exact_parts(matrix_OI: Tensor) -> list[Tensor]:
    """Matrices of bf16 that add up to one of fp32, to the last bit: three, or fewer where its numbers are short."""
    if matrix_OI.dtype == tensors.bfloat16:
        return [matrix_OI]
    parts: list[Tensor] = []
    for _ in range(3):
        part = matrix_OI.bfloat16()
        matrix_OI = matrix_OI - part.float()
        if not parts or part.count_nonzero():
            parts.append(part)
    return parts
