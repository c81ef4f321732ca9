"""A model that the CPU engine runs: one call for a step's hidden states, one for logits. Made at load where the engine
knows all that the model does; the engine of `penstock.engine` sees a `Model` like any other. Encoder-decoders are
`native_encoder_decoder`'s. In numpy. Must not
import torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PeerLost
from penstock.layers.rope_frequencies import frequencies
from penstock.models import cache_format
from penstock.models.config import DecoderConfig, LatentConfig, Temperature
from penstock.models.layer_cache import LayerCache
from penstock.models.model import ModelConfig, Reference
from penstock.models.recording import Recording
from penstock.parallel.group import ALONE, TensorGroup
from penstock.telemetry import log
from penstock_kernels import tensors
from penstock_kernels.cpu_engine import I64, CpuProgram, Decodes, RankLost
from penstock_kernels.draws import Draws, LogitsSummary, RowMasks
from penstock_kernels.program import (
    GROUPED,
    PAGE_TOKENS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    Array,
    CacheFormat,
    Format,
    HostArray,
    Kind,
    rounded_up,
)
from penstock_kernels.run import CRun, Inbox, Pause, go_on

if TYPE_CHECKING:
    from penstock.models.packed_cache import Entry

F32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class NativeStep:
    """What one step reads: R rows, in the plan's order, and the tables of all slots."""

    ids_T: I64
    slots_R: I64
    places_R: I64  # where the states of the rows' slots are
    first_R: I64  # position of each row's first token
    counts_R: I64
    pages: I64  # (tables, slots, blocks)
    saves_C3: I64  # (row, tokens, place): where states are copied to
    positions_T: I64 | None  # of trees of drafts, as `CpuProgram.step` has it; None: no row is one
    moved_M3: I64
    wanted_R: I64 | None = None  # of how many of a row's last tokens hidden states are read; None: of all


class NativeModel:
    """What the engine asks of a recorded model. See `Model`."""

    reference: Reference | None = None
    entry: "Entry | None" = None
    """Where the packed cache has it, or will have."""
    cache_format = CacheFormat.BF16
    """Of keys and values in its pages: set before anything asks how large they are."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: int,
        recording: Recording,
        instruction_set: str,
        threads: int,
        group: TensorGroup = ALONE,
    ) -> None:
        self.group, self.parameters = group, parameters
        self.instruction_set, self.threads = instruction_set, threads
        self.program = recording.program
        self._recording, self._vocabulary = recording, config.vocab_size
        self._longest = 0
        self._bound: list[LayerCache] | None = None
        self._adapters_S: npt.NDArray[np.int32] | None = None

    @property
    def config(self) -> ModelConfig:
        """Its shape."""
        raise NotImplementedError

    @property
    def cache_shape(self) -> tuple[int, int]:
        """(J, D) of as much as the engine's pages hold for a token, in 16 bits: heads in whole tiles."""
        raise NotImplementedError

    def views(self) -> list[tuple[int, int]]:
        """See Model."""
        raise NotImplementedError

    def forward(self, step: Any, caches: list[LayerCache], given_TE: None = None) -> F32:
        """Hidden states (T, E) in fp32, which the next step overwrites."""
        raise NotImplementedError

    def serve_up_to(self, longest: int) -> None:
        """Makes the program that runs."""
        if longest == self._longest:
            return
        self._give_tables(longest)
        self._runs = CpuProgram(self.program, self.instruction_set, self.threads)
        self._longest, self._bound = longest, None
        if self._adapters_S is not None:
            self._runs.set_adapters(self._adapters_S)

    def follow_adapters(self, of_slots: npt.NDArray[np.int32]) -> None:
        """From now on each slot has the adapter that this says, counted from 1; 0: none."""
        self._adapters_S = of_slots
        if self._longest:
            self._runs.set_adapters(of_slots)

    def _give_tables(self, longest: int) -> None:
        """To operations that read some, which sequences of that length need."""

    @property
    def narrows(self) -> bool:
        """Whether its last layers are computed for the tokens alone whose hidden states somebody reads."""
        return any(operation.kind == Kind.NARROW for operation in self.program.body)

    @property
    def weight_formats(self) -> str:
        """In words, for the log."""
        layers, head = (
            {one.format for one in operations if one.kind in (Kind.LINEAR, Kind.EXPERTS)}
            for operations in (self.program.body, self.program.head)
        )
        said = " and ".join(map(_in_words, sorted(layers)))
        return said if layers == head else f"{said}, head in {' and '.join(map(_in_words, sorted(head)))}"

    def make_batch_invariant(self, rows: int) -> None:
        """It is."""

    def workspace_bytes(self, tokens: int, rows: int, longest: int) -> int:
        """What steps of `tokens` tokens and logits of `rows` rows need beside weights and cache, without the logits."""
        self.serve_up_to(longest)
        tables = [
            table for operation, _ in self._recording.rotations for table in (operation.cos, operation.sin)
        ]
        rotary = sum(
            table.nbytes for table in {id(table): table for table in tables if table is not None}.values()
        )
        shared = 0
        if self.group.size > 1:
            shared = self._runs.shared_bytes(tokens, rows, self.group.size) // self.group.size
        return self._runs.workspace_bytes(tokens, rows, longest) + int(rotary) + shared

    def reserve(self, tokens: int, rows: int, longest: int) -> None:
        """Takes that memory. Raises MemoryError, or PeerLost."""
        self.serve_up_to(longest)
        self._runs.reserve(tokens, rows, longest)
        self._bound = None
        group = self.group
        if group.size == 1:
            return
        from penstock.parallel.exchange import Local

        assert isinstance(group.exchange, Local), "the engine serves no other"
        memory = group.exchange.shared_memory(self._runs.shared_bytes(tokens, rows, group.size))
        self._runs.share(memory, tokens, rows, group.rank, group.exchange.descriptors, self._vocabulary)

    def set_threads(self, threads: int) -> None:
        """Threads that compute from now on."""
        if self._longest:
            self._runs.set_threads(threads)

    def move(self, sources_BM: I64, targets_BM: I64) -> None:
        """Copies what the layers of the last step's caches have of M tokens to other rows, in order: (tables, M)."""
        self._runs.move(sources_BM, targets_BM)

    def logits(self, hidden_SE: Array, out_SV: Array) -> Array:
        """See Model. Of several ranks the first has them."""
        with _named():
            self._runs.head(hidden_SE, out_SV)
        return out_SV

    def decodes(
        self,
        slots_R: I64,
        places_R: I64,
        pages: I64,
        logits_RV: F32,
        draws: Draws | None,
        encoded_S: I64 | None = None,
        awaits_masks: bool = False,
    ) -> Decodes:
        """Steps of these slots behind one that `forward` has made. `run_decodes` runs them. Of several ranks the first draws."""
        return self._runs.decodes(slots_R, pages, logits_RV, draws, places_R, encoded_S, awaits_masks)

    def run_decodes(self, decodes: Decodes, tokens: int, draws: int) -> None:
        """One step of them that feeds so many tokens and draws so many, but for the choice where it awaits masks."""
        with _named():
            decodes.run(tokens, draws)

    def go_on(self, run: CRun, inbox: Inbox, kinds: list[tuple[int, int]]) -> Pause:
        """Steps from their plans to their answers, behind one that `forward` has made: see `run.go_on`."""
        with _named():
            return go_on(run, inbox, self._runs, kinds)

    def choose(self, decodes: Decodes, masks: RowMasks) -> None:
        """The rest of a step that awaited masks."""
        with _named():
            decodes.choose(masks)

    def tell(self, numbers: I64) -> I64:
        """The first rank's numbers, in the memory of everyone's."""
        if self.group.size > 1:
            with _named():
                self._runs.tell(numbers)
        return numbers

    def summarize(self, logits_SV: Array, masks: RowMasks | None = None) -> LogitsSummary:
        """What sampling asks of logits that nothing but masks changes."""
        return self._runs.summarize(logits_SV, masks)

    def draw(self, logits_SV: Array, draws: Draws) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Chooses the tokens of rows that are drawn, or whose logits something but a mask changes."""
        return self._runs.draw(logits_SV, draws)

    def weights(self) -> list[Array]:
        """Every tensor of the program, each once."""
        return self.program.tensors()


class NativeDecoder(NativeModel):
    """Runs a recorded decoder."""

    def __init__(
        self,
        config: DecoderConfig,
        parameters: int,
        recording: Recording,
        instruction_set: str,
        threads: int,
        group: TensorGroup = ALONE,
    ) -> None:
        super().__init__(config, parameters, recording, instruction_set, threads, group)
        self._config = config
        self._views = config.views(range(config.num_layers))

    @property
    def config(self) -> DecoderConfig:
        """Its shape."""
        return self._config

    @property
    def cache_shape(self) -> tuple[int, int]:
        """See NativeModel."""
        config = self.config
        if config.latents:
            shapes = [self._latent_shape(latent) for latent in config.latents]
            indexes = [latent.index.head_dim for latent in config.latents if latent.index is not None]
            rows, index = shapes[0][0], rounded_up(max(indexes, default=0), TILE_INPUTS)
            # Index keys, in bf16, are behind what the largest layer has.
            return rows, max(size for _, size in shapes) + index // rows
        if config.compressions:  # entries are in bf16
            return config.cache_shape(self.group)
        # As many as the layer with the most has.
        shapes = [
            cache_format.held(
                self.cache_format,
                (2 * len(self.group.key_heads(config.kv_heads_of(at))), in_tiles(config.head_dim_of(at))),
            )
            for at, layer in enumerate(config.layers)
            if layer.has_cache
        ]
        rows, size = max(shapes, key=lambda shape: shape[0] * shape[1], default=(0, 0))
        if config.index is None:
            return rows, size
        return rows, size + -(
            -rounded_up(config.index.head_dim, TILE_INPUTS) // rows
        )  # index keys are in bf16

    def _latent_shape(self, latent: LatentConfig) -> tuple[int, int]:
        """Latents are held as keys and as values."""
        key = rounded_up(latent.rank + latent.rope_dim, TILE_INPUTS)
        return cache_format.held(self.cache_format, (2, (key + rounded_up(latent.rank, TILE_OUTPUTS)) // 2))

    def _give_tables(self, longest: int) -> None:
        tables = [self._rotary_table(rope, longest) for rope in range(len(self.config.ropes))]
        for operation, rope in self._recording.rotations:
            operation.cos, operation.sin = tables[rope]
        for operation, heat in self._recording.temperatures:
            operation.positions = self._factors(heat, longest)

    def _rotary_table(self, rope: int, longest: int) -> tuple[F32, F32]:
        """cos and sin (positions, D / 2) in fp32. A row in flight may run one token past the longest sequence."""
        per_position, magnitude = self._frequencies(rope, longest)
        positions = rounded_up(longest + 1, PAGE_TOKENS)
        angles = np.outer(np.arange(positions, dtype=np.float32), per_position)
        return np.cos(angles) * np.float32(magnitude), np.sin(angles) * np.float32(magnitude)

    def _frequencies(self, rope: int, longest: int) -> tuple[F32, float]:
        config, known = self.config.ropes[rope], self._recording.frequencies
        key = rope, longest if config.depends_on_length else 0
        if key not in known:
            known[key] = frequencies(config, longest)
        return known[key]

    def _factors(self, heat: Temperature, longest: int) -> HostArray:
        """Of queries at each position, as `ops.scale_by_position` and `scale_by_logarithm` have them: (positions,) in fp32."""
        positions = np.arange(rounded_up(longest + 1, PAGE_TOKENS), dtype=np.float32)
        if heat.stepped:
            spans = np.floor((positions + np.float32(heat.offset)) / np.float32(heat.span))
            logarithms = np.log1p(spans)
        else:
            logarithms = np.log(
                np.maximum((positions + np.float32(1)) / np.float32(heat.span), np.float32(1))
            )
        factors = logarithms * np.float32(heat.scale) + np.float32(1)
        return tensors.host(tensors.of(factors, tensors.bfloat16).float())

    def views(self) -> list[tuple[int, int]]:
        """See Model."""
        return self._views

    def forward(self, step: NativeStep, caches: list[LayerCache], given_TE: None = None) -> F32:
        """Hidden states (T, E) in fp32, which the next step overwrites. Of tokens that nobody wants they are anything."""
        if caches is not self._bound:
            config = self.config
            of_layers = caches
            if config.shares_keys:
                of_layers = [caches[config.cache_of(at)] for at in range(config.num_layers)]
            for layer, (choice, cache) in enumerate(zip(config.layers, of_layers, strict=True)):
                if choice.attends:
                    self._runs.set_cache(layer, cache.rows_NJD, cache.table, self.cache_format)
                in_order = config.compressed[layer] or choice.ngrams or choice.smoothing
                for number, state_P in enumerate(cache.states):
                    if in_order is None:
                        number = int(state_P.dtype == np.float32)
                    self._runs.set_state(layer, number, state_P)
            self._bound = caches
        ids_T = step.ids_T
        rows = (step.slots_R, step.first_R, step.counts_R)
        with _named():
            self._runs.step(
                ids_T,
                *rows,
                step.pages,
                step.saves_C3,
                step.positions_T,
                step.moved_M3,
                step.places_R,
                wanted_R=step.wanted_R,
            )
        return self._runs.rows(0, len(ids_T))


@contextmanager
def _named() -> Iterator[None]:
    """Gives another rank's end its name."""
    try:
        yield
    except RankLost as error:
        raise PeerLost(str(error)) from error


def in_tiles(head_dim: int) -> int:
    """Half of the numbers that a page holds of a key and its value."""
    return (rounded_up(head_dim, TILE_INPUTS) + rounded_up(head_dim, TILE_OUTPUTS)) // 2


def _in_words(format: Format) -> str:
    """In words."""
    if format in GROUPED:
        with_offsets = " with offsets" if format == Format.OFFSET_32 else ""
        return f"{'fp4' if format == Format.FP4_32 else 'int4'} in groups of {GROUPED[format]}{with_offsets}"
    return format.name.lower()


def tell(message: str, level: str = "INFO") -> None:
    """In the server's log as well: of a worker's lines it has those that say how far a load is."""
    log(level, message, progress=True)
