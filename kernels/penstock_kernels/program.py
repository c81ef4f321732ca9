"""A forward pass as data: operations over buffers, which the CPU engine runs in one call.

Made once, when a model is loaded (`penstock.models.recorder`), printed by `print(program)`, and given to `cpu_engine`. A buffer
holds numbers for each token of a step. What each kind of operation computes is said in csrc/cpu/penstock_cpu.h.
"""

import math
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy.typing as npt

TILE_OUTPUTS, TILE_INPUTS = 16, 32
BYTE_INPUTS, INT4_INPUTS, INT4_BYTES = 64, 128, 1088
MOST_BYTE_INPUTS = 1 << 16  # of a quantized matrix: sums have 32 bits
PAGE_TOKENS = 16
MOST_STREAMS = 16

# Numbers that lie somewhere: of numpy, where bf16 is uint16, or of torch on a CPU. The engine is told where.
Array = Any
HostArray = npt.NDArray[Any]


class Kind(IntEnum):
    """Of operations."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    WRITE_KV = 3
    ATTENTION = 4
    QUANTIZE = 5
    GATED_NORM = 6
    OPEN = 7
    ROUTE = 8
    GATHER = 9
    EXPERTS = 10
    CONVOLVE = 11
    RATES = 12
    RECUR = 13
    HEADS = 14
    WRITE_LATENT = 15
    SCAN = 16
    GATED_RECUR = 17
    PREDICT = 18
    CORRECT = 19
    MATCH = 20
    SPARSE_GATE = 21
    REDUCE = 22
    WRITE_INDEX = 23
    CHOOSE = 24
    HYPER_READ = 25
    HYPER_ADD = 26
    TURN = 27
    POOL = 28
    KEEP = 29
    COMPRESSED_ATTENTION = 30
    HYPER_MIX = 31
    NGRAMS = 32
    NGRAM_GATE = 33
    WRITE_BLOCKS = 34
    CHOOSE_FOR_HEADS = 35
    MIX_TOKENS = 36
    WEIGH_VALUES = 37
    NARROW = 38
    ADAPT = 39


class Norm(IntEnum):
    """Root mean square normalisation, layer normalisation, or a copy."""

    NONE = 0
    RMS = 1
    LAYER = 2


class NormOver(IntEnum):
    """What a weight of the norm of queries and keys covers: a head, each head with its own, or all heads at once."""

    HEAD = 0
    HEADS = 1
    ALL = 2


class Values(IntEnum):
    """Which values a layer writes: its own, its keys, or none, as it writes no keys; or its own and keys alone, without queries."""

    OWN = 0
    KEYS = 1
    NONE = 2
    ALONE = 3


class Sees(IntEnum):
    """What a token attends to: its sequence up to itself, its whole row, or what its sequence's encoder has read."""

    BEFORE = 0
    ROW = 1
    READ = 2


class Epilogue(IntEnum):
    """What becomes of a product y: y, target + y, f(y), or f(gate) up."""

    STORE = 0
    ADD = 1
    ACTIVATE = 2
    GATE = 3


class Format(IntEnum):
    """Of a weight's numbers; those of ROWS are in bf16, and in no tiles. GROUPS are of 4 bits, with a scale and a zero point for so many
    inputs, FP4 is a number of fp4 times a power of two, and OFFSET a scale and an offset, as in GGUF's files.
    """

    BF16 = 0
    INT8 = 1
    INT4 = 2
    ROWS = 3
    GROUPS_32 = 4
    GROUPS_64 = 5
    GROUPS_128 = 6
    FP4_32 = 7
    OFFSET_32 = 8


class Rounding(IntEnum):
    """What becomes of numbers in a format with groups: those that are of such groups stay what they are, or all are rounded to the nearest."""

    NOTHING = 0
    SYMMETRIC = 1
    WITH_ZERO_POINTS = 2


# Formats with groups, and the inputs of each.
GROUPED = {
    Format.GROUPS_128: 128,
    Format.GROUPS_64: 64,
    Format.GROUPS_32: 32,
    Format.FP4_32: 32,
    Format.OFFSET_32: 32,
}


class CacheFormat(IntEnum):
    """Of keys and values in the pages of the cache: numbers of 8 bits but for BF16; those of INT8 have a factor for each token and head."""

    BF16 = 0
    FP8_E4M3 = 1
    FP8_E5M2 = 2
    INT8 = 3


class Activation(IntEnum):
    """Functions of `ACTIVATIONS`, of `gated_clamped` and `gated_limited`, of gates, and `xielu`."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    QUICK_GELU = 3
    RELU = 4
    RELU_SQUARED = 5
    CLAMPED_GATE = 6
    SIGMOID = 7
    SOFTPLUS = 8
    IDENTITY = 9
    XIELU = 10
    LIMITED_GATE = 11


class Rule(IntEnum):
    """What a recurrent layer's states keep and learn by."""

    DELTA_RULE = 0
    STATE_SPACE = 1
    CONSTANT = 2
    CHANNELS = 3
    BOUNDED_CHANNELS = 4


class Layout(IntEnum):
    """What a buffer holds of each token; an external one is fp32 in the caller's memory, of bytes there is a scale, and a shared one is
    fp32 that all ranks see.
    """

    F32 = 0
    BF16 = 1
    QUERIES = 2
    EXTERNAL = 3
    BYTES = 4
    SHARED = 5


@dataclass(frozen=True)
class Buffer:
    """Numbers of each token of a step: `rows` rows of them, in the order of experts where a token has several."""

    name: str
    layout: Layout
    width: int
    rows: int = 1


@dataclass
class Operation:
    """One operation. Buffers are numbers in the program; tensors are fp32, but for packed weights."""

    kind: Kind
    source: int
    target: int
    second: int = -1
    third: int = -1
    source_at: int = 0
    inner_at: int = -1
    outer_at: int = -1
    target_at: int = 0
    rows: int = 0
    columns: int = 0
    norm: Norm = Norm.NONE
    norm_over: NormOver = NormOver.HEAD
    norm_rotated: bool = False
    accumulate: bool = False
    epilogue: Epilogue = Epilogue.STORE
    activation: Activation = Activation.SILU
    layer: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    rope_dim: int = 0
    window: int = 0
    chunked: bool = False
    offset: int = 0
    format: Format = Format.BF16
    experts: int = 0
    per_token: int = 0
    sigmoid: int = 0
    normalize: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    slopes_rounded: bool = False
    weighs_input: bool = False
    value_dim: int = 0
    rule: Rule = Rule.DELTA_RULE
    channels: bool = False
    learns: bool = False
    values: Values = Values.OWN
    value_norm: Norm = Norm.NONE
    first_id: int = -1
    first_expert: int = 0
    own_experts: int = -1
    rounds: int = 0
    dilation: int = 1
    sees: Sees = Sees.BEFORE
    matrix: int = -1  # of a product, its number among those that adapters may change; the engine is not told
    eps: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0
    clip: float = 0.0
    limit: float = 0.0
    alpha: float = 0.0
    lowest: float = 0.0
    highest: float = math.inf
    slopes_scale: float = 1.0
    one_by_one: float = 0.0
    value_eps: float = 0.0
    value_scale: float = 1.0
    weight: Array | None = None
    bias: Array | None = None
    norm_weight: Array | None = None
    second_weight: Array | None = None
    cos: Array | None = None
    sin: Array | None = None
    positions: Array | None = None
    scales: Array | None = None
    sums: Array | None = None  # int32
    sinks: Array | None = None
    slopes: Array | None = None
    second_bias: Array | None = None


# What an operation reads beside buffers.
TENSORS = tuple(one.name for one in fields(Operation) if one.default is None)


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix (rows, columns) in tiles of int8 or 4 bits, with a scale for each row or group: see csrc/cpu/penstock_cpu.h."""

    format: Format
    rows: int
    columns: int
    tiles: Array  # uint8
    scales: Array  # of whole tiles; None, as `sums`: groups have theirs, in the tiles
    sums: Array

    @property
    def nbytes(self) -> int:
        return int(sum(part.nbytes for part in (self.tiles, self.scales, self.sums) if part is not None))


@dataclass
class Program:
    """A decoder's forward pass: the body makes hidden states of tokens, the head logits of chosen ones. An encoder, where there is one,
    writes what the body attends to of inputs.
    """

    buffers: list[Buffer] = field(default_factory=list)
    body: list[Operation] = field(default_factory=list)
    head: list[Operation] = field(default_factory=list)
    encoder: list[Operation] = field(default_factory=list)

    @property
    def operations(self) -> list[Operation]:
        """All of them, in the order in which they run."""
        return [*self.encoder, *self.body, *self.head]

    def buffer(self, name: str, layout: Layout, width: int, rows: int = 1) -> int:
        """The number of the buffer of this name, which is made where there is none."""
        wanted = Buffer(name, layout, width, rows)
        for number, buffer in enumerate(self.buffers):
            if buffer.name == name:
                assert buffer == wanted, f"{buffer} is not {wanted}"
                return number
        self.buffers.append(wanted)
        return len(self.buffers) - 1

    def tensors(self) -> list[Array]:
        """Every tensor of its operations, each once."""
        held = (getattr(operation, name) for operation in self.operations for name in TENSORS)
        return list({id(found): found for found in held if found is not None}.values())

    def __str__(self) -> str:
        lines = [f"{number:4}  {self._line(operation)}" for number, operation in enumerate(self.operations)]
        before_head = len(self.encoder) + len(self.body)
        lines.insert(before_head, "head")
        lines.insert(len(self.encoder), "body")
        return "\n".join([*(["encoder"] if self.encoder else []), *lines])

    def _line(self, operation: Operation) -> str:
        """`target = kind(source), choices`; what has its default is left out."""
        source = "ids" if operation.kind == Kind.EMBED else self.buffers[operation.source].name
        said = []
        for one in fields(operation)[3:]:
            value = getattr(operation, one.name)
            if one.name in ("second", "third"):
                if value >= 0:
                    source += f", {self.buffers[value].name}"
            elif one.name in TENSORS:
                if value is not None:
                    said.append(one.name)
            elif value != one.default and one.name != "matrix":
                said.append(f"{one.name} {_shown(value)}")
        target = self.buffers[operation.target].name
        return (
            f"{target} = {operation.kind.name.lower()}({source})" + (": " if said else "") + ", ".join(said)
        )


def _shown(value: object) -> str:
    if isinstance(value, IntEnum):
        return value.name.lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def rounded_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def quantized_bytes(format: Format, rows: int, columns: int) -> int:
    """Of the tiles of a matrix."""
    panels = rounded_up(rows, TILE_OUTPUTS) // TILE_OUTPUTS
    tiles = panels * (rounded_up(columns, INT4_INPUTS) // INT4_INPUTS)
    if format in GROUPED:
        head = INT4_INPUTS // GROUPED[format] * (16 if format == Format.FP4_32 else 64)
        return tiles * (1024 + head)
    if format == Format.INT4:
        return tiles * INT4_BYTES
    return panels * TILE_OUTPUTS * rounded_up(columns, BYTE_INPUTS)
