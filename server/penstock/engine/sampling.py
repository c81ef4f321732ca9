"""Chooses the tokens of a step with torch, for all rows at once, and tells their log probabilities.

Called by the engine with the logits of the rows that sample, of models that the CPU engine does not run, for which `native_sampling` is.
Holds for slots with penalties the counts of their tokens, on the device. What is made of logits on the way to a token is made of so many
rows at a time that its memory has a bound (`step_memory`). The order is that of Hugging
Face transformers (`GenerationMixin._get_logits_processor`): bias, penalties, tokens that would end it too soon, the
grammar's mask, temperature, top-k, top-p, min-p, typical-p, watermark, choice. TGI applies the watermark first.
"""

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import F32, I32, I64, Column
from penstock.engine.device_copies import to_device
from penstock.engine.slot_sampling import Drafts, Masks, Sampled, SlotSampling, Verified, upwards
from penstock.engine.step_memory import rows_at_once
from penstock_kernels.program import Array


class Sampler(SlotSampling):
    """Sampling parameters of all slots, and token counts on a device."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device, max_drafts: int = 0) -> None:
        super().__init__(max_slots, vocab_size)
        self.device = device
        most = max_slots + max_drafts
        self._logprobs_SV = torch.empty((most, vocab_size), dtype=torch.float32, device=device)
        self._rows_at_once = rows_at_once(device, vocab_size)
        self._prompt_RV = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._output_RV = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def sample(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
    ) -> Sampled:
        """See SlotSampling; all tensors are on the device."""
        top_counts = self.top_counts[slots]
        if masks is None and drafts is None and self.are_plain[slots].all():
            plain = ops.greedy(logits_SV, self._logprobs_SV[: len(slots)])
            return Sampled(*plain, None, top_counts, None, None)
        tokens_S, possible_S = self._draw(logits_SV, slots, positions, previous_S, masks, drafts)
        if masks is not None and len(masks.only[0]):
            tokens_S.index_copy_(0, *map(self._on_device, masks.only))
        logprobs_SV = ops.log_softmax(logits_SV, self._logprobs_SV[: len(slots)])
        verified = None if drafts is None else self._verify(tokens_S, drafts, drafts.closed(masks))
        self._count(slots, tokens_S, masks, verified)
        sampled = Sampled(
            tokens_S=tokens_S,
            logprobs_S=logprobs_SV.gather(1, tokens_S.unsqueeze(1)).squeeze(1),
            sound_S=logits_SV.sum(-1).isfinite(),
            possible_S=possible_S,
            top_counts=top_counts,
            top_tokens_SN=None,
            top_logprobs_SN=None,
            verified=verified,
        )
        most = int(top_counts.max(initial=0))
        if most:
            wanting = self._on_device(np.flatnonzero(top_counts))
            tokens, logprobs = [], []
            for some in torch.split(wanting, self._rows_at_once):
                tokens.append(most_likely(logits_SV.index_select(0, some), most))
                logprobs.append(logprobs_SV.index_select(0, some).gather(1, tokens[-1]))
            sampled.top_tokens_SN, sampled.top_logprobs_SN = torch.cat(tokens), torch.cat(logprobs)
        return sampled

    def process(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """What tokens are chosen from, (S, V) fp32: of greedy rows the largest, of others by its softmax. And (S,) bool,
        which rows have a token left; None: all. The logits stay as they are; arguments as in `sample`.
        """
        changed_SV, possible_S = self._change(logits_SV, slots, positions, masks, drafts)
        return self._narrow(changed_SV, slots, previous_S), possible_S

    def tell(
        self, logits_TV: Tensor, targets_T: I64, most: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See SlotSampling."""
        total_T1 = logits_TV.logsumexp(-1, keepdim=True)
        chosen_T1 = logits_TV.gather(1, self._on_device(targets_T).unsqueeze(1))
        logprobs_T = (chosen_T1 - total_T1).squeeze(1)
        if not most:
            return logprobs_T, None, None
        tokens_TN = torch.cat(
            [most_likely(some_TV, most) for some_TV in torch.split(logits_TV, self._rows_at_once)]
        )
        return logprobs_T, tokens_TN, logits_TV.gather(1, tokens_TN) - total_T1

    def guess(self, logits_SV: Array, slots: I64, positions: I64, previous_S: Array) -> Tensor:
        """See SlotSampling; of numpy or torch, as the other model has it."""
        logits_SV, previous_S = torch.as_tensor(logits_SV), torch.as_tensor(previous_S)
        return self._draw(logits_SV, slots, positions, previous_S, None, None)[0]

    def suppose(self, slots: I64, tokens_S: Array, times: int) -> None:
        """See SlotSampling."""
        counted = np.flatnonzero(self.count_rows[slots] >= 0)
        if len(counted):
            tokens_S = torch.as_tensor(tokens_S)
            rows, chosen = self._on_device(self.count_rows[slots[counted]]), self._on_device(counted)
            more = torch.full((len(counted),), times, dtype=torch.int32, device=self.device)
            self._output_RV.index_put_((rows, tokens_S.index_select(0, chosen)), more, accumulate=True)

    def _draw(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None,
        drafts: Drafts | None,
    ) -> tuple[Tensor, Tensor | None]:
        """A token for each row of logits, and which rows have a token left; None: all."""
        if masks is None and self.are_plain[slots].all():
            return ops.argmax(logits_SV), None
        parts = []
        for begin in range(0, len(slots), self._rows_at_once):
            some = slice(begin, min(begin + self._rows_at_once, len(slots)))
            own = None if masks is None else masks.within(some)
            parts.append(
                self._draw_some(
                    logits_SV[some], slots[some], positions[some], previous_S[some], own, drafts, begin
                )
            )
        if len(parts) == 1:
            return parts[0]
        tokens_S = torch.cat([tokens for tokens, _ in parts])
        if all(possible is None for _, possible in parts):
            return tokens_S, None
        every = [
            torch.ones_like(tokens, dtype=torch.bool) if possible is None else possible
            for tokens, possible in parts
        ]
        return tokens_S, torch.cat(every)

    def _draw_some(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None,
        drafts: Drafts | None,
        begin: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Of the samples from `begin` on; `drafts` are of all."""
        changed_SV, possible_S = self._change(logits_SV, slots, positions, masks, drafts, begin)
        scores_SV = self._narrow(changed_SV, slots, previous_S)
        drawn = np.flatnonzero(self.temperatures[slots] > 0)
        if len(drawn) == len(slots):
            return self._choose(scores_SV, slots, positions), possible_S
        tokens_S = ops.argmax(scores_SV)
        if len(drawn):
            rows = self._on_device(drawn)
            drawn_S = self._choose(scores_SV.index_select(0, rows), slots[drawn], positions[drawn])
            tokens_S.index_copy_(0, rows, drawn_S)
        return tokens_S, possible_S

    def _narrow(self, scores_SV: Tensor, slots: I64, previous_S: Tensor) -> Tensor:
        """Changed logits after temperature, truncation and watermark."""
        drawn = np.flatnonzero(self.temperatures[slots] > 0)
        if len(drawn) == len(slots):
            scores_SV = self._truncate(scores_SV, slots)
        elif len(drawn):
            rows = self._on_device(drawn)
            drawn_SV = self._truncate(scores_SV.index_select(0, rows), slots[drawn])
            scores_SV = scores_SV.index_copy(0, rows, drawn_SV)
        marked = np.flatnonzero(self.watermark_deltas[slots] > 0)
        if len(marked):
            rows, chosen = self._on_device(marked), slots[marked]
            marked_SV = ops.add_watermark(
                scores_SV.index_select(0, rows),
                previous_S.index_select(0, rows),
                self.watermark_greens[chosen],
                self._column(self.watermark_deltas[chosen]),
            )
            scores_SV = scores_SV.index_copy(0, rows, marked_SV)
        return scores_SV

    def _change(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        masks: Masks | None,
        drafts: Drafts | None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits after bias, penalties, what may not end yet and masks, and which rows have a token left. `begin`: among the samples that
        `drafts` is of.
        """
        penalized = np.flatnonzero(self.count_rows[slots] >= 0)
        biased = (
            [row for row, slot in enumerate(slots.tolist()) if slot in self.biases] if self.biases else []
        )
        held = np.flatnonzero(positions < self.first_ends[slots])
        if not (len(penalized) or biased or len(held)):
            return self._mask(logits_SV, masks), None
        changed_SV = logits_SV.clone()
        if biased:
            pairs = [self.biases[int(slots[row])] for row in biased]
            lengths = [len(tokens) for tokens, _ in pairs]
            rows = self._on_device(np.array(biased, np.int64))
            biased_SV = ops.add_bias(
                changed_SV.index_select(0, rows),
                self._on_device(np.repeat(np.arange(len(biased)), lengths)),
                self._on_device(np.concatenate([tokens for tokens, _ in pairs])),
                self._on_device(np.concatenate([values for _, values in pairs])),
            )
            changed_SV.index_copy_(0, rows, biased_SV)
        if len(penalized):
            chosen = slots[penalized]
            rows, counts = self._on_device(penalized), self._on_device(self.count_rows[chosen])
            output_SV = self._output_RV.index_select(0, counts)
            if drafts is not None:
                places, before = drafts.before(begin + penalized)
                tokens = drafts.drafts_S.index_select(0, self._on_device(before))
                ops.count_tokens(output_SV, self._on_device(places), tokens)
            penalized_SV = ops.penalize(
                changed_SV.index_select(0, rows),
                self._prompt_RV.index_select(0, counts),
                output_SV,
                self._column(self.repetitions[chosen]),
                self._column(self.frequencies[chosen]),
                self._column(self.presences[chosen]),
            )
            changed_SV.index_copy_(0, rows, penalized_SV)
        if len(held):
            rows, tokens_SM = self._on_device(held), self._on_device(self.end_tokens[slots[held]])
            changed_SV.index_put_((rows.unsqueeze(1), tokens_SM), changed_SV.new_full((), -torch.inf))
        changed_SV = self._mask(changed_SV, masks)
        if not (biased or len(held)):
            return changed_SV, None
        return changed_SV, changed_SV.amax(-1) > -torch.inf

    def _mask(self, logits_SV: Tensor, masks: Masks | None) -> Tensor:
        """Logits without what the masks forbid."""
        if masks is None or not len(masks.rows):
            return logits_SV
        words_MW = self._on_device(masks.words_MW)
        if len(masks.rows) == len(logits_SV):
            return ops.mask_tokens(logits_SV, words_MW)
        rows = self._on_device(masks.rows)
        return logits_SV.index_copy(0, rows, ops.mask_tokens(logits_SV.index_select(0, rows), words_MW))

    def _truncate(self, logits_SV: Tensor, slots: I64) -> Tensor:
        """Logits of rows that draw, over their temperature, with those at -inf that truncation removes."""
        largest_S1 = logits_SV.amax(-1, keepdim=True)
        logits_SV = (logits_SV - largest_S1).div_(self._column(self.temperatures[slots]))
        top_ks, top_ps, min_ps = self.top_ks[slots], self.top_ps[slots], self.min_ps[slots]
        has_top_k, has_top_p, has_min_p = top_ks < self.vocab_size, top_ps < 1, min_ps > 0
        truncated = np.flatnonzero(has_top_k | has_top_p | has_min_p)
        if len(truncated):
            limits = (
                self._on_device(top_ks[truncated]) if has_top_k.any() else None,
                self._on_device(top_ps[truncated]) if has_top_p.any() else None,
                self._on_device(min_ps[truncated]) if has_min_p.any() else None,
            )
            if len(truncated) == len(slots):
                logits_SV = ops.keep_largest(logits_SV, *limits)
            else:
                rows = self._on_device(truncated)
                kept_SV = ops.keep_largest(logits_SV.index_select(0, rows), *limits)
                logits_SV.index_copy_(0, rows, kept_SV)
        typical = np.flatnonzero(self.typical_ps[slots] < 1)
        if len(typical) == len(slots):
            logits_SV = ops.keep_typical(logits_SV, self._on_device(self.typical_ps[slots]))
        elif len(typical):
            rows = self._on_device(typical)
            wanted_S = self._on_device(self.typical_ps[slots[typical]])
            logits_SV.index_copy_(0, rows, ops.keep_typical(logits_SV.index_select(0, rows), wanted_S))
        return logits_SV

    def _choose(self, scores_SV: Tensor, slots: I64, positions: I64) -> Tensor:
        uniform_S = self._on_device(ops.uniform(self.seeds[slots], positions))
        return ops.choose(scores_SV, uniform_S)

    def _verify(self, tokens_S: Tensor, drafts: Drafts, closed: I64) -> Verified:
        drafts_S = drafts.drafts_S
        if len(closed):
            drafts_S = drafts_S.index_fill(0, self._on_device(closed - 1), -1)
        if drafts.parents_S is not None:
            return self._verify_trees(tokens_S, drafts, drafts_S, drafts.parents_S)
        firsts_R, counts_R = self._on_device(drafts.firsts_R), self._on_device(drafts.counts_R)
        most = int(drafts.counts_R.max())
        accepted_R = ops.accept_drafts(tokens_S, drafts_S, firsts_R, counts_R, most)
        last_tokens_R = tokens_S.index_select(0, firsts_R + accepted_R)
        has_drafts_R = drafts.counts_R > 1
        return Verified(accepted_R, last_tokens_R, has_drafts_R, drafts.offsets_S, drafts.rows_S)

    def _verify_trees(self, tokens_S: Tensor, drafts: Drafts, drafts_S: Tensor, parents_S: I64) -> Verified:
        deepest = sum(1 for _ in upwards(np.arange(len(parents_S)), parents_S))
        kept_S = ops.accept_draft_trees(tokens_S, drafts_S.roll(1), self._on_device(parents_S), deepest)
        rows_S = self._on_device(drafts.rows_S)
        kept_R = torch.zeros(len(drafts.counts_R), dtype=torch.int64, device=self.device)
        lasts_R = kept_R.clone()
        kept_R.index_add_(0, rows_S, kept_S.to(torch.int64))
        # A draft comes behind the one that it follows: the last that is kept ends the path.
        samples_S = torch.arange(len(tokens_S), device=self.device) * kept_S
        lasts_R.scatter_reduce_(0, rows_S, samples_S, "amax")
        last_tokens_R = tokens_S.index_select(0, lasts_R)
        has_drafts_R = drafts.counts_R > 1
        return Verified(kept_R - 1, last_tokens_R, has_drafts_R, drafts.offsets_S, drafts.rows_S, kept_S)

    def _count(self, slots: I64, tokens_S: Tensor, masks: Masks | None, verified: Verified | None) -> None:
        is_counted = self.count_rows[slots] >= 0
        if masks is not None:
            is_counted[masks.skipped] = False
        counted = np.flatnonzero(is_counted)
        if len(counted):
            tokens_S = torch.as_tensor(tokens_S)
            rows, chosen = self._on_device(self.count_rows[slots[counted]]), self._on_device(counted)
            is_kept_S = None
            if verified is not None and verified.kept_S is not None:
                is_kept_S = verified.kept_S.index_select(0, chosen)
            elif verified is not None:
                accepted_S = verified.accepted_R.index_select(0, self._on_device(verified.rows_S[counted]))
                is_kept_S = self._on_device(verified.offsets_S[counted]) <= accepted_S
            ops.count_tokens(self._output_RV, rows, tokens_S.index_select(0, chosen), is_kept_S)

    def _add_rows(self, more: int) -> None:
        rows = torch.zeros((more, self.vocab_size), dtype=torch.int32, device=self.device)
        self._prompt_RV = torch.cat((self._prompt_RV, rows))
        self._output_RV = torch.cat((self._output_RV, rows))

    def _set_counts(self, row: int, prompt_V: I32, output_V: I32) -> None:
        for counts_RV, counts_V in ((self._prompt_RV, prompt_V), (self._output_RV, output_V)):
            counts_RV[row].copy_(to_device(counts_V, self.device))

    def _on_device(self, column: Column) -> Tensor:
        return to_device(column, self.device)

    def _column(self, column: F32) -> Tensor:
        return self._on_device(column).unsqueeze(1)


def most_likely(logits_SV: Tensor, count: int) -> Tensor:
    """The ids (S, count) of the largest of each row of fp32 logits (S, V), largest first; ties by the lower id."""
    # One integer per token, all of them different: the bits of the logit, ordered as the numbers are, above the id.
    # Adding zero makes -0.0 to 0.0, which are equal.
    bits_SV = (logits_SV + 0.0).view(torch.int32)
    ordered_SV = torch.where(bits_SV < 0, bits_SV ^ 0x7FFFFFFF, bits_SV).long()
    ids_V = torch.arange(logits_SV.shape[1], device=logits_SV.device)
    return ((ordered_SV << 32) - ids_V).topk(count, dim=-1).indices
