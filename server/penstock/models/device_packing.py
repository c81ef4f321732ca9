"""Quantizes a decoder's matrices for a GPU (`--quantize`), layer by layer while it is read, and keeps those of a checkpoint that is
published in 4 bits what they are: neither the host nor the GPU ever has the whole model in bf16.

Experts stay as they are read, and so do matrices whose inputs are no whole groups. What `packing` does for the CPU engine.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.layers.linear import Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Ends, Experts, Layer
from penstock.models.packing import matrices_of
from penstock_kernels import packed_matrix, quantized, tiles
from penstock_kernels.packed_matrix import PackedMatrix
from penstock_kernels.program import GROUPED, TILE_OUTPUTS, Format, QuantizedMatrix, rounded_up
from penstock_kernels.tensors import host

# Values of --quantize: bits, inputs of a group, and whether it has a zero point.
FORMATS = {
    "int8": (8, 0, False),
    "int4": (4, 32, False),
    "int4-zp": (4, 32, True),
    "int4-g64": (4, 64, False),
    "int4-g64-zp": (4, 64, True),
    "int4-g128": (4, 128, False),
    "int4-g128-zp": (4, 128, True),
}
TILE_INPUTS = 128  # of the engine's tiles of 4 bits
# Formats of groups whose numbers have no whole zero point.
NOT_ON_GPUS = (Format.FP4_32, Format.OFFSET_32)
FROM_ZERO = 0x1F  # the bits of a group's word that are its zero point


@dataclass(frozen=True)
class Published:
    """A checkpoint of 4 bits, and what finds its codes again in the numbers that they stand for: the CPU engine's loader."""

    format: Format
    instruction_set: str
    threads: int


@dataclass(frozen=True)
class DeviceQuantizer:
    """How the matrices of a model's layers, and if `head` is set that of its head, are held on `device` (torch's)."""

    in_torch: ClassVar[bool] = True

    device: Any
    bits: int
    group: int
    with_zeros: bool
    head: bool = False
    published: Published | None = None
    """Matrices that are of such groups stay so, and others stay in bf16: nothing is rounded."""

    @property
    def in_words(self) -> str:
        """For the log."""
        if self.published is not None:
            return f"layers in 4 bits and groups of {self.group}, as they are published"
        name = next(name for name, how in FORMATS.items() if how == (self.bits, self.group, self.with_zeros))
        return f"layers in {name}, head in {name if self.head else 'bf16'}"

    def take_layer(self, layer: Layer, config: DecoderConfig, checkpoint: Checkpoint) -> None:
        """Takes the matrices of a layer that was just read, and brings it to the device."""
        linears = [] if layer.attention is None else list(matrices_of(layer.attention))
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, Experts):
            feed_forward = feed_forward.shared
        if feed_forward is not None:
            linears += [feed_forward.up, feed_forward.out]
        for linear in linears:
            self._take(linear, checkpoint)
        if not checkpoint.is_rehearsal:
            layer.to_torch(self.device)

    def take_ends(self, ends: Ends, checkpoint: Checkpoint) -> None:
        """Quantizes the head, where that is asked for. A table that is the head's and the embedding's stays as it is beside it."""
        if self.head and ends.head is not None:
            is_shared = ends.embedding is not None and ends.head.weight_OI is ends.embedding.weight_VE
            self._take(ends.head, checkpoint, is_shared=is_shared)

    def _take(self, linear: Linear, checkpoint: Checkpoint, *, is_shared: bool = False) -> None:
        outputs, inputs = linear.weight_OI.shape
        if inputs % max(packed_matrix.chunk(self.bits), self.group):
            return
        if checkpoint.is_rehearsal:
            checkpoint.bytes_made += packed_matrix.packed_bytes(
                outputs, inputs, self.bits, self.group, self.with_zeros
            )
        elif self.published is None:
            weight_OI = linear.weight_OI
            linear.to_torch(self.device)
            linear.packed = quantized.quantized(
                linear.weight_OI, self.bits, self.group, with_zeros=self.with_zeros
            )
            if is_shared:
                linear.weight_OI = weight_OI
        else:
            linear.packed = self._as_published(linear, self.published)
            if linear.packed is None:
                return
        if not is_shared:
            checkpoint.bytes_made -= linear.weight_OI.nbytes
            linear.weight_OI = linear.weight_OI.new_empty((0, inputs))

    def _as_published(self, linear: Linear, published: Published) -> PackedMatrix | None:
        matrix_OI = linear.weight_OI
        for format in tiles.group_formats(matrix_OI, published.format, published.instruction_set):
            if format in NOT_ON_GPUS:
                continue
            found = tiles.in_tiles(matrix_OI, format, published.instruction_set, published.threads)
            if found is not None:
                return on_device(found, self.device)
        return None


def on_device(matrix: QuantizedMatrix, device: Any) -> PackedMatrix:
    """A matrix of groups in the engine's tiles (csrc/cpu/penstock_cpu.h), as a GPU has it."""
    import torch

    group = GROUPED[matrix.format]
    panels = rounded_up(matrix.rows, TILE_OUTPUTS) // TILE_OUTPUTS
    across = -(-matrix.columns // TILE_INPUTS)
    words = TILE_INPUTS // group * 64
    tiles_PAB = host(matrix.tiles).reshape(panels, across, words + TILE_OUTPUTS * TILE_INPUTS // 2)
    of_groups = np.ascontiguousarray(tiles_PAB[..., :words]).view(np.uint32)
    of_groups = of_groups.reshape(panels, across, TILE_INPUTS // group, TILE_OUTPUTS)
    by_output = of_groups.transpose(0, 3, 1, 2).reshape(panels * TILE_OUTPUTS, -1)
    by_output = by_output[: matrix.rows, : matrix.columns // group]
    zeros_OG = (by_output & FROM_ZERO).astype(np.uint8)
    scales_OG = (by_output & ~np.uint32(FROM_ZERO)).view(np.float32)
    # [p][n][i]: input 4 p + i in the lower half of a byte, 64 + 4 p + i in the upper one.
    pairs = tiles_PAB[..., words:].reshape(panels, across, 16, TILE_OUTPUTS, 4)
    codes = np.stack((pairs & 15, pairs >> 4), 2).transpose(0, 4, 1, 2, 3, 5)
    codes_OI = codes.reshape(panels * TILE_OUTPUTS, -1)[: matrix.rows, : matrix.columns]
    made = (
        torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (codes_OI, scales_OG, zeros_OG)
    )
    codes_, scales, zeros = made
    is_symmetric = bool((zeros == packed_matrix.SYMMETRIC_ZERO).all())
    return packed_matrix.packed(codes_, scales.bfloat16(), None if is_symmetric else zeros, 4)
