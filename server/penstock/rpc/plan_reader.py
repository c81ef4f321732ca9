"""Reads step plans off the wire: columns to arrays, number and digest checked.

Called for every plan of a Run, in order. Looks at columns only; what they mean for the slots is checked by
`penstock.engine.slots`.
"""

import zlib

import numpy as np

from penstock.engine.plan import F32, U32, U64, Plan, Starts
from penstock.errors import BadPlan, OutOfStep
from penstock.proto import penstock_pb2 as pb


class PlanReader:
    """Reads the plans of one Run: knows the number and the digest that are due."""

    def __init__(self) -> None:
        self._number = 0
        self._digest = 0

    def read(self, message: pb.StepPlan) -> Plan:
        """The plan's columns. Raises OutOfStep, or BadPlan for a column that is no whole number of elements."""
        due = self._number + 1
        if message.number != due:
            raise OutOfStep(f"plan number {message.number} came where number {due} was due")
        digest = zlib.crc32(message.number.to_bytes(8, "little"), self._digest)
        for column in (
            message.released,
            message.slots,
            message.flags,
            message.positions,
            message.counts,
            message.tokens,
            message.new_block_counts,
            message.new_pages,
            message.prompt_targets,
        ):
            if column:
                digest = zlib.crc32(column, digest)
        starts = None
        if message.HasField("starts"):
            digest, starts = _read_starts(message.starts, digest)
        if message.traces:
            digest = zlib.crc32(message.traces, digest)
        if message.digest != digest:
            raise OutOfStep(
                f"plan {message.number} says digest {message.digest:#010x}, this worker has {digest:#010x}"
            )
        self._number, self._digest = due, digest
        if len(message.traces) % 24:
            raise BadPlan(f"traces: {len(message.traces)} bytes are no whole number of 24-byte elements")
        return Plan(
            number=message.number,
            released=_u32("released", message.released),
            slots=_u32("slots", message.slots).astype(np.int64),
            flags=np.frombuffer(message.flags, np.uint8),
            positions=_u32("positions", message.positions).astype(np.int64),
            counts=_u32("counts", message.counts).astype(np.int64),
            tokens=_u32("tokens", message.tokens),
            new_block_counts=_u32("new_block_counts", message.new_block_counts).astype(np.int64),
            new_pages=_u32("new_pages", message.new_pages),
            prompt_targets=_u32("prompt_targets", message.prompt_targets),
            starts=starts,
            traces=message.traces,
        )


def mask_words(message: pb.Masks) -> U32:
    """The words of all masks. Raises BadPlan for a column that is no whole number of elements."""
    return _u32("masks.words", message.words)


def _u32(name: str, column: bytes) -> U32:
    if len(column) % 4:
        raise BadPlan(f"{name}: {len(column)} bytes are no whole number of 4-byte elements")
    return np.frombuffer(column, "<u4")


def _u64(name: str, column: bytes) -> U64:
    if len(column) % 8:
        raise BadPlan(f"{name}: {len(column)} bytes are no whole number of 8-byte elements")
    return np.frombuffer(column, "<u8")


def _f32(name: str, column: bytes) -> F32:
    if len(column) % 4:
        raise BadPlan(f"{name}: {len(column)} bytes are no whole number of 4-byte elements")
    return np.frombuffer(column, "<f4")


def _read_starts(message: pb.Starts, digest: int) -> tuple[int, Starts]:
    columns = {
        name: getattr(message, name)
        for name in (
            "seeds",
            "temperatures",
            "top_ks",
            "top_ps",
            "typical_ps",
            "min_ps",
            "repetition_penalties",
            "frequency_penalties",
            "presence_penalties",
            "top_tokens",
            "history_counts",
            "history_outputs",
            "history",
            "bias_counts",
            "bias_tokens",
            "biases",
            "first_ends",
            "end_counts",
            "end_tokens",
            "watermark_deltas",
            "watermark_greens",
            "encoder_counts",
        )
    }
    for column in columns.values():
        if column:
            digest = zlib.crc32(column, digest)

    def u32(name: str) -> U32:
        return _u32(f"starts.{name}", columns[name])

    def f32(name: str) -> F32:
        return _f32(f"starts.{name}", columns[name])

    starts = Starts(
        seeds=_u64("starts.seeds", columns["seeds"]),
        temperatures=f32("temperatures"),
        top_ks=u32("top_ks"),
        top_ps=f32("top_ps"),
        typical_ps=f32("typical_ps"),
        min_ps=f32("min_ps"),
        repetition_penalties=f32("repetition_penalties"),
        frequency_penalties=f32("frequency_penalties"),
        presence_penalties=f32("presence_penalties"),
        top_tokens=u32("top_tokens"),
        history_counts=u32("history_counts"),
        history_outputs=u32("history_outputs"),
        history=u32("history"),
        bias_counts=u32("bias_counts"),
        bias_tokens=u32("bias_tokens"),
        biases=f32("biases"),
        first_ends=u32("first_ends"),
        end_counts=u32("end_counts"),
        end_tokens=u32("end_tokens"),
        watermark_deltas=f32("watermark_deltas"),
        watermark_greens=u32("watermark_greens"),
        encoder_counts=u32("encoder_counts"),
    )
    return digest, starts
