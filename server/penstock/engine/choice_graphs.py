"""The choice of tokens behind a graph of decodes, as CUDA graphs too: what every row asks for is sent as one column, and what was
chosen comes back as one.

Made by `StepGraphs` for its sizes. For rows that are greedy, or draw by temperature, top-k, top-p and min-p; what any other row of a step
asks for, the sampler does, kernel by kernel. Tokens are those of `Sampler`, to the last bit; log probabilities are the likeliest
token's, which `greedy` tells, and the difference of two logits.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import F64, I32, I64
from penstock.engine.slot_sampling import Sampled, SlotSampling

# What a graph of draws is sent of each row, fp64: its random number, temperature (0: greedy), top-k, top-p and min-p.
DRAWS = 5


class ChoiceGraphs:
    """How the tokens of decodes are chosen on the device that has their logits."""

    def __init__(self, last_sampled: Tensor, logits_SV: Tensor) -> None:
        """`last_sampled`: where a slot's token is kept, with a place more for rows that nobody has. `logits_SV`: where logits are."""
        self.last_sampled, self.logits_SV = last_sampled, logits_SV
        # The kernel needs no such memory; torch does, in whose place it is without a GPU, in tests.
        self.spare_SV = torch.empty_like(logits_SV if logits_SV.device.type == "cpu" else logits_SV[:0])

    def greedy(self, slots_R: Tensor) -> tuple[Callable[[], tuple[Tensor]], tuple[Tensor, ...]]:
        """What a graph computes and where it reads, for rows whose slots are found in that place."""
        return partial(self._greedy, slots_R), ()

    def drawn(self, slots_R: Tensor) -> tuple[Callable[[], tuple[Tensor]], tuple[Tensor, ...]]:
        """The same of rows that draw, or some of which do."""
        draws = np.ones((DRAWS, len(slots_R)))
        draws_5R = torch.from_numpy(draws).to(slots_R.device)
        return partial(self._drawn, slots_R, draws_5R), (draws_5R,)

    def _greedy(self, slots_R: Tensor) -> tuple[Tensor]:
        rows = len(slots_R)
        return (self._keep(slots_R, *ops.greedy(self.logits_SV[:rows], self.spare_SV[:rows])),)

    def _drawn(self, slots_R: Tensor, draws_5R: Tensor) -> tuple[Tensor]:
        rows = len(slots_R)
        logits_RV = self.logits_SV[:rows]
        likeliest_R, logprobs_R, sound_R = ops.greedy(logits_RV, self.spare_SV[:rows])
        uniform_R, temperatures_R, top_ks_R, top_ps_R, min_ps_R = draws_5R
        draws_R = temperatures_R > 0
        divisors_R1 = torch.where(draws_R, temperatures_R, 1.0).to(torch.float32).unsqueeze(1)
        scores_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)).div_(divisors_R1)
        limits = (top_ks_R.to(torch.int64), top_ps_R.to(torch.float32), min_ps_R.to(torch.float32))
        drawn_R = ops.choose(ops.keep_largest(scores_RV, *limits), uniform_R)
        tokens_R = torch.where(draws_R, drawn_R, likeliest_R)
        both_R2 = logits_RV.gather(1, torch.stack((tokens_R, likeliest_R), 1))
        logprobs_R = logprobs_R + (both_R2[:, 0] - both_R2[:, 1])
        return (self._keep(slots_R, tokens_R, logprobs_R, sound_R),)

    def _keep(self, slots_R: Tensor, tokens_R: Tensor, logprobs_R: Tensor, sound_R: Tensor) -> Tensor:
        """Leaves the tokens to the next step; and all that the host has to know, (3, R) int32."""
        self.last_sampled.index_copy_(0, slots_R.to(torch.int64), tokens_R)
        return torch.stack((tokens_R.to(torch.int32), logprobs_R.view(torch.int32), sound_R.to(torch.int32)))


def draws_of(sampler: SlotSampling, slots: I64, positions: I64, size: int) -> F64:
    """What a graph of draws is sent, (DRAWS, size). `positions`: of the tokens that are chosen."""
    rows = len(slots)
    draws = np.ones((DRAWS, size))
    draws[1] = 0
    draws[1, :rows], draws[2, :rows] = sampler.temperatures[slots], sampler.top_ks[slots]
    draws[3, :rows], draws[4, :rows] = sampler.top_ps[slots], sampler.min_ps[slots]
    draws[0, :rows] = ops.uniform(sampler.seeds[slots], positions)
    return draws


def chosen(told_3R: I32, top_counts: I64) -> Sampled:
    """Of what `ChoiceGraphs` made of these rows, once it is on the host."""
    rows = len(top_counts)
    tokens_R, logprobs_R, sound_R = told_3R[:, :rows]
    # The lowest byte of a number that is 0 or 1.
    is_sound_R = sound_R.view(np.bool_)[:: sound_R.itemsize]
    return Sampled(tokens_R, logprobs_R.view(np.float32), is_sound_R, None, top_counts, None, None)
