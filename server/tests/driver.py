"""Runs an engine in the test's own process, plan by plan, and keeps the logits it computed."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from client import DEVICE, Numbering, make_plan
from penstock.engine import Engine
from penstock.kv_cache import BLOCK_SIZE
from penstock.parallel import ALONE, TensorGroup
from penstock.plan import PlanReader
from penstock.proto import penstock_pb2 as pb
from penstock.slots import Limits


class Driver:
    """An engine with its cache, and the numbering of one Run."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        max_slots: int = 8,
        max_step_tokens: int = 512,
        max_sequence_tokens: int = 256,
        blocks: int = 64,
        group: TensorGroup = ALONE,
        deterministic: bool = False,
        implementation: str = "auto",
    ) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.engine = Engine(
            config,
            folder,
            dtype,
            torch.device(DEVICE),
            group,
            deterministic=deterministic,
            implementation=implementation,
        )
        self.engine.allocate(
            Limits(
                max_slots=max_slots,
                max_step_tokens=max_step_tokens,
                max_sequence_tokens=max_sequence_tokens,
                blocks=blocks,
                block_size=BLOCK_SIZE,
                vocab_size=self.engine.model.config.vocab_size,
                has_encoder=self.engine.has_encoder,
            )
        )
        self.begin()
        self.logits: list[Tensor] = []
        compute = self.engine.model.logits

        def keep(hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
            self.logits.append(compute(hidden_SE, out_SV).cpu().clone())
            return out_SV

        self.engine.model.logits = keep  # type: ignore[method-assign]

    def begin(self) -> None:
        """A new Run: no slots."""
        self.engine.clear()
        self.numbering, self.reader = Numbering(), PlanReader()

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> pb.StepResult:
        """Executes one plan; `logits` then holds what this step computed."""
        return self.execute(self.numbering.stamp(make_plan(rows, released)))

    def execute(self, plan: pb.StepPlan) -> pb.StepResult:
        """Executes a plan that was made elsewhere."""
        self.logits.clear()
        return self.engine.step(self.reader.read(plan))

    def last_logits(self) -> Tensor:
        """Logits (S, V) of the rows that sampled."""
        return self.logits[0]

    def all_logits(self, rows: list[dict[str, Any]]) -> Tensor:
        """Executes one plan whose rows ask for prompt log probabilities, and returns the logits of all of them."""
        self.step(rows)
        return torch.cat(self.logits)
