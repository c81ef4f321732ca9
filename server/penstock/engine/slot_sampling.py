"""What the sequences in slots are sampled with, and what comes of it: what torch's sampler and the CPU engine's have in common.

Columns by slot, in numpy, filled from START rows; of slots with penalties, which row of counts is theirs. `sampling` chooses with torch,
`native_sampling` has the CPU engine choose. Must not import torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import F32, I32, I64, U64, Bools
from penstock.engine.plan import MASKED, NO_TOKEN, OF_WORDS, MaskColumns, Plan, Starts
from penstock.errors import BadPlan
from penstock_kernels.program import Array

NO_SAMPLES: I64 = np.zeros(0, np.int64)


@dataclass(slots=True)
class Sampled:
    """One entry per token sampled: of each row that samples, one more than it has drafts."""

    tokens_S: Array  # int64
    logprobs_S: Array  # fp32
    sound_S: Array  # bool: the logits were numbers
    possible_S: Array | None  # bool: a token was left to choose; None: surely
    top_counts: I64  # always on the host: alternatives wanted of each row
    top_tokens_SN: Array | None
    top_logprobs_SN: Array | None
    verified: "Verified | None" = None  # of a step with drafts


@dataclass(slots=True)
class Verified:
    """What became of a step's drafts, by row that samples (R)."""

    accepted_R: Array  # int64
    last_tokens_R: Array  # int64: behind the last accepted draft
    has_drafts_R: npt.NDArray[np.bool_]  # on the host, as all that follows
    offsets_S: I64  # of each sample in its row
    rows_S: I64  # its row
    kept_S: Array | None = (
        None  # bool: samples behind accepted drafts, or none; None: the first of each row, all are chains
    )


class Drafts:
    """The drafts of a step: which samples belong to one row, and what was guessed in their place."""

    def __init__(
        self,
        counts_R: I64,
        drafts_S: Array,
        parents_S: I64 | None = None,
    ) -> None:
        """`counts_R`: samples of each row that samples, one more than its drafts. `drafts_S` (S,) int64, where the model computes:
        the draft behind which the next sample of the row is, any for the last of a row; of a chain each sample is compared with
        its own. `parents_S`: of each sample
        the one in whose place the draft before it was guessed, -1 of a row's first; None: all rows are chains.
        """
        self.parents_S = parents_S
        ends = np.cumsum(counts_R)
        self.counts_R, self.firsts_R, self.drafts_S = counts_R, ends - counts_R, drafts_S
        self.rows_S = np.repeat(np.arange(len(counts_R)), counts_R)
        self.offsets_S = np.arange(len(self.rows_S)) - self.firsts_R[self.rows_S]

    def closed(self, masks: "Masks | None") -> I64:
        """Samples behind drafts that are not accepted, whatever is sampled in their places: nothing may be sampled there."""
        if masks is None:
            return NO_SAMPLES
        return masks.skipped[self.offsets_S[masks.skipped] > 0]

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
        for here, at in upwards(samples, parents_S):
            places.append(here)
            before.append(at - 1)  # `drafts_S` has a draft one sample before the one behind it
        return np.concatenate(places), np.concatenate(before)


def upwards(samples: I64, parents_S: I64) -> Iterator[tuple[I64, I64]]:
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
    """Which tokens some of the samples may be."""

    def __init__(
        self,
        rows: I64,
        words_MW: npt.NDArray[np.int32],
        skipped: I64 = NO_SAMPLES,
        only: tuple[I64, I64] = (NO_SAMPLES, NO_SAMPLES),
    ) -> None:
        """`rows` (M,) are indices of samples, rising; words as in the contract's Masks, each mask with a token. `skipped`: samples that
        may be no token. `only`: samples that are these tokens, whatever their logits.
        """
        self.rows, self.words_MW, self.skipped, self.only = rows, words_MW, skipped, only

    @classmethod
    def of(cls, samples: I64, columns: MaskColumns, vocab_size: int) -> "Masks":
        """Of the samples of masked rows. Raises BadPlan for columns that are not theirs."""
        only, words, width = columns.only, columns.words, -(-vocab_size // 32)
        if len(only) != len(samples):
            raise BadPlan(
                f"masks.only: {len(only)} entries, but the masked rows sample {len(samples)} tokens"
            )
        listed = only == OF_WORDS
        masks = int(np.count_nonzero(listed))
        if len(words) != masks * width:
            raise BadPlan(f"masks.words: {len(words)} words, but {masks} masks have {width} each")
        words_MW = words.reshape(-1, width).view(np.int32)
        if not words_MW.any(axis=1).all():
            raise BadPlan("masks.words: a mask without a token")
        if masks == len(samples):
            return cls(samples, words_MW)
        skips = only == NO_TOKEN
        is_only = ~(listed | skips)
        tokens = only[is_only].astype(np.int64)
        if len(tokens) and int(tokens.max()) >= vocab_size:
            raise BadPlan(f"masks.only: token {tokens.max()} of {vocab_size}")
        return cls(samples[listed], words_MW, samples[skips], (samples[is_only], tokens))

    @classmethod
    def of_plan(cls, plan: Plan, rows_S: I64, columns: MaskColumns, vocab_size: int) -> "Masks":
        """Of a step whose samples are of these rows of the plan. Raises BadPlan for columns that are not theirs."""
        masks = cls.of(np.flatnonzero(plan.flags[rows_S] & MASKED), columns, vocab_size)
        if len(masks.only[0]):
            # What a row samples behind its drafts a bias or a held end may forbid, though it is the only token.
            masks = masks.with_only_in_words(np.append(rows_S[1:] != rows_S[:-1], True))
        return masks

    def within(self, some: slice) -> "Masks":
        """Of these samples alone, what words forbid."""
        begin, end = np.searchsorted(self.rows, (some.start, some.stop))
        return Masks(self.rows[begin:end] - some.start, self.words_MW[begin:end])

    def with_only_in_words(self, some: Bools) -> "Masks":
        """The same, where what may be one token has a mask of one bit. `some` (S,): of these samples."""
        samples, tokens = self.only
        chosen = some[samples]
        if not chosen.any():
            return self
        kept = (samples[~chosen], tokens[~chosen])
        samples, tokens = samples[chosen], tokens[chosen]
        words_OW = np.zeros((len(samples), self.words_MW.shape[1]), np.int32)
        words_OW[np.arange(len(samples)), tokens // 32] = (
            np.uint32(1) << (tokens % 32).astype(np.uint32)
        ).view(np.int32)
        rows = np.concatenate((self.rows, samples))
        order = np.argsort(rows)
        return Masks(rows[order], np.concatenate((self.words_MW, words_OW))[order], self.skipped, kept)


class SlotSampling(ABC):
    """Sampling parameters of all slots."""

    def __init__(self, max_slots: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
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
        # Slots whose choice no bias, penalty, end or watermark changes, that are greedy or draw by temperature, top-k, top-p and min-p, and
        # tell no other token.
        self.are_simple: Bools = np.zeros(max_slots, np.bool_)
        self.are_plain: Bools = np.zeros(max_slots, np.bool_)  # and greedy
        self._rows = 0  # of counts
        self.free_rows: I64 = np.zeros(0, np.int64)  # of counts: the first `free_count`, (1,)
        self.free_count: I64 = np.zeros(1, np.int64)

    def clear(self) -> None:
        """Forgets all slots."""
        for slot in np.flatnonzero(self.count_rows >= 0):
            self._free_counts(int(slot))
        self.biases.clear()

    def release(self, slots: I64) -> None:
        """Frees what the slots hold."""
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
            # In fp64, as the CPU engine has it, so that what it is rounded to is the same.
            self.furthest[slots] = np.abs(np.log(starts.min_ps.astype(np.float64)))
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
        draws = starts.temperatures > 0
        self.are_simple[slots] = ~(
            penalized
            | (draws & (starts.typical_ps < 1))
            | (starts.bias_counts > 0)
            | (starts.watermark_deltas > 0)
            | (starts.end_counts > 0)
            | (starts.top_tokens > 0)
        )
        self.are_plain[slots] = self.are_simple[slots] & ~draws
        self.first_ends[slots] = starts.first_ends
        end_ends = np.cumsum(starts.end_counts, dtype=np.int64)
        for entry in np.flatnonzero(starts.end_counts):
            part = slice(end_ends[entry] - int(starts.end_counts[entry]), end_ends[entry])
            self._hold_back(int(slots[entry]), starts.end_tokens[part].astype(np.int64))

    @abstractmethod
    def sample(
        self,
        logits_SV: Array,
        slots: I64,
        positions: I64,
        previous_S: Array,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
    ) -> Sampled:
        """A token for each row of logits (S, V) fp32; `positions` are those of the tokens chosen, and
        `previous` (S,) int64 the tokens before them. The token of a row that samples nothing is any.

        With `drafts` a slot may have several rows of logits. Each is sampled as if what was fed before it were its text,
        and only what follows accepted drafts is counted for penalties.
        """

    @abstractmethod
    def tell(self, logits_TV: Array, targets_T: I64, most: int) -> tuple[Array, Array | None, Array | None]:
        """Of rows of logits the log probabilities of these tokens (T,), and, unless `most` is 0, of so many likeliest ones: which
        (T, N), and theirs.
        """

    @abstractmethod
    def guess(self, logits_SV: Array, slots: I64, positions: I64, previous_S: Array) -> Array:
        """The tokens (S,) that `sample` would choose if these were the logits, from another model; nothing is counted."""

    @abstractmethod
    def suppose(self, slots: I64, tokens_S: Array, times: int) -> None:
        """Counts a token of each slot `times` more often for its penalties: 1 as if it had been sampled, -1 to take that back."""

    @abstractmethod
    def _add_rows(self, more: int) -> None:
        """Makes room for the counts of more slots."""

    @abstractmethod
    def _set_counts(self, row: int, prompt_V: I32, output_V: I32) -> None:
        """How often each token is in a slot's prompt and output."""

    def _hold_back(self, slot: int, tokens: I64) -> None:
        """Fills the slot's row of `end_tokens`: one shape for all rows, whatever their number of tokens."""
        width = self.end_tokens.shape[1]
        if len(tokens) > width:
            wider = self.end_tokens[:, [0] * (len(tokens) - width)]
            self.end_tokens = np.ascontiguousarray(np.concatenate((self.end_tokens, wider), axis=1))
        self.end_tokens[slot] = np.resize(tokens, self.end_tokens.shape[1])

    def _take_counts(self, slot: int, history: I64, outputs: int) -> None:
        if self.free_count[0] == 0:
            more = min(max(self._rows, 4), len(self.count_rows) - self._rows)
            self._add_rows(more)
            self.free_rows = np.arange(self._rows + more)
            self.free_rows[:more] += self._rows
            self._rows += more
            self.free_count[0] = more
        self.free_count[0] -= 1
        row = int(self.free_rows[self.free_count[0]])
        self.count_rows[slot] = row
        prompt = len(history) - outputs
        counts = (
            np.bincount(tokens, minlength=self.vocab_size).astype(np.int32)
            for tokens in (history[:prompt], history[prompt:])
        )
        self._set_counts(row, *counts)

    def _free_counts(self, slot: int) -> None:
        self.free_rows[self.free_count[0]] = self.count_rows[slot]
        self.free_count[0] += 1
        self.count_rows[slot] = -1
