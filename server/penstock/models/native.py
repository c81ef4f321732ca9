"""A decoder that the CPU engine runs: one call for a step's hidden states, one for logits. Made at load where the engine
knows all that the model does; the engine of `penstock.engine` sees a `Model` like any other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.rope import frequencies
from penstock.models.config import DecoderConfig, Temperature
from penstock.models.model import ModelConfig, Reference
from penstock.models.packing import FORMATS, Quantizer
from penstock.models.program_writer import Recording
from penstock.models.recorder import unknown_choice
from penstock.models.step import LayerCache
from penstock.parallel.group import TensorGroup
from penstock.telemetry import log
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import I64, CpuProgram, NoCpuEngine, WrongInstructionSet
from penstock_kernels.program import (
    MOST_BYTE_INPUTS,
    PAGE_TOKENS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    Kind,
    rounded_up,
)
from penstock_kernels.sampling import Draws, LogitsSummary, RowMasks


@dataclass(slots=True)
class NativeStep:
    """What one step reads: R rows, in the plan's order, and the tables of all slots."""

    ids_T: Tensor  # int64
    slots_R: I64
    first_R: I64  # position of each row's first token
    counts_R: I64
    pages: I64  # (tables, slots, blocks)
    saves_C3: I64  # (row, tokens, place): where states are copied to
    positions_T: I64 | None  # of trees of drafts, as `CpuProgram.step` has it; None: no row is one
    moved_M3: I64


class NativeDecoder:
    """Runs a recorded decoder. See `Model`."""

    reference: Reference | None = None

    def __init__(
        self,
        config: DecoderConfig,
        parameters: int,
        recording: Recording,
        instruction_set: str,
        threads: int,
    ) -> None:
        self.config = config
        self.parameters = parameters
        self.instruction_set, self.threads = instruction_set, threads
        self._recording = recording
        self.program = recording.program
        self._views = config.views(range(config.num_layers))
        self._longest = 0
        self._bound: list[LayerCache] | None = None

    @property
    def weight_formats(self) -> str:
        """In words, for the log."""
        layers, head = (
            {one.format for one in operations if one.kind in (Kind.LINEAR, Kind.EXPERTS)}
            for operations in (self.program.body, self.program.head)
        )
        said = " and ".join(one.name.lower() for one in sorted(layers))
        return (
            said
            if layers == head
            else f"{said}, head in {' and '.join(one.name.lower() for one in sorted(head))}"
        )

    @property
    def cache_shape(self) -> tuple[int, int]:
        """(J, D) of as many numbers as the engine's pages hold for a token: heads in whole tiles."""
        size, latent = self.config.head_dim, self.config.latent
        if latent is not None:  # latents are held as keys and as values
            key = rounded_up(latent.rank + latent.rope_dim, TILE_INPUTS)
            return 2, (key + rounded_up(latent.rank, TILE_OUTPUTS)) // 2
        if not self.config.layer_windows:
            return 0, 0
        return 2 * self.config.kv_heads, (rounded_up(size, TILE_INPUTS) + rounded_up(size, TILE_OUTPUTS)) // 2

    def make_batch_invariant(self, rows: int) -> None:
        """It is."""

    def serve_up_to(self, longest: int) -> None:
        """Makes the rotary tables, and with them the program that runs."""
        if longest == self._longest:
            return
        tables = [self._rotary_table(rope, longest) for rope in range(len(self.config.ropes))]
        for operation, rope in self._recording.rotations:
            operation.cos, operation.sin = tables[rope]
        for operation, heat in self._recording.temperatures:
            operation.positions = self._factors(heat, longest)
        self._runs = CpuProgram(self.program, self.instruction_set, self.threads)
        self._longest, self._bound = longest, None

    def _rotary_table(self, rope: int, longest: int) -> tuple[Tensor, Tensor]:
        """cos and sin (positions, D / 2) in fp32. A row in flight may run one token past the longest sequence."""
        per_position, magnitude = frequencies(self.config.ropes[rope], longest)
        positions = rounded_up(longest + 1, PAGE_TOKENS)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), per_position)
        return angles.cos() * magnitude, angles.sin() * magnitude

    def _factors(self, heat: Temperature, longest: int) -> Tensor:
        """Of queries at each position, as `ops.scale_by_position` has them: (positions,) in fp32."""
        positions = torch.arange(rounded_up(longest + 1, PAGE_TOKENS))
        factors_THD = torch.ones((len(positions), 1, 1), dtype=torch.bfloat16)
        ops.scale_by_position(factors_THD, positions, heat.scale, heat.span, heat.offset)
        return factors_THD.flatten().float()

    def workspace_bytes(self, tokens: int, rows: int, longest: int) -> int:
        """What steps of `tokens` tokens and logits of `rows` rows need beside weights and cache, without the logits."""
        self.serve_up_to(longest)
        tables = [
            table for operation, _ in self._recording.rotations for table in (operation.cos, operation.sin)
        ]
        rotary = sum(
            table.nbytes for table in {id(table): table for table in tables if table is not None}.values()
        )
        return self._runs.workspace_bytes(tokens, rows, longest) + rotary

    def reserve(self, tokens: int, rows: int, longest: int) -> None:
        """Takes that memory. Raises MemoryError."""
        self.serve_up_to(longest)
        self._runs.reserve(tokens, rows, longest)
        self._bound = None

    def set_threads(self, threads: int) -> None:
        """Threads that compute from now on."""
        if self._longest:
            self._runs.set_threads(threads)

    def views(self) -> list[tuple[int, int]]:
        """See Model."""
        return self._views

    def forward(self, step: NativeStep, caches: list[LayerCache], given_TE: Tensor | None = None) -> Tensor:
        """Hidden states (T, E) in fp32, which the next step overwrites."""
        if caches is not self._bound:
            layers = self.config.layers
            for layer, (choice, cache) in enumerate(zip(layers, caches, strict=True)):
                if choice.attends:
                    self._runs.set_cache(layer, cache.rows_NJD, cache.table)
                for state_P in cache.states:
                    self._runs.set_state(layer, int(state_P.dtype == torch.float32), state_P)
            self._bound = caches
        ids_T = step.ids_T.numpy()
        rows = (step.slots_R, step.first_R, step.counts_R)
        self._runs.step(ids_T, *rows, step.pages, step.saves_C3, step.positions_T, step.moved_M3)
        return self._runs.rows(0, len(ids_T))

    def move(self, sources_BM: I64, targets_BM: I64) -> None:
        """Copies what the layers of the last step's caches have of M tokens to other rows, in order: (tables, M)."""
        self._runs.move(sources_BM, targets_BM)

    def logits(self, hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        """See Model."""
        self._runs.head(hidden_SE, out_SV)
        return out_SV

    def summarize(self, logits_SV: Tensor, masks: RowMasks | None) -> LogitsSummary:
        """What sampling asks of logits that nothing but masks changes."""
        return self._runs.summarize(logits_SV, masks)

    def draw(self, logits_SV: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Chooses the tokens of rows that are drawn, or whose logits something but a mask changes."""
        return self._runs.draw(logits_SV, draws)

    def weights(self) -> list[Tensor]:
        """Every tensor of the program, each once."""
        return self.program.tensors()


def why_not(shape: ModelConfig, dtype: torch.dtype, group: TensorGroup) -> str | None:
    """What the engine does not serve of a model that is served in `dtype` by the ranks of `group`; None: it serves it."""
    if dtype != torch.bfloat16:
        return f"{str(dtype).removeprefix('torch.')} weights"
    if group.everyone.size > 1:
        return "several shards or stages"
    if not isinstance(shape, DecoderConfig):
        return "no decoder of a recipe"
    return unknown_choice(shape)


def quantizer(
    shape: ModelConfig | None,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorGroup,
    quantize: str,
    head: bool,
) -> Quantizer:
    """Of --quantize and --quantize-head, for a model of this shape; None: transformers run it. Raises UnusableModel where the
    CPU engine would not run it: nothing else computes with quantized weights.
    """
    says = f"--quantize {quantize}: only the CPU engine quantizes weights"
    if device.type != "cpu":
        raise UnusableModel(f"{says}, and this worker runs on {device}")
    why = "models through transformers" if shape is None else why_not(shape, dtype, group)
    if why is not None:
        raise UnusableModel(f"{says}, and it does not serve {why}")
    assert shape is not None, "transformers would run it"
    widest = max(shape.width, shape.feed_forward, shape.heads * shape.head_dim, shape.mixer_width // 4)
    if widest > MOST_BYTE_INPUTS:
        raise UnusableModel(
            f"--quantize {quantize}: config.json: {widest} inputs of a matrix, and the most are {MOST_BYTE_INPUTS}"
        )
    try:
        instruction_set = cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        raise UnusableModel(f"{says}: {error}") from error
    return Quantizer(FORMATS[quantize], head, instruction_set, torch.get_num_threads())


def instruction_set(
    shape: ModelConfig, dtype: torch.dtype, device: torch.device, group: TensorGroup
) -> str | None:
    """What the CPU engine would run a model of this shape with; None: torch runs it, and a line says why. Raises UnusableModel where
    the environment asks for an instruction set that there is not.
    """
    if device.type != "cpu":
        return None
    try:
        found = cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        if group.rank == 0:
            _tell(f"torch runs the model: {error}", level="INFO" if error.asked else "WARN")
        return None
    why = why_not(shape, dtype, group)
    if why is not None and group.rank == 0:
        _tell(f"torch runs the model: the CPU engine does not serve {why}")
    return found if why is None else None


def on_cpu_engine(
    config: DecoderConfig, parameters: int, recording: Recording, instruction_set: str
) -> NativeDecoder:
    """The model of a recording."""
    threads = torch.get_num_threads()
    made = NativeDecoder(config, parameters, recording, instruction_set, threads)
    _tell(f"the CPU engine runs the model: {instruction_set}, {made.weight_formats}, threads: {threads}")
    return made


def _tell(message: str, level: str = "INFO") -> None:
    """In the server's log as well: of a worker's lines it has those that say how far a load is."""
    log(level, message, progress=True)
