"""A step plan as the engine sees it: columns of numbers, one entry for each row, START row or token.

Made by `penstock.rpc.plan_reader` from messages, and by the worker itself for warm-up and checks. What the columns
mean for the slots is checked by `penstock.engine.slots`.
"""

from dataclasses import dataclass

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


@dataclass(slots=True)
class Starts:
    """What the plan's START rows are sampled with: columns of the message of the same name."""

    seeds: U64
    temperatures: F32
    top_ks: U32
    top_ps: F32
    typical_ps: F32
    min_ps: F32
    repetition_penalties: F32
    frequency_penalties: F32
    presence_penalties: F32
    top_tokens: U32
    history_counts: U32
    history_outputs: U32
    history: U32
    bias_counts: U32
    bias_tokens: U32
    biases: F32
    first_ends: U32
    end_counts: U32
    end_tokens: U32
    watermark_deltas: F32
    watermark_greens: U32
    encoder_counts: U32  # one for each START row of an encoder-decoder; none of a decoder's


def greedy_starts(rows: int) -> Starts:
    """Greedy sampling for `rows` START rows: for plans that the worker makes itself."""
    off, one = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    nothing, none = np.zeros(rows, np.uint32), np.zeros(0, np.uint32)
    return Starts(
        seeds=np.zeros(rows, np.uint64),
        temperatures=off,
        top_ks=nothing,
        top_ps=one,
        typical_ps=one,
        min_ps=off,
        repetition_penalties=one,
        frequency_penalties=off,
        presence_penalties=off,
        top_tokens=nothing,
        history_counts=nothing,
        history_outputs=nothing,
        history=none,
        bias_counts=nothing,
        bias_tokens=none,
        biases=np.zeros(0, np.float32),
        first_ends=nothing,
        end_counts=nothing,
        end_tokens=none,
        watermark_deltas=off,
        watermark_greens=nothing,
        encoder_counts=none,
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
