"""Runs an engine in the test's own process, plan by plan, and keeps the logits it computed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client import DEVICE, Numbering, make_plan, masks_of
from penstock import quantization
from penstock.adapters import read
from penstock.engine import draft_model
from penstock.engine.drafter import Drafter
from penstock.engine.engine import Engine
from penstock.engine.plan import MaskColumns
from penstock.engine.slots import Limits
from penstock.engine.tables import BLOCK_SIZE
from penstock.models.packed_cache import PackedCache
from penstock.parallel.group import ALONE, TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.plan_reader import PlanReader

NAN = 0x7FC0  # in bf16


class Driver:
    """An engine with its cache, and the numbering of one Run.

    While `forgets` is set, what is behind the window of every sequence is overwritten after each step: the router may give
    it away.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        max_slots: int = 8,
        max_step_tokens: int = 512,
        max_sequence_tokens: int = 256,
        blocks: int = 64,
        max_step_drafts: int = 32,
        snapshots: int = 4,
        draft_states: int | None = None,
        group: TensorGroup = ALONE,
        deterministic: bool = False,
        implementation: str = "auto",
        quantize: str = "",
        quantize_head: bool = False,
        draft: Path | None = None,
        drafter: Drafter | None = None,
        packed_cache: PackedCache | None = None,
        cache_dtype: str = "auto",
        adapters: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`adapters`: names and folders. `draft_states`: None: as many as there are drafts in a step. `draft`: the folder of a draft model; `drafter`: what else makes drafts."""
        config = quantization.with_what_is_beside(json.loads((folder / "config.json").read_text()), folder)
        self.engine = Engine(
            config,
            folder,
            dtype,
            torch.device(DEVICE),
            group,
            deterministic=deterministic,
            implementation=implementation,
            quantize=quantize,
            quantize_head=quantize_head,
            packed_cache=packed_cache,
            cache_dtype=cache_dtype,
            adapters=[read(name, Path(at)) for name, at in adapters],
        )
        if draft is not None:
            drafter = draft_model.load(
                draft,
                self.engine.model.config,
                folder,
                dtype,
                torch.device(DEVICE),
                quantize=quantize,
                packed_cache=packed_cache,
                cache_dtype=cache_dtype,
            )
            if deterministic:
                drafter.make_batch_invariant()
        self.engine.drafter = drafter
        self.tables = self.engine.tables(max_sequence_tokens)
        self.has_state = self.engine.model.config.has_state
        self.engine.allocate(
            Limits(
                max_slots=max_slots,
                max_step_tokens=max_step_tokens,
                max_sequence_tokens=max_sequence_tokens,
                pages=blocks * self.tables.count,
                tables=self.tables,
                block_size=BLOCK_SIZE,
                vocab_size=self.engine.model.config.vocab_size,
                has_encoder=self.engine.has_encoder,
                max_step_drafts=max_step_drafts,
                has_state=self.has_state,
                snapshots=snapshots if self.has_state else 0,
                draft_states=0
                if not self.has_state
                else max_step_drafts
                if draft_states is None
                else draft_states,
                has_drafter=drafter is not None,
                adapters=len(adapters),
                draft_trees=self.engine.verifies_trees,
            )
        )
        self.forgets = False
        self.begin()
        self.logits: list[Tensor] = []
        compute = self.engine.model.logits

        def keep(hidden_SE: Any, out_SV: Any) -> Any:
            self.logits.append(torch.as_tensor(compute(hidden_SE, out_SV)).cpu().clone())
            return out_SV

        self.engine.model.logits = keep  # type: ignore[method-assign]

    def begin(self) -> None:
        """A new Run: no slots."""
        self.engine.clear()
        self.numbering, self.reader = Numbering(), PlanReader()

    def step(
        self,
        rows: list[dict[str, Any]],
        released: list[int] | None = None,
        masks: list[list[int]] | None = None,
        copies: list[tuple[int, int]] | None = None,
    ) -> pb.StepResult:
        """Executes one plan; `logits` then holds what this step computed. `masks`: what each sample of masked rows may be."""
        plan = make_plan(rows, released, self.tables, self.has_state, copies)
        return self.execute(self.numbering.stamp(plan), masks)

    def execute(self, plan: pb.StepPlan, masks: list[list[int]] | None = None) -> pb.StepResult:
        """Executes a plan that was made elsewhere."""
        self.logits.clear()
        columns = None
        if masks is not None:
            made = masks_of(masks, self.engine.limits.vocab_size)
            columns = MaskColumns(*(np.frombuffer(column, "<u4") for column in made))
        result = self.engine.step(self.reader.read(plan), columns)
        repeats = self.engine.repeats
        if repeats is not None and not self.logits:  # they were made in the call that made the rest
            self.logits.append(torch.from_numpy(repeats.logits_SV.copy()))
        if self.forgets and self.tables.windows:
            self._overwrite_behind()
        return result

    def _overwrite_behind(self) -> None:
        tables, slots, cache = self.tables, self.engine.slots, self.engine.cache
        behind: set[int] = set()
        read: set[int] = set()
        for slot in np.flatnonzero(slots.alive):
            count = int(slots.block_counts[slot])
            pages = slots.pages[:, slot, :count]
            read.update(pages[: tables.full].ravel().tolist())
            for group in tables.windows:
                first = group.first_read(int(slots.filled[slot])) // BLOCK_SIZE
                of_group = pages[group.first : group.first + group.count]
                behind.update(of_group[:, :first].ravel().tolist())
                read.update(of_group[:, first:].ravel().tolist())
        for page in behind - read - {self.engine.limits.pages}:
            for tensor_NJD in cache.tensors_NJD:
                rows = slice(page * BLOCK_SIZE, (page + 1) * BLOCK_SIZE)
                tensor_NJD[rows] = torch.nan if isinstance(tensor_NJD, Tensor) else NAN

    def last_logits(self) -> Tensor:
        """Logits (S, V) of the rows that sampled."""
        return self.logits[0]

    def all_logits(self, rows: list[dict[str, Any]]) -> Tensor:
        """Executes one plan whose rows ask for prompt log probabilities, and returns the logits of all of them."""
        self.step(rows)
        return torch.cat(self.logits)
