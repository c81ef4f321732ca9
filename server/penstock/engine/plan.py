"""A step plan as the engine sees it: columns of numbers, one entry for each row, START row or token.

Made by `penstock.rpc.plan_reader` from messages, and by the worker itself for warm-up and checks. What the columns
mean for the slots is checked by `penstock.engine.slots`.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.proto import penstock_pb2 as pb

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

START = pb.ROW_FLAG_START
CONTINUE = pb.ROW_FLAG_CONTINUE
SAMPLE = pb.ROW_FLAG_SAMPLE
PROMPT_LOGPROBS = pb.ROW_FLAG_PROMPT_LOGPROBS
MASKED = pb.ROW_FLAG_MASKED
KNOWN_FLAGS = START | CONTINUE | SAMPLE | PROMPT_LOGPROBS | MASKED

NO_TARGET = 0xFFFFFFFF
NO_PAGE = 0xFFFFFFFF


def _column(default: float = 0, ragged_by: str = "", optional: bool = False) -> Any:
    return field(metadata={"default": default, "ragged_by": ragged_by, "optional": optional})


@dataclass(slots=True)
class Starts:
    """What the plan's START rows are sampled with: columns of the message of the same name, in its order.

    The one table of them in Python: a test compares it with penstock.proto.
    """

    seeds: U64 = _column()
    temperatures: F32 = _column()
    top_ks: U32 = _column()
    top_ps: F32 = _column(default=1)
    typical_ps: F32 = _column(default=1)
    min_ps: F32 = _column()
    repetition_penalties: F32 = _column(default=1)
    frequency_penalties: F32 = _column()
    presence_penalties: F32 = _column()
    top_tokens: U32 = _column()
    history_counts: U32 = _column()
    history_outputs: U32 = _column()
    history: U32 = _column(ragged_by="history_counts")
    bias_counts: U32 = _column()
    bias_tokens: U32 = _column(ragged_by="bias_counts")
    biases: F32 = _column(ragged_by="bias_counts")
    first_ends: U32 = _column()
    end_counts: U32 = _column()
    end_tokens: U32 = _column(ragged_by="end_counts")
    watermark_deltas: F32 = _column()
    watermark_greens: U32 = _column()
    encoder_counts: U32 = _column(optional=True)  # one for each START row of an encoder-decoder; none of a decoder's


@dataclass(frozen=True)
class StartColumn:
    """A column of `Starts`: an entry for each START row, or as many as another column says, or absent."""

    name: str
    dtype: str
    default: float  # what asks for nothing
    ragged_by: str  # the column that has the number of its entries of each row; "": one
    optional: bool  # may be absent


START_COLUMNS = tuple(
    StartColumn(column.name, {U64: "<u8", U32: "<u4", F32: "<f4"}[column.type], **column.metadata)
    for column in fields(Starts)
)


def greedy_starts(rows: int) -> Starts:
    """Greedy sampling for `rows` START rows: for plans that the worker makes itself."""
    return Starts(
        *(
            np.full(0 if column.ragged_by or column.optional else rows, column.default, column.dtype)
            for column in START_COLUMNS
        )
    )


@dataclass(slots=True)
class Plan:
    """One step: columns of the message of the same name."""

    number: int
    released: U32
    slots: I64
    flags: U8
    positions: I64
    counts: I64
    tokens: U32
    new_block_counts: I64
    new_pages: U32
    prompt_targets: U32
    starts: Starts | None
    traces: bytes = b""
    drafts: I64 = field(default_factory=lambda: np.zeros(0, np.int64))  # empty: no row has any
