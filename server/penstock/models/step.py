"""What one forward pass reads: tokens, attention metadata and the caches. Made by the engine, followed by the layers.

Letters as in `decoder` and, for encoder-decoders, `encoder_decoder`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import penstock_kernels as ops
from penstock.layers.rope_table import RopeTable
from penstock.models.layer_cache import LayerCache
from penstock_kernels.later import Tensor


@dataclass(slots=True)
class Step:
    """What one forward pass reads, in the order in which the engine put the tokens."""

    ids_T: Tensor  # int64
    positions_T: Tensor  # int64
    ropes: list[tuple[Tensor, Tensor]]  # cos and sin (T, 1, D) of each of the model's tables
    slot_mappings: list[Tensor]  # by table, int64: the cache row (T,) that each token's keys and values go to
    attentions: list[list[ops.AttentionMetadata | None]]  # by the model's window, and table
    states: ops.StateMetadata | None = None  # of a model with recurrent layers
    compressions: Sequence[ops.CompressionMetadata] = ()  # of each of the model's compressions
    # Of every position; where a block of keys begins, a key is rotated by its place.
    rope_tables: Sequence[RopeTable] = ()
    adapted: Sequence[tuple[int, Tensor | None]] = ()  # see AdaptedRows
    # What the last layer with an indexer has chosen, for those that follow it: written on the way through the layers.
    chosen: ops.ChosenKeys | None = None

    def view(self, window: int, cache: LayerCache) -> tuple[Tensor, ops.AttentionMetadata]:
        """Where a layer writes, and how it attends."""
        attention = self.attentions[window][cache.table]
        assert attention is not None, "a window and a table that no layer has"
        return self.slot_mappings[cache.table], attention


@dataclass(slots=True)
class Reading:
    """What encoders read in a step."""

    ids_U: Tensor
    positions_U: Tensor  # in its own input
    slot_mapping_U: Tensor  # the cache row of each
    counts: list[int]  # tokens of each input


@dataclass(slots=True)
class EncoderDecoderStep:
    """What one forward pass reads."""

    reading: Reading | None
    ids_T: Tensor
    positions_T: Tensor  # in the decoder's part: the first is 0
    slot_mapping_T: Tensor
    own: list[ops.Rectangle]  # how the decoder's tokens attend among themselves
    across: list[ops.Rectangle]  # and to what the encoder made
