"""What chooses tokens in tests of sampling: torch, or the CPU engine with one of the machine's instruction sets."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from client import DEVICE
from penstock.engine.sampling import Sampled, Sampler
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import CpuProgram, NoCpuEngine
from penstock_kernels.program import Kind, Layout, Operation, Program

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []


@cache
def engine(instruction_set: str, threads: int = 2) -> CpuProgram:
    """A program of one embedding: choosing needs none of it."""
    program = Program()
    x = program.buffer("x", Layout.F32, 32)
    table = torch.zeros(16, 32, dtype=torch.bfloat16)
    program.body.append(Operation(Kind.EMBED, -1, x, columns=32, weight=table))
    return CpuProgram(program, instruction_set, threads)


def sample_by(made: CpuProgram, sampler: Sampler, logits_SV: Tensor, *of_rows: Any) -> Sampled:
    """As `Sampler.sample` does for a model that the CPU engine runs."""
    logits_SV = logits_SV.contiguous()
    masks = of_rows[3] if len(of_rows) > 3 else None
    summary = made.summarize(logits_SV, masks)
    return SAMPLE(sampler, logits_SV, *of_rows, summary=summary, draw=made.draw)  # type: ignore[misc]


SAMPLE = Sampler.sample


@pytest.fixture(params=["torch", *SETS])
def chooser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `Sampler.sample` of a test, by each of them, but where it is told what to use."""
    if request.param == "torch":
        return
    made = engine(request.param)

    def sample(
        sampler: Sampler,
        logits_SV: Tensor,
        slots: Any,
        positions: Any,
        previous_S: Tensor,
        *of_rows: Any,
        **others: Any,
    ) -> Sampled:
        if "summary" in others:
            return SAMPLE(sampler, logits_SV, slots, positions, previous_S, *of_rows, **others)
        return sample_by(
            made, sampler, logits_SV, np.asarray(slots), positions, previous_S, *of_rows, **others
        )

    monkeypatch.setattr(Sampler, "sample", sample)
