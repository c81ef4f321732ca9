"""An encoder-decoder that the CPU engine runs: one call reads inputs, one makes hidden states of what decoders say. Must not import
torch.
"""

from dataclasses import dataclass

import numpy as np

from penstock.models import cache_format
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.layer_cache import LayerCache
from penstock.models.native import F32, NativeModel, in_tiles
from penstock.models.recording import Recording
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels.cpu_engine import I64


@dataclass(slots=True)
class NativeReading:
    """Inputs that a step's encoders read, in whole: R of them, U tokens."""

    ids_U: I64
    slots_R: I64
    counts_R: I64


@dataclass(slots=True)
class NativeEncoderDecoderStep:
    """What one step reads: inputs, and R rows of decoders. Positions are of sequences: a decoder's part begins behind whole blocks of what
    its encoder reads.
    """

    reading: NativeReading | None
    ids_T: I64
    slots_R: I64
    first_R: I64
    counts_R: I64
    pages: I64  # (1, slots, blocks)
    encoded_S: I64  # of all slots: tokens that its encoder reads


class NativeEncoderDecoder(NativeModel):
    """Runs a recorded encoder-decoder."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        parameters: int,
        recording: Recording,
        instruction_set: str,
        threads: int,
        group: TensorGroup = ALONE,
    ) -> None:
        super().__init__(config, parameters, recording, instruction_set, threads, group)
        self._config = config

    @property
    def config(self) -> EncoderDecoderConfig:
        """Its shape."""
        return self._config

    @property
    def cache_shape(self) -> tuple[int, int]:
        """See NativeModel."""
        return cache_format.held(self.cache_format, (2 * self.config.heads, in_tiles(self.config.head_dim)))

    def views(self) -> list[tuple[int, int]]:
        """See Model."""
        return [(0, layer) for layer in range(self.config.num_layers)]

    def forward(self, step: NativeEncoderDecoderStep, caches: list[LayerCache], given_TE: None = None) -> F32:
        """See NativeModel. All inputs are read before any token is decoded: one row's input may be what another row attends to now."""
        if caches is not self._bound:
            for layer, cache in enumerate(caches):
                self._runs.set_cache(layer, cache.rows_NJD, cache.table, self.cache_format)
            self._bound = caches
        if step.reading is not None:
            reading = step.reading
            self._runs.read(reading.ids_U, reading.slots_R, reading.counts_R, step.pages)
        if len(step.ids_T) == 0:
            return np.zeros((0, self.config.width), np.float32)
        rows = (step.slots_R, step.first_R, step.counts_R)
        self._runs.step(step.ids_T, *rows, step.pages, encoded_S=step.encoded_S)
        return self._runs.rows(0, len(step.ids_T))
