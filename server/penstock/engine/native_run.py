"""What the CPU engine is told of slots and limits to read plans and answer them by itself, and what it leaves. Must not import torch.

Letters: R rows, T tokens that are fed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import F32, I64, U8
from penstock.engine.native_sampling import NativeSampler
from penstock.engine.plan import CONTINUE, Plan
from penstock.engine.slots import SlotTable
from penstock.engine.threads import KINDS
from penstock.models.native import NativeModel
from penstock_kernels.cpu_engine import rows_at
from penstock_kernels.run import MOST_MADE, MOST_NS, CRun, CSampling, CSlots, Inbox, Pause, pointers

NO_NUMBERS: I64 = np.zeros(0, np.int64)


class NativeRun:
    """The steps that the CPU engine makes of its own: slots and sampling are the columns that Python has, too."""

    def __init__(
        self,
        native: NativeModel,
        table: SlotTable,
        sampler: NativeSampler,
        last_sampled: I64,
        steps: I64,
        logits_SV: F32,
        answers: bool,
        messages: tuple[str, str],
    ) -> None:
        """`last_sampled` has the last token of every slot, `steps` (1,) how many were begun, `messages` what is answered of rows without a token:
        whose logits are no numbers, and that have none left. `answers`: this rank does."""
        self._native, self._sampler = native, sampler
        limits = table.limits
        slots = limits.max_slots
        self._made: I64 = np.zeros((MOST_MADE, 4), np.int64)
        self._slots_R, self._first_R, self._counts_R, self._drafts_R = np.zeros((4, slots), np.int64)
        self._flags_R: U8 = np.zeros(slots, np.uint8)
        self._ids_T: I64 = np.zeros(limits.max_step_tokens, np.int64)
        c = self._c = CRun()
        has_states = table.states is not None
        columns: dict[str, npt.NDArray[Any] | None] = {
            name: getattr(table, name)
            for name in ("alive", "has_sampled", "filled", "planned", "block_counts", "pages")
        }
        columns["last_sampled"] = last_sampled
        columns["places"] = None if table.states is None else table.states.of_slots
        columns["encoded"] = table.encoder_counts if limits.has_encoder else None
        columns["adapters"] = table.adapters if limits.adapters else None
        c.slots = pointers(CSlots, columns)
        c.slots.max_slots, c.slots.width = slots, table.width
        c.columns = limits.vocab_size
        c.tables, c.pages, c.block_size = limits.tables.count, limits.pages, limits.block_size
        c.adapters = limits.adapters
        c.most_tokens, c.most_side = limits.max_step_tokens, limits.max_side_positions
        # What states are in front of drafts, and with which one a slot begins, only Python knows.
        c.most_drafts = 0 if has_states else limits.max_step_drafts
        c.starts = not (has_states or limits.has_encoder)
        c.narrows, c.answers, c.ranks = native.narrows, answers, native.group.size
        c.logits, c.stride = rows_at(logits_SV)
        c.not_numbers, c.nothing_left = (message.encode() for message in messages)
        own: dict[str, npt.NDArray[Any]] = {
            "row_slots": self._slots_R,
            "row_first": self._first_R,
            "row_counts": self._counts_R,
            "row_drafts": self._drafts_R,
            "row_flags": self._flags_R,
            "ids": self._ids_T,
            "steps": steps,
            "made": self._made,
        }
        for name, column in own.items():
            setattr(c, name, column.ctypes.data)
        c.kinds[:] = KINDS
        c.most_ns, c.most_made = MOST_NS, MOST_MADE
        self._held = columns, own, logits_SV

    def go_on(self, inbox: Inbox, kinds: list[tuple[int, int]]) -> Pause:
        """Has the engine read plans and answer them, as `run.go_on` has it."""
        # Some columns of the sampler are others when they have grown.
        self._c.sampling = pointers(CSampling, self._sampler.columns)
        self._c.sampling.end_width = self._sampler.end_tokens.shape[1]
        return self._native.go_on(self._c, inbox, kinds)

    @property
    def made(self) -> list[list[int]]:
        """Of each step that the engine made last: see `Threads.were`."""
        made: list[list[int]] = self._made[: self._c.made_count].tolist()
        return made

    def left(self, number: int) -> tuple[Plan, int, int]:
        """The step whose masks the engine has left: its plan, how long it took to read that, and to compute it."""
        rows, tokens = self._c.rows, self._c.tokens
        counts, drafts, flags = (
            self._counts_R[:rows].copy(),
            self._drafts_R[:rows].copy(),
            self._flags_R[:rows].copy(),
        )
        is_given_T = np.ones(tokens, np.bool_)
        is_given_T[(np.cumsum(counts) - counts)[(flags & CONTINUE) != 0]] = False
        plan = Plan(
            number=number,
            released=np.zeros(0, np.uint32),
            slots=self._slots_R[:rows].copy(),
            flags=flags,
            positions=self._first_R[:rows].copy(),
            counts=counts,
            tokens=self._ids_T[:tokens][is_given_T].astype(np.uint32),
            new_block_counts=np.zeros(rows, np.int64),
            new_pages=np.zeros(0, np.uint32),
            prompt_targets=np.zeros(0, np.uint32),
            starts=None,
            drafts=drafts if drafts.any() else NO_NUMBERS,
        )
        return plan, self._c.prepare_ns, self._c.forward_ns
