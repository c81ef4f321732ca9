"""Of which of a step's tokens logits are wanted: asked by the engine of whoever makes steps from plans. Must not import torch."""

from dataclasses import dataclass

import numpy as np

from penstock.engine.columns import I64
from penstock.engine.plan import SAMPLE, Plan


@dataclass(slots=True)
class LogitsIndices:
    """Which of a step's tokens are looked at."""

    sample_rows: I64  # rows of the plan with SAMPLE, each once more for each of its drafts
    sample_tokens: I64  # the token's index among T that each sample follows
    sample_positions: I64  # of the tokens that are sampled
    prompt_tokens: I64  # tokens whose prompt log probabilities are wanted, in the plan's order


def sampled_positions(plan: Plan) -> tuple[I64, I64]:
    """For every token that the plan samples its row, and how many of the row's tokens are behind the one it follows."""
    rows = np.flatnonzero(plan.flags & SAMPLE)
    if not len(plan.drafts):
        return rows, np.zeros(len(rows), np.int64)
    samples = plan.drafts[rows] + 1
    ends = np.cumsum(samples)
    return np.repeat(rows, samples), np.repeat(ends, samples) - np.arange(int(samples.sum())) - 1
