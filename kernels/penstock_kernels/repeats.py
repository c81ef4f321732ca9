"""Steps that go on from each other, from a plan's bytes to its answer's, in csrc/cpu/repeats.cpp by ctypes.

Structures are those of csrc/cpu/penstock_cpu.h, which says more. Used by the engine, which says whose steps they are. Must not import torch.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from penstock_kernels.cpu_engine import CDraws, CStep, Decodes, address, succeeded

I64 = npt.NDArray[np.int64]
KINDS = 4  # of steps, by their tokens
# Steps after which the caller is asked, and nanoseconds.
MOST_MADE, MOST_NS = 64, 50_000_000
# What a connection's bytes are read into at first.
INBOX_BYTES = 1 << 16


class Pause(IntEnum):
    """Why steps do not go on without the caller: penstock_pause."""

    MESSAGE = 1
    MASKS = 2
    ANSWER = 3
    STEPS = 4


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


class CSamples(Structure):
    _fields_ = [
        ("step", POINTER(CStep)),
        *((name, c_void_p) for name in ("ids", "first", "counts", "logits")),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("tokens", "largest", "totals")),
        ("draws", POINTER(CDraws)),
        *((name, c_void_p) for name in ("rows", "before", "mask_of_row")),
    ]


class CRepeats(Structure):
    _fields_ = [
        ("descriptor", c_int64),
        ("inbox", c_void_p),
        *((name, c_int64) for name in ("capacity", "begin", "end", "is_taken")),
        *((name, c_uint64) for name in ("number", "digest", "taken_masks")),
        *((name, c_int64) for name in ("rows", "columns")),
        *((name, c_void_p) for name in ("flags", "slots", "furthest")),
        *((name, CSamples) for name in ("plain", "verifying")),
        *((name, c_int64) for name in ("most_drafts", "most_tokens", "answers", "awaits_masks")),
        *((name, c_void_p) for name in ("keys", "first_ends")),
        *((name, c_int64) for name in ("end_width", "are_marked", "may_lack")),
        *((name, c_void_p) for name in ("are_penalized", "counted")),
        *((name, c_void_p) for name in ("filled", "planned", "block_counts", "last_sampled")),
        *((name, c_int64) for name in ("tables", "pages", "block_size")),
        ("steps", c_void_p),
        ("kinds", c_int64 * (KINDS - 1)),
        *((name, c_int64 * KINDS) for name in ("threads", "left")),
        ("most_ns", c_int64),
        ("made", c_void_p),
        *((name, c_int64) for name in ("most_made", "made_count")),
        *((name, c_int64) for name in ("tokens", "prepare_ns", "forward_ns")),
    ]


def samples_of(decodes: Decodes, before: I64 | None) -> CSamples:
    """Where these steps read and write; `before`: what their draws count as output, if they do."""
    draws, made = decodes.draws, decodes.c_draws
    columns = (decodes.ids_T, decodes.first_R, decodes.counts_R)
    summary = (decodes.summary.tokens_S, decodes.summary.largest_S, decodes.summary.totals_S)
    logits, stride = decodes.logits_at
    return CSamples(
        ctypes.pointer(decodes.c_step),
        *map(address, columns),
        logits,
        stride,
        *map(address, summary),
        None if made is None else ctypes.pointer(made),
        None if draws is None else address(draws.rows),
        None if before is None or not len(before) else address(before),
        address(decodes.mask_of_row_S),
    )


def go_on(repeats: CRepeats, inbox: Inbox, decodes: Decodes, kinds: list[tuple[int, int]]) -> Pause:
    """Makes steps for as long as they ask for nothing of the caller, which `repeats` then tells the rest of. `kinds`: of steps of each kind the
    threads that compute them, and how many of them may be made. Raises RankLost.
    """
    repeats.descriptor, repeats.inbox, repeats.capacity = (
        inbox.descriptor,
        address(inbox.bytes),
        len(inbox.bytes),
    )
    repeats.begin, repeats.end, repeats.is_taken = inbox.begin, inbox.end, inbox.is_taken
    repeats.number, repeats.digest, repeats.taken_masks = inbox.number, inbox.digest, inbox.taken_masks
    for kind, (threads, left) in enumerate(kinds):
        repeats.threads[kind], repeats.left[kind] = threads, left
    pause = decodes.call("go_on", byref(repeats))
    inbox.begin, inbox.end, inbox.is_taken = repeats.begin, repeats.end, bool(repeats.is_taken)
    inbox.number, inbox.digest, inbox.taken_masks = repeats.number, repeats.digest, repeats.taken_masks
    succeeded(pause)
    return Pause(pause)
