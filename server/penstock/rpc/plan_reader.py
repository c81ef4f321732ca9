"""Reads step plans off the wire: columns to arrays, number and digest checked.

Called for every plan of a Run, in order. Looks at columns only; what they mean for the slots is checked by
`penstock.engine.slots`.
"""

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import I64, U8, U32
from penstock.engine.plan import START_COLUMNS, MaskColumns, Plan, Starts
from penstock.errors import BadPlan, OutOfStep
from penstock.proto import penstock_pb2 as pb

# Most columns of most plans, by the numbers of an element.
NO_U32: U32 = np.zeros(0, np.uint32)
NO_I64: dict[int, I64] = {wide: np.zeros((0, wide) if wide > 1 else 0, np.int64) for wide in (1, 2, 3)}


class PlanReader:
    """Reads the plans of one Run: knows the number and the digest that are due.

    Slots, flags, counts and new block counts that are those of the plan before are the same arrays, by which `SlotTable` knows them.
    """

    def __init__(self) -> None:
        self.number = 0  # of the last plan
        self.digest = 0  # of all
        # Of the last plan what most plans have in common with the one before: bytes, and the arrays made of them.
        self._slots = self._counts = self._new_block_counts = (b"", NO_I64[1])
        self._flags: tuple[bytes, U8] = (b"", np.zeros(0, np.uint8))

    def read(self, message: pb.StepPlan) -> Plan:
        """The plan's columns. Raises OutOfStep, or BadPlan for a column that is no whole number of elements."""
        due = self.number + 1
        if message.number != due:
            raise OutOfStep(f"plan number {message.number} came where number {due} was due")
        digest = zlib.crc32(message.number.to_bytes(8, "little"), self.digest)
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
        for column in (message.traces, message.drafts, message.saves, message.draft_parents, message.copies):
            if column:
                digest = zlib.crc32(column, digest)
        if message.digest != digest:
            raise OutOfStep(
                f"plan {message.number} says digest {message.digest:#010x}, this worker has {digest:#010x}"
            )
        self.number, self.digest = due, digest
        traces = message.traces
        if len(traces) % 24:
            raise BadPlan(f"traces: {len(traces)} bytes are no whole number of 24-byte elements")
        self._slots = _kept("slots", message.slots, self._slots)
        self._counts = _kept("counts", message.counts, self._counts)
        self._new_block_counts = _kept("new_block_counts", message.new_block_counts, self._new_block_counts)
        flags = message.flags
        if flags != self._flags[0]:
            self._flags = flags, np.frombuffer(flags, np.uint8)
        return Plan(
            number=message.number,
            released=_u32("released", message.released),
            slots=self._slots[1],
            flags=self._flags[1],
            positions=_i64("positions", message.positions),
            counts=self._counts[1],
            tokens=_u32("tokens", message.tokens),
            new_block_counts=self._new_block_counts[1],
            new_pages=_u32("new_pages", message.new_pages),
            prompt_targets=_u32("prompt_targets", message.prompt_targets),
            starts=starts,
            traces=traces,
            drafts=_i64("drafts", message.drafts),
            saves=_i64("saves", message.saves, 3),
            draft_parents=_i64("draft_parents", message.draft_parents),
            copies=_i64("copies", message.copies, 2),
        )


def _kept(name: str, column: bytes, before: tuple[bytes, I64]) -> tuple[bytes, I64]:
    """A column's bytes and its array, which is the one before if the bytes are."""
    return before if column == before[0] else (column, _i64(name, column))


def read_masks(message: pb.Masks) -> MaskColumns:
    """The columns of masks. Raises BadPlan for one that is no whole number of elements."""
    return MaskColumns(_u32("masks.only", message.only), _u32("masks.words", message.words))


def _u32(name: str, column: bytes) -> U32:
    return _column(name, column, "<u4") if column else NO_U32


def _i64(name: str, column: bytes, wide: int = 1) -> I64:
    """Elements of `wide` numbers: (elements, wide), or (elements,)."""
    if not column:
        return NO_I64[wide]
    if len(column) % (4 * wide):
        raise BadPlan(f"{name}: {len(column)} bytes are no whole number of {4 * wide}-byte elements")
    numbers = np.frombuffer(column, "<u4").astype(np.int64)
    return numbers if wide == 1 else numbers.reshape(-1, wide)


def _column(name: str, column: bytes, dtype: str) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if len(column) % size:
        raise BadPlan(f"{name}: {len(column)} bytes are no whole number of {size}-byte elements")
    return np.frombuffer(column, dtype)


def _read_starts(message: pb.Starts, digest: int) -> tuple[int, Starts]:
    columns = []
    for about in START_COLUMNS:
        column = getattr(message, about.name)
        digest = zlib.crc32(column, digest)
        columns.append((about, column))
    return digest, Starts(
        *(_column(f"starts.{about.name}", column, about.dtype) for about, column in columns)
    )
