"""Who makes drafts in the worker, as the engine and Prepare see it: a smaller model (`draft_model`), or heads that read what the
model has computed last.

The engine asks before a step's forward pass, and the model then verifies what it is given. A draft changes no text, so a drafter may
be wrong about everything but this: what it keeps of a block of tokens is in the block's pages, and there once the block is full,
since another sequence may begin behind it then.
"""

from typing import Protocol

from penstock.engine.columns import I64
from penstock.engine.plan import Plan
from penstock.engine.slot_sampling import SlotSampling
from penstock.engine.slots import SlotTable
from penstock.engine.tables import Tables
from penstock_kernels.program import Array

# Of --speculate-model, in messages.
FLAG = "--speculate-model"


class Drafter(Protocol):
    """Letters: D drafts of a step, R rows that sample, E width of the model that is served."""

    model_type: str
    parameters: int
    reads_hidden: bool
    """Whether `saw` is called."""
    max_positions: int
    """The longest sequence that it can draft for."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, each counted once."""

    def page_bytes(self, tables: Tables) -> int:
        """Bytes that it keeps in a page of the model's tables."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that it keeps of a token in all pages together."""

    def working_bytes(self, max_slots: int, max_step_tokens: int, longest: int) -> int:
        """What it needs in a step beside weights and pages, roughly and upwards."""

    def allocate(self, slots: SlotTable, sampler: SlotSampling) -> None:
        """Makes what it keeps for the limits of these slots, which the engine owns and applies plans to."""

    def release(self) -> None:
        """Gives back what `allocate` made."""

    def clear(self) -> None:
        """Forgets all slots: a new Run begins."""

    def copy_pages(self, copies: I64) -> None:
        """Copies what it keeps in pages, (source, target) of each (copies, 2), one after the other."""

    def set_threads(self, threads: int) -> None:
        """Threads that compute on a CPU from now on."""

    def draft(self, plan: Plan, last_sampled: Array) -> I64:
        """Of a plan that the slots have accepted, before the model runs: drafts (D,) on the host for its OWN_DRAFTS rows, in the order of the
        rows. `last_sampled` has the last token of every slot, as the engine has it.
        """

    def saw(self, slots: I64, hidden_RE: Array) -> None:
        """After a step: what the model's last layer gave for the token behind which each of these slots sampled last. The place for
        heads that draft from it (Medusa, EAGLE).
        """
