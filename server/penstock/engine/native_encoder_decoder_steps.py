"""From plans to what the CPU engine reads of an encoder-decoder, as `native_steps` does it for decoders: inputs apart from what decoders say.
Must not import torch.

Letters: U tokens that encoders read in this step, T tokens of decoders, R rows.
"""

import numpy as np

from penstock.engine.columns import I64
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.plan import CONTINUE, Plan
from penstock.engine.slots import SlotTable
from penstock.models.native_encoder_decoder import NativeEncoderDecoderStep, NativeReading


class NativeEncoderDecoderSteps:
    """Makes the steps of one model from plans that `SlotTable.apply` has accepted."""

    def __init__(self, slots: SlotTable) -> None:
        self.slots = slots

    def clear(self) -> None:
        """Nothing is kept from step to step."""

    def make(self, plan: Plan, last_sampled: I64) -> tuple[LogitsIndices, NativeEncoderDecoderStep]:
        """`last_sampled` has the last token of every slot."""
        size = self.slots.limits.block_size
        slots = plan.slots.astype(np.int64)
        read = self.slots.encoder_counts[slots]
        begins = -(-read // size) * size  # where the decoder's part begins
        fed = self._fed(plan, slots, last_sampled)
        first_fed = np.cumsum(plan.counts) - plan.counts
        # A row that begins at position 0 has all that its encoder reads, and padding behind it.
        encoding = np.flatnonzero(plan.positions == 0)
        reading = None
        if len(encoding):
            places = _ragged(first_fed[encoding], read[encoding])
            reading = NativeReading(fed[places], slots[encoding], read[encoding])
        # What is left of each row are its decoder's tokens.
        firsts = np.maximum(plan.positions, begins)
        counts = np.maximum(plan.positions + plan.counts - firsts, 0)
        some = np.flatnonzero(counts)
        ids = fed
        if reading is not None:
            ids = fed[_ragged((first_fed + firsts - plan.positions)[some], counts[some])]
        sample_rows, behind = sampled_positions(plan)
        # What an encoder reads has no probabilities.
        indices = LogitsIndices(
            sample_rows=sample_rows,
            sample_tokens=(np.cumsum(counts) - 1)[sample_rows] - behind,
            sample_positions=(firsts + counts)[sample_rows] - behind,
            prompt_tokens=np.zeros(0, np.int64),
        )
        return indices, NativeEncoderDecoderStep(
            reading=reading,
            ids_T=ids,
            slots_R=slots[some],
            first_R=firsts[some].astype(np.int64),
            counts_R=counts[some].astype(np.int64),
            pages=self.slots.pages,
            encoded_S=self.slots.encoder_counts,
        )

    def _fed(self, plan: Plan, slots: I64, last_sampled: I64) -> I64:
        """The tokens of all rows."""
        continuing = (plan.flags & CONTINUE) != 0
        if len(plan.tokens) == 0:
            return last_sampled[slots]
        fed = np.empty(int(plan.counts.sum()), np.int64)
        is_given = np.ones(len(fed), np.bool_)
        is_given[(np.cumsum(plan.counts) - plan.counts)[continuing]] = False
        fed[is_given], fed[~is_given] = plan.tokens, last_sampled[slots[continuing]]
        return fed


def _ragged(begins: I64, counts: I64) -> I64:
    """`counts` numbers from each of `begins` on."""
    ends = np.cumsum(counts)
    made: I64 = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)
    return made
