"""What chooses tokens in tests of sampling: torch, or the CPU engine with one of the machine's instruction sets."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from client import DEVICE
from penstock.engine.native_sampling import NativeSampler
from penstock.engine.sampling import Sampler
from penstock.engine.slot_sampling import Drafts, Masks, Sampled, SlotSampling
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import CpuProgram, NoCpuEngine
from penstock_kernels.program import Kind, Layout, Operation, Program

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []

# The instruction set of the test that runs; empty: torch.
chosen = ""


@cache
def engine(instruction_set: str, threads: int = 2) -> CpuProgram:
    """A program of one embedding: choosing needs none of it."""
    program = Program()
    x = program.buffer("x", Layout.F32, 32)
    table = torch.zeros(16, 32, dtype=torch.bfloat16)
    program.body.append(Operation(Kind.EMBED, -1, x, columns=32, weight=table))
    return CpuProgram(program, instruction_set, threads)


class NativeInTorch(NativeSampler):
    """The CPU engine's sampler, told and asked in torch."""

    def sample(
        self,
        logits_SV: Any,
        slots: Any,
        positions: Any,
        previous_S: Any,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
    ) -> Sampled:
        """See SlotSampling."""
        if drafts is not None:
            drafts = copy.copy(drafts)
            drafts.drafts_S = drafts.drafts_S.numpy()
        of_rows = (np.asarray(slots), np.asarray(positions), previous_S.numpy())
        found = super().sample(logits_SV.contiguous().numpy(), *of_rows, masks, drafts)
        for name in ("tokens_S", "logprobs_S", "sound_S", "possible_S", "top_tokens_SN", "top_logprobs_SN"):
            setattr(found, name, _tensor(getattr(found, name)))
        for name in ("accepted_R", "last_tokens_R"):
            if found.verified is not None:
                setattr(found.verified, name, _tensor(getattr(found.verified, name)))
        return found

    def guess(self, *asked: Any) -> Tensor:  # type: ignore[override]
        """See SlotSampling."""
        return torch.from_numpy(super().guess(*asked))


def _tensor(numbers: Any) -> Tensor | None:
    return None if numbers is None else torch.from_numpy(numbers)


def make(max_slots: int, vocabulary: int, chooser: CpuProgram | None = None) -> SlotSampling:
    """A sampler that has this engine choose, or what the test is for."""
    if chooser is None and chosen:
        chooser = engine(chosen)
    if chooser is None:
        return Sampler(max_slots, vocabulary, torch.device("cpu"))
    return NativeInTorch(max_slots, vocabulary, chooser)


@pytest.fixture(params=["", *SETS], ids=lambda name: name or "torch")
def chooser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampler of a test, by each of them, but where it is told what to use."""
    monkeypatch.setattr("choosers.chosen", request.param)
