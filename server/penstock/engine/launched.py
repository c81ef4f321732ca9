"""A step on its way: what the device was given, what sampling still needs of it, and what became of its drafts.

Made and finished by the engine; the service only keeps it in between. Must not import torch.
"""

from dataclasses import dataclass, field

import numpy as np

from penstock.engine.arrays import Event
from penstock.engine.columns import I64, Bools
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.native_repeats import Repeats
from penstock.engine.plan import Plan
from penstock.engine.slot_sampling import NO_SAMPLES, Drafts, Sampled
from penstock_kernels.program import Array


@dataclass(slots=True)
class PromptAnswers:
    """Of the P entries of a plan's `prompt_targets`."""

    logprobs_P: Array
    top_counts: I64  # (P,) on the host: alternatives wanted of each
    top_tokens_PN: Array | None  # N: the most that one wants; None when none does
    top_logprobs_PN: Array | None


@dataclass(slots=True)
class Unsampled:
    """What sampling needs of a step."""

    indices: LogitsIndices
    ids_T: Array
    hidden_TE: Array | None  # None: nobody asks for it
    logits_SV: Array | None  # of the rows that sample, on the ranks of the last stage


@dataclass(slots=True)
class Verdict:
    """What became of a step's drafts. On the host once the step is done."""

    indices: LogitsIndices
    drafts: Drafts
    accepted_R: Array  # of each row that samples
    kept_S: Array | None  # of a plan with trees: samples behind accepted drafts, or none

    def is_kept_S(self) -> Bools:
        """Whether each sample is behind accepted drafts, or none."""
        if self.kept_S is not None:
            return np.asarray(self.kept_S, np.bool_)
        kept: Bools = self.drafts.offsets_S <= np.asarray(self.accepted_R)[self.drafts.rows_S]
        return kept

    def accepted_V(self) -> I64:
        """Drafts, of each row that has some."""
        accepted: I64 = np.asarray(self.accepted_R)[self.drafts.counts_R > 1]
        return accepted


@dataclass(slots=True)
class Launched:
    """A step whose work has been given to the device. What was computed is on the host once `done` is reached."""

    plan: Plan
    sampled: Sampled | None
    prompt: PromptAnswers | None
    done: Event | None
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    began: int = 0  # in nanoseconds since 1970, where the step's span is wanted
    # The model has run, and the masks for sampling are awaited.
    unsampled: Unsampled | Repeats | None = None
    rows_S: I64 = field(default_factory=lambda: NO_SAMPLES)  # of the plan, of each that `sampled` has
    # What became of drafts, of a step that was not taken in one call; None: it has none, or another stage knows.
    verdict: Verdict | None = None
    accepted_V: I64 | None = None  # drafts, of each row that has some; `sampled` has only what follows those
    draft_ns: int = 0  # of the drafter
