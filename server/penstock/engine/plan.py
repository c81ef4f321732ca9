"""A step plan as the engine sees it: columns of numbers, one entry for each row, START row or token.

Made by `penstock.rpc.plan_reader` from messages, and by the worker itself for warm-up and checks. What the columns
mean for the slots is checked by `penstock.engine.slots`.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from penstock.engine.columns import F32, I64, U8, U32, U64
from penstock.engine.draft_trees import DraftTrees
from penstock.proto import penstock_pb2 as pb

START = pb.ROW_FLAG_START
CONTINUE = pb.ROW_FLAG_CONTINUE
SAMPLE = pb.ROW_FLAG_SAMPLE
PROMPT_LOGPROBS = pb.ROW_FLAG_PROMPT_LOGPROBS
MASKED = pb.ROW_FLAG_MASKED
OWN_DRAFTS = pb.ROW_FLAG_OWN_DRAFTS
KNOWN_FLAGS = START | CONTINUE | SAMPLE | PROMPT_LOGPROBS | MASKED | OWN_DRAFTS

NO_TARGET = 0xFFFFFFFF
NO_PAGE = 0xFFFFFFFF
NO_SNAPSHOT = 0xFFFFFFFF

# In `MaskColumns.only`: the tokens of the next mask in `words`; none.
OF_WORDS = 0xFFFFFFFF
NO_TOKEN = 0xFFFFFFFE


# What is known of a column of `Starts`: see StartColumn.
_ZERO: dict[str, Any] = {"default": 0, "ragged_by": "", "optional": False}
_ONE = {**_ZERO, "default": 1}


@dataclass(slots=True)
class Starts:
    """What the plan's START rows are sampled with: columns of the message of the same name, in its order.

    The one table of them in Python: a test compares it with penstock.proto.
    """

    seeds: U64 = field(metadata=_ZERO)
    temperatures: F32 = field(metadata=_ZERO)
    top_ks: U32 = field(metadata=_ZERO)
    top_ps: F32 = field(metadata=_ONE)
    typical_ps: F32 = field(metadata=_ONE)
    min_ps: F32 = field(metadata=_ZERO)
    repetition_penalties: F32 = field(metadata=_ONE)
    frequency_penalties: F32 = field(metadata=_ZERO)
    presence_penalties: F32 = field(metadata=_ZERO)
    top_tokens: U32 = field(metadata=_ZERO)
    history_counts: U32 = field(metadata=_ZERO)
    history_outputs: U32 = field(metadata=_ZERO)
    history: U32 = field(metadata={**_ZERO, "ragged_by": "history_counts"})
    bias_counts: U32 = field(metadata=_ZERO)
    bias_tokens: U32 = field(metadata={**_ZERO, "ragged_by": "bias_counts"})
    biases: F32 = field(metadata={**_ZERO, "ragged_by": "bias_counts"})
    first_ends: U32 = field(metadata=_ZERO)
    end_counts: U32 = field(metadata=_ZERO)
    end_tokens: U32 = field(metadata={**_ZERO, "ragged_by": "end_counts"})
    watermark_deltas: F32 = field(metadata=_ZERO)
    watermark_greens: U32 = field(metadata=_ZERO)
    encoder_counts: U32 = field(
        metadata={**_ZERO, "optional": True}
    )  # one for each START row of an encoder-decoder, or none
    state_sources: U32 = field(
        metadata={**_ZERO, "default": 0xFFFFFFFF, "optional": True}
    )  # one for each START row of a model with recurrent layers, or none
    adapters: U32 = field(
        metadata={**_ZERO, "optional": True}
    )  # one for each START row of a model with adapters, or none


@dataclass(frozen=True)
class StartColumn:
    """A column of `Starts`: an entry for each START row, or as many as another column says, or absent."""

    name: str
    dtype: str
    default: float  # what asks for nothing
    ragged_by: str  # the column that has the number of its entries of each row; "": one
    optional: bool  # may be absent


_DTYPES: dict[Any, str] = {U64: "<u8", U32: "<u4", F32: "<f4"}
START_COLUMNS = tuple(
    StartColumn(column.name, _DTYPES[column.type], **column.metadata) for column in fields(Starts)
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
    # (row, tokens, snapshot) of each copy of a slot's recurrent state that is kept: (copies, 3).
    saves: I64 = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    draft_parents: I64 = field(default_factory=lambda: np.zeros(0, np.int64))  # empty: all drafts are chains
    # (source, target) of each page that is copied: (copies, 2).
    copies: I64 = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    # Once the slots have accepted it:
    trees: DraftTrees | None = None  # None: all drafts are chains
    # The rows of the plan before, each with the token behind its last one and drafts, some with more pages; and nothing else.
    goes_on: bool = False

    @property
    def has_rows_alone(self) -> bool:
        """Whether it says nothing but of each row its slot, flags, position, count, drafts, the pages that it gets and copies of its state."""
        others = len(self.released), len(self.prompt_targets), len(self.copies)
        return self.starts is None and not any(others)


@dataclass(frozen=True, slots=True)
class MaskColumns:
    """What a plan's MASKED rows may sample: columns of the message `Masks`."""

    only: U32
    words: U32


def are_decodes(plan: Plan) -> bool:
    """Whether every row continues and samples, masked or not, and nothing else: most steps of a busy server."""
    continues = (plan.flags & ~np.uint8(MASKED)) == CONTINUE | SAMPLE
    return plan.starts is None and not len(plan.drafts) and not len(plan.saves) and bool(continues.all())
