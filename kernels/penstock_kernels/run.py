"""The steps of a Run, from a plan's bytes to its answer's, in csrc/cpu/run.cpp by ctypes.

Structures are those of csrc/cpu/penstock_cpu.h, which says more. Used by the engine, which says whose steps they are. Must not import torch.
"""

from collections.abc import Mapping
from ctypes import Structure, byref, c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_kernels.cpu_engine import CpuProgram, address, succeeded

KINDS = 4  # of steps, by their tokens
# Steps after which the caller is asked, and nanoseconds.
MOST_MADE, MOST_NS = 64, 50_000_000
# What a connection's bytes are read into at first.
INBOX_BYTES = 1 << 16


class Pause(IntEnum):
    """Why steps do not go on without the caller: penstock_pause."""

    MESSAGE = 1
    MASKS = 2
    STEPS = 3


@dataclass(slots=True)
class Inbox:
    """What was read of a connection and not taken, and how far its Run has come."""

    descriptor: int
    bytes: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(INBOX_BYTES, np.uint8))
    begin: int = 0
    end: int = 0
    is_taken: bool = False  # the plan of the first message, but not its masks
    number: int = 0  # the last plan
    digest: int = 0  # of all plans
    taken_masks: int = 0  # the plan whose masks were taken of a message of which something is left; 0: none


class CSlots(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("max_slots", "width")),
        *((name, c_void_p) for name in ("alive", "has_sampled", "filled", "planned", "block_counts")),
        *((name, c_void_p) for name in ("pages", "last_sampled", "places", "encoded", "adapters")),
    ]


class CSampling(Structure):
    _fields_ = [
        *(
            (name, c_void_p)
            for name in ("seeds", "temperatures", "top_ps", "typical_ps", "min_ps", "furthest")
        ),
        *((name, c_void_p) for name in ("repetitions", "frequencies", "presences", "watermark_deltas")),
        *((name, c_void_p) for name in ("top_ks", "top_counts", "first_ends", "watermark_greens")),
        *((name, c_void_p) for name in ("are_simple", "are_plain")),
        *((name, c_void_p) for name in ("count_rows", "free_rows", "free_count")),
        *((name, c_void_p) for name in ("bias_counts", "bias_tokens", "biases", "end_tokens")),
        ("end_width", c_int64),
        *((name, c_void_p) for name in ("prompt_counts", "output_counts")),
    ]


class CRun(Structure):
    _fields_ = [
        ("descriptor", c_int64),
        ("inbox", c_void_p),
        *((name, c_int64) for name in ("capacity", "begin", "end", "is_taken")),
        *((name, c_uint64) for name in ("number", "digest", "taken_masks")),
        ("slots", CSlots),
        ("sampling", CSampling),
        *((name, c_int64) for name in ("columns", "tables", "pages", "block_size", "adapters")),
        *((name, c_int64) for name in ("most_tokens", "most_drafts", "most_side")),
        *((name, c_int64) for name in ("starts", "narrows", "answers", "ranks")),
        ("logits", c_void_p),
        ("stride", c_int64),
        *((name, c_char_p) for name in ("not_numbers", "nothing_left")),
        ("rows", c_int64),
        *((name, c_void_p) for name in ("row_slots", "row_first", "row_counts", "row_drafts", "row_flags")),
        *((name, c_void_p) for name in ("ids", "steps")),
        ("kinds", c_int64 * (KINDS - 1)),
        *((name, c_int64 * KINDS) for name in ("threads", "left")),
        ("most_ns", c_int64),
        ("made", c_void_p),
        *((name, c_int64) for name in ("most_made", "made_count")),
        *((name, c_int64) for name in ("tokens", "prepare_ns", "forward_ns")),
    ]


def go_on(run: CRun, inbox: Inbox, program: CpuProgram, kinds: list[tuple[int, int]]) -> Pause:
    """Makes steps for as long as they ask for nothing of the caller, which `run` then tells the rest of. `kinds`: of steps of each kind the
    threads that compute them, and how many of them may be made. Raises RankLost.
    """
    run.descriptor, run.inbox, run.capacity = inbox.descriptor, address(inbox.bytes), len(inbox.bytes)
    run.begin, run.end, run.is_taken = inbox.begin, inbox.end, inbox.is_taken
    run.number, run.digest, run.taken_masks = inbox.number, inbox.digest, inbox.taken_masks
    for kind, (threads, left) in enumerate(kinds):
        run.threads[kind], run.left[kind] = threads, left
    pause = program.call("go_on", byref(run))
    inbox.begin, inbox.end, inbox.is_taken = run.begin, run.end, bool(run.is_taken)
    inbox.number, inbox.digest, inbox.taken_masks = run.number, run.digest, run.taken_masks
    succeeded(pause)
    return Pause(pause)


def pointers(structure: type[Structure], columns: Mapping[str, npt.NDArray[Any] | None]) -> Structure:
    """One that says where columns are; None: nowhere. The caller keeps them."""
    made = structure()
    for name, column in columns.items():
        assert column is None or column.flags.c_contiguous
        setattr(made, name, None if column is None else address(column))
    return made
