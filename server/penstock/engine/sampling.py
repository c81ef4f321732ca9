"""Chooses the tokens of a step, for all rows at once, and tells their log probabilities.

Called by the engine with the logits of the rows that sample. Holds what a sequence is sampled with, by
slot, and for slots with penalties the counts of their tokens, on the device. The order is that of Hugging
Face transformers (`GenerationMixin._get_logits_processor`): bias, penalties, tokens that would end it too soon, the
grammar's mask, temperature, top-k, top-p, min-p, typical-p, watermark, choice. TGI applies the watermark first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.plan import F32, I64, U64, Bools, Starts

NO_TOKENS: I64 = np.zeros(0, np.int64)
NO_BIASES: F32 = np.zeros(0, np.float32)
# What is read from a plan, for all rows at once.
Column = npt.NDArray[np.int64] | npt.NDArray[np.int32] | npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(slots=True)
class Sampled:
    """One entry per token sampled: of each row that samples, one more than it has drafts."""

    tokens_S: Tensor  # int64
    logprobs_S: Tensor  # fp32
    sound_S: Tensor  # bool: the logits were numbers
    possible_S: Tensor | None  # bool: a token was left to choose; None: surely
    top_counts: I64  # always on the host: alternatives wanted of each row
    top_tokens_SN: Tensor | None
    top_logprobs_SN: Tensor | None
    verified: "Verified | None" = None  # of a step with drafts


@dataclass(slots=True)
class Verified:
    """What became of a step's drafts, by row that samples (R)."""

    accepted_R: Tensor  # int64
    last_tokens_R: Tensor  # int64: behind the last accepted draft
    has_drafts_R: npt.NDArray[np.bool_]  # on the host, as all that follows
    offsets_S: I64  # of each sample in its row
    rows_S: I64  # its row
    kept_S: Tensor | None = (
        None  # bool: samples behind accepted drafts, or none; None: the first of each row, all are chains
    )


class Drafts:
    """The drafts of a step: which samples belong to one row, and what was guessed in their place."""

    def __init__(
        self,
        counts_R: I64,
        drafts_S: Tensor,
        are_forced_R: Bools | None = None,
        parents_S: I64 | None = None,
    ) -> None:
        """`counts_R`: samples of each row that samples, one more than its drafts. `drafts_S` (S,) int64, on the device:
        the draft behind which the next sample of the row is, any for the last of a row; of a chain each sample is compared with
        its own. Of rows whose drafts are forced the draft is what is sampled; None: of none. `parents_S`: of each sample
        the one in whose place the draft before it was guessed, -1 of a row's first; None: all rows are chains.
        """
        self.parents_S = parents_S
        ends = np.cumsum(counts_R)
        self.counts_R, self.firsts_R, self.drafts_S = counts_R, ends - counts_R, drafts_S
        self.rows_S = np.repeat(np.arange(len(counts_R)), counts_R)
        self.offsets_S = np.arange(len(self.rows_S)) - self.firsts_R[self.rows_S]
        self.forced: I64 = np.zeros(0, np.int64)  # samples that are their draft
        if are_forced_R is not None and are_forced_R.any():
            has_draft_S = self.offsets_S + 1 < counts_R[self.rows_S]
            self.forced = np.flatnonzero(are_forced_R[self.rows_S] & has_draft_S)

    def before(self, samples: I64) -> tuple[I64, I64]:
        """Pairs of one of these samples, by its place among them, and the place among all of a draft fed before it."""
        if self.parents_S is not None:
            return self._on_paths(samples, self.parents_S)
        offsets = self.offsets_S[samples]
        places = np.repeat(np.arange(len(samples)), offsets)
        behind = np.arange(len(places)) - np.repeat(np.cumsum(offsets) - offsets, offsets)
        return places, self.firsts_R[self.rows_S[samples]][places] + behind

    def _on_paths(self, samples: I64, parents_S: I64) -> tuple[I64, I64]:
        """What `before` answers where some rows are trees."""
        places, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for here, at in _upwards(samples, parents_S):
            places.append(here)
            before.append(at - 1)  # `drafts_S` has a draft one sample before the one behind it
        return np.concatenate(places), np.concatenate(before)


def _upwards(samples: I64, parents_S: I64) -> Iterator[tuple[I64, I64]]:
    """Samples that are behind a draft, by their place among these, then the samples in whose places those drafts were guessed, and so on."""
    here, at = np.arange(len(samples)), samples
    while True:
        is_draft = parents_S[at] >= 0
        here, at = here[is_draft], at[is_draft]
        if len(at) == 0:
            return
        yield here, at
        at = parents_S[at]


class Masks:
    """Which tokens some of the rows may sample."""

    def __init__(self, rows: I64, words_MW: npt.NDArray[np.int32]) -> None:
        """`rows` (M,) are indices among the rows that sample, rising; words as in the contract's Masks."""
        has_tokens = words_MW.any(axis=1)
        is_whole = bool(has_tokens.all())
        self.rows = rows if is_whole else rows[has_tokens]
        self.words_MW = words_MW if is_whole else words_MW[has_tokens]
        # Their masks are zeros: they sample nothing.
        self.skipped: I64 = rows[:0] if is_whole else rows[~has_tokens]


class Sampler:
    """Sampling parameters and token counts of all slots."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device, max_drafts: int = 0) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.seeds: U64 = np.zeros(max_slots, np.uint64)
        self.temperatures: F32 = np.zeros(max_slots, np.float32)
        self.top_ks: I64 = np.full(max_slots, vocab_size, np.int64)
        self.top_ps: F32 = np.ones(max_slots, np.float32)
        self.min_ps: F32 = np.zeros(max_slots, np.float32)
        self.typical_ps: F32 = np.ones(max_slots, np.float32)
        self.furthest: F32 = np.full(
            max_slots, np.inf, np.float32
        )  # logits below the largest that min-p keeps
        self.repetitions: F32 = np.ones(max_slots, np.float32)
        self.frequencies: F32 = np.zeros(max_slots, np.float32)
        self.presences: F32 = np.zeros(max_slots, np.float32)
        self.top_counts: I64 = np.zeros(max_slots, np.int64)
        self.count_rows: I64 = np.full(max_slots, -1, np.int64)  # rows of the counts; -1: none
        self.biases: dict[int, tuple[I64, F32]] = {}
        self.first_ends: I64 = np.zeros(max_slots, np.int64)  # end_tokens are held back below this position
        self.end_tokens: I64 = np.zeros((max_slots, 1), np.int64)  # to the full width the same once more
        self.watermark_deltas: F32 = np.zeros(max_slots, np.float32)
        self.watermark_greens: I64 = np.zeros(max_slots, np.int64)
        most = max_slots + max_drafts
        self._logprobs_SV = torch.empty((most, vocab_size), dtype=torch.float32, device=device)
        self._free_rows: list[int] = []
        self._prompt_RV = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._output_RV = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def clear(self) -> None:
        """Forgets all slots."""
        for slot in np.flatnonzero(self.count_rows >= 0):
            self._free_counts(int(slot))
        self.biases.clear()

    def release(self, slots: I64) -> None:
        """Frees what the slots hold on the device."""
        for slot in slots[self.count_rows[slots] >= 0]:
            self._free_counts(int(slot))
        for slot in self.biases.keys() & set(slots.tolist()):
            del self.biases[slot]

    def start(self, slots: I64, starts: Starts) -> None:
        """Takes over what new sequences in these slots are sampled with."""
        self.release(slots)
        self.seeds[slots] = starts.seeds
        self.temperatures[slots] = starts.temperatures
        self.top_ks[slots] = np.where(starts.top_ks == 0, self.vocab_size, starts.top_ks)
        self.top_ps[slots] = starts.top_ps
        self.min_ps[slots] = starts.min_ps
        with np.errstate(divide="ignore"):
            self.furthest[slots] = np.abs(np.log(starts.min_ps))
        self.typical_ps[slots] = starts.typical_ps
        self.repetitions[slots] = starts.repetition_penalties
        self.frequencies[slots] = starts.frequency_penalties
        self.presences[slots] = starts.presence_penalties
        self.top_counts[slots] = np.minimum(starts.top_tokens, self.vocab_size)
        penalized = (
            (starts.repetition_penalties != 1)
            | (starts.frequency_penalties != 0)
            | (starts.presence_penalties != 0)
        )
        ends = np.cumsum(starts.history_counts, dtype=np.int64)
        for entry in np.flatnonzero(penalized):
            history = starts.history[ends[entry] - int(starts.history_counts[entry]) : ends[entry]].astype(
                np.int64
            )
            self._take_counts(int(slots[entry]), history, int(starts.history_outputs[entry]))
        bias_ends = np.cumsum(starts.bias_counts, dtype=np.int64)
        for entry in np.flatnonzero(starts.bias_counts):
            part = slice(bias_ends[entry] - int(starts.bias_counts[entry]), bias_ends[entry])
            self.biases[int(slots[entry])] = (starts.bias_tokens[part].astype(np.int64), starts.biases[part])
        self.watermark_deltas[slots] = starts.watermark_deltas
        self.watermark_greens[slots] = starts.watermark_greens
        self.first_ends[slots] = starts.first_ends
        end_ends = np.cumsum(starts.end_counts, dtype=np.int64)
        for entry in np.flatnonzero(starts.end_counts):
            part = slice(end_ends[entry] - int(starts.end_counts[entry]), end_ends[entry])
            self._hold_back(int(slots[entry]), starts.end_tokens[part].astype(np.int64))

    def sample(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
        summary: ops.LogitsSummary | None = None,
        draw: ops.DrawRows | None = None,
    ) -> Sampled:
        """A token for each row of logits (S, V) fp32; `positions` are those of the tokens chosen, and
        `previous` (S,) int64 the tokens before them, on the device. The token of a row that samples nothing is any.

        With `drafts` a slot may have several rows of logits. Each is sampled as if what was fed before it were its text,
        and only what follows accepted drafts is counted for penalties. `summary`: of these logits and masks, where the model's
        backend makes one; `draw`: with that, what chooses tokens in its place.
        """
        tokens_S, possible_S = self._draw(
            logits_SV, slots, positions, previous_S, masks, drafts, summary, draw
        )
        if drafts is not None and len(drafts.forced):
            forced = self._on_device(drafts.forced)
            tokens_S.index_copy_(0, forced, drafts.drafts_S.index_select(0, forced))
        chosen_S1 = tokens_S.unsqueeze(1)
        if summary is None:
            logprobs_SV = ops.log_softmax(logits_SV, self._logprobs_SV[: len(slots)])
            logprobs_S1, sound_S = logprobs_SV.gather(1, chosen_S1), logits_SV.sum(-1).isfinite()
        else:
            logprobs_S1 = summary.logprobs(logits_SV.gather(1, chosen_S1))
            sound_S = summary.totals_S.isfinite()
        verified = None if drafts is None else self._verify(tokens_S, drafts)
        self._count(slots, tokens_S, masks, verified)
        sampled = Sampled(
            tokens_S=tokens_S,
            logprobs_S=logprobs_S1.squeeze(1),
            sound_S=sound_S,
            possible_S=possible_S,
            top_counts=self.top_counts[slots],
            top_tokens_SN=None,
            top_logprobs_SN=None,
            verified=verified,
        )
        most = int(sampled.top_counts.max(initial=0))
        if most:
            wanting = self._on_device(np.flatnonzero(sampled.top_counts))
            wanting_SV = logits_SV.index_select(0, wanting)
            sampled.top_tokens_SN = most_likely(wanting_SV, most)
            if summary is None:
                sampled.top_logprobs_SN = logprobs_SV.index_select(0, wanting).gather(
                    1, sampled.top_tokens_SN
                )
            else:
                sampled.top_logprobs_SN = summary.logprobs(
                    wanting_SV.gather(1, sampled.top_tokens_SN), wanting
                )
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

    def guess(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        summary: ops.LogitsSummary | None = None,
        draw: ops.DrawRows | None = None,
    ) -> Tensor:
        """The tokens (S,) that `sample` would choose if these were the logits, from another model; nothing is counted."""
        return self._draw(logits_SV, slots, positions, previous_S, None, None, summary, draw)[0]

    def suppose(self, slots: I64, tokens_S: Tensor, times: int) -> None:
        """Counts a token of each slot `times` more often for its penalties: 1 as if it had been sampled, -1 to take that back."""
        counted = np.flatnonzero(self.count_rows[slots] >= 0)
        if len(counted):
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
        summary: ops.LogitsSummary | None,
        draw: ops.DrawRows | None,
    ) -> tuple[Tensor, Tensor | None]:
        """A token for each row of logits, and which rows have a token left."""
        if summary is not None and draw is not None:
            return self._draw_rows(
                logits_SV, slots, positions, previous_S, masks, drafts, summary.tokens_S, draw
            )
        changed_SV, possible_S = self._change(logits_SV, slots, positions, masks, drafts)
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

    def _draw_rows(
        self,
        logits_SV: Tensor,
        slots: I64,
        positions: I64,
        previous_S: Tensor,
        masks: Masks | None,
        drafts: Drafts | None,
        likeliest_S: Tensor,
        draw: ops.DrawRows,
    ) -> tuple[Tensor, Tensor | None]:
        """As `_draw`, with a backend that does all of it: rows that nothing but a mask changes get their likeliest token."""
        is_biased, is_held = self._are_biased(slots), positions < self.first_ends[slots]
        is_penalized, is_marked = self.count_rows[slots] >= 0, self.watermark_deltas[slots] > 0
        is_drawn = self.temperatures[slots] > 0
        rows = np.flatnonzero(is_drawn | is_biased | is_held | is_penalized | is_marked)
        if not len(rows):
            return likeliest_S, None
        chosen = slots[rows]
        made = np.zeros(len(rows), ops.DRAW_ROW)
        made["row"], made["top_k"] = rows, self.top_ks[chosen]
        made["uniform"] = ops.uniform(self.seeds[chosen], positions[rows])
        made["temperature"], made["top_p"] = self.temperatures[chosen], self.top_ps[chosen]
        made["typical_p"], made["furthest"] = self.typical_ps[chosen], self.furthest[chosen]
        made["mask"] = -1
        words_MW = np.zeros((0, 0), np.int32)
        if masks is not None and len(masks.rows):
            of_row_S = np.full(len(slots), -1, np.int32)
            of_row_S[masks.rows] = np.arange(len(masks.rows), dtype=np.int32)
            made["mask"], words_MW = of_row_S[rows], np.ascontiguousarray(masks.words_MW)
        if is_marked.any():
            made["previous"], made["greens"] = previous_S.numpy()[rows], self.watermark_greens[chosen]
            made["delta"] = self.watermark_deltas[chosen]
        if is_held.any():
            width = self.end_tokens.shape[1]
            made["first_end"], made["ends"] = chosen * width, np.where(is_held[rows], width, 0)
        bias_tokens, biases = self._list_biases(made, chosen, is_biased[rows])
        before = NO_TOKENS
        if is_penalized.any():
            before = self._list_penalties(made, rows, chosen, is_penalized[rows], drafts)
        lists = ops.Draws(made, words_MW, bias_tokens, biases, self.end_tokens, before)
        tokens_D, possible_D = draw(logits_SV, lists)
        at = torch.from_numpy(rows)
        tokens_S = likeliest_S.index_copy(0, at, tokens_D)
        if not (is_biased.any() or is_held.any()):
            return tokens_S, None
        return tokens_S, torch.ones(len(slots), dtype=torch.bool).index_copy_(0, at, possible_D)

    def _are_biased(self, slots: I64) -> Bools:
        if not self.biases:
            return np.zeros(len(slots), np.bool_)
        return np.fromiter((slot in self.biases for slot in slots.tolist()), np.bool_, len(slots))

    def _list_biases(self, made: npt.NDArray[np.void], chosen: I64, is_biased: Bools) -> tuple[I64, F32]:
        """Tokens and biases of the rows that have some, which `made` is told of."""
        biased = np.flatnonzero(is_biased)
        if not len(biased):
            return NO_TOKENS, NO_BIASES
        pairs = [self.biases[int(slot)] for slot in chosen[biased]]
        lengths = np.array([len(tokens) for tokens, _ in pairs])
        made["first_bias"][biased], made["biases"][biased] = np.cumsum(lengths) - lengths, lengths
        return np.concatenate([tokens for tokens, _ in pairs]), np.concatenate([few for _, few in pairs])

    def _list_penalties(
        self, made: npt.NDArray[np.void], rows: I64, chosen: I64, is_penalized: Bools, drafts: Drafts | None
    ) -> I64:
        """Drafts that count as output for some of the rows; `made` is told of them, of penalties and of counts."""
        penalized = np.flatnonzero(is_penalized)
        some = chosen[penalized]
        made["repetition"][penalized] = self.repetitions[some]
        made["frequency"][penalized], made["presence"][penalized] = (
            self.frequencies[some],
            self.presences[some],
        )
        for name, counts_RV in (("prompt_counts", self._prompt_RV), ("output_counts", self._output_RV)):
            row_bytes = counts_RV.stride(0) * counts_RV.element_size()
            made[name][penalized] = counts_RV.data_ptr() + self.count_rows[some] * row_bytes
        if drafts is None:
            return NO_TOKENS
        places, before = drafts.before(rows[penalized])
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=len(penalized))
        made["first_before"][penalized], made["before"][penalized] = np.cumsum(counts) - counts, counts
        return np.ascontiguousarray(drafts.drafts_S.numpy()[before[order]])

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
        self, logits_SV: Tensor, slots: I64, positions: I64, masks: Masks | None, drafts: Drafts | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits after bias, penalties, what may not end yet and masks, and which rows have a token left."""
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
                places, before = drafts.before(penalized)
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
        logits_SV = (logits_SV - largest_S1) / self._column(self.temperatures[slots])
        top_ks, top_ps, min_ps = self.top_ks[slots], self.top_ps[slots], self.min_ps[slots]
        truncated = np.flatnonzero((top_ks < self.vocab_size) | (top_ps < 1) | (min_ps > 0))
        if len(truncated):
            rows = self._on_device(truncated)
            kept_SV = ops.keep_largest(
                logits_SV.index_select(0, rows),
                self._on_device(top_ks[truncated]),
                self._on_device(top_ps[truncated]),
                self._on_device(min_ps[truncated]),
            )
            logits_SV.index_copy_(0, rows, kept_SV)
        typical = np.flatnonzero(self.typical_ps[slots] < 1)
        if len(typical):
            rows = self._on_device(typical)
            wanted_S = self._on_device(self.typical_ps[slots[typical]])
            logits_SV.index_copy_(0, rows, ops.keep_typical(logits_SV.index_select(0, rows), wanted_S))
        return logits_SV

    def _choose(self, scores_SV: Tensor, slots: I64, positions: I64) -> Tensor:
        uniform_S = self._on_device(ops.uniform(self.seeds[slots], positions))
        return ops.choose(scores_SV, uniform_S)

    def _hold_back(self, slot: int, tokens: I64) -> None:
        """Fills the slot's row of `end_tokens`: one shape for all rows, whatever their number of tokens."""
        width = self.end_tokens.shape[1]
        if len(tokens) > width:
            wider = self.end_tokens[:, [0] * (len(tokens) - width)]
            self.end_tokens = np.ascontiguousarray(np.concatenate((self.end_tokens, wider), axis=1))
        self.end_tokens[slot] = np.resize(tokens, self.end_tokens.shape[1])

    def _verify(self, tokens_S: Tensor, drafts: Drafts) -> Verified:
        if drafts.parents_S is not None:
            return self._verify_trees(tokens_S, drafts, drafts.parents_S)
        firsts_R, counts_R = self._on_device(drafts.firsts_R), self._on_device(drafts.counts_R)
        most = int(drafts.counts_R.max())
        accepted_R = ops.accept_drafts(tokens_S, drafts.drafts_S, firsts_R, counts_R, most)
        last_tokens_R = tokens_S.index_select(0, firsts_R + accepted_R)
        has_drafts_R = drafts.counts_R > 1
        return Verified(accepted_R, last_tokens_R, has_drafts_R, drafts.offsets_S, drafts.rows_S)

    def _verify_trees(self, tokens_S: Tensor, drafts: Drafts, parents_S: I64) -> Verified:
        deepest = sum(1 for _ in _upwards(np.arange(len(parents_S)), parents_S))
        kept_S = ops.accept_draft_trees(
            tokens_S, drafts.drafts_S.roll(1), self._on_device(parents_S), deepest
        )
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
            rows, chosen = self._on_device(self.count_rows[slots[counted]]), self._on_device(counted)
            is_kept_S = None
            if verified is not None and verified.kept_S is not None:
                is_kept_S = verified.kept_S.index_select(0, chosen)
            elif verified is not None:
                accepted_S = verified.accepted_R.index_select(0, self._on_device(verified.rows_S[counted]))
                is_kept_S = self._on_device(verified.offsets_S[counted]) <= accepted_S
            ops.count_tokens(self._output_RV, rows, tokens_S.index_select(0, chosen), is_kept_S)

    def _take_counts(self, slot: int, history: I64, outputs: int) -> None:
        if not self._free_rows:
            rows = self._prompt_RV.shape[0]
            more = torch.zeros((max(rows, 4), self.vocab_size), dtype=torch.int32, device=self.device)
            self._prompt_RV = torch.cat((self._prompt_RV, more))
            self._output_RV = torch.cat((self._output_RV, more))
            self._free_rows = list(range(rows, self._prompt_RV.shape[0]))
        row = self._free_rows.pop()
        self.count_rows[slot] = row
        prompt = len(history) - outputs
        for counts_RV, tokens in ((self._prompt_RV, history[:prompt]), (self._output_RV, history[prompt:])):
            counts = np.bincount(tokens, minlength=self.vocab_size).astype(np.int32)
            counts_RV[row].copy_(torch.from_numpy(counts), non_blocking=True)

    def _free_counts(self, slot: int) -> None:
        self._free_rows.append(int(self.count_rows[slot]))
        self.count_rows[slot] = -1

    def _on_device(self, column: Column) -> Tensor:
        # Must not wait for what the device computes: that may be the step before.
        return torch.from_numpy(column).to(self.device, non_blocking=True)

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
