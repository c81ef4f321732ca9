"""Has the CPU engine choose the tokens of a step, for all rows at once, and tells their log probabilities.

Called by the engine with the logits of the rows that sample, of models that the CPU engine runs: what it is told of each row, and what
follows from its choice, verified drafts and counts. In numpy; must not import torch. `sampling` does the same with torch.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.engine.columns import F32, I32, I64, U64, Bools
from penstock.engine.draft_trees import LONGEST_PATH
from penstock.engine.plan import Starts
from penstock.engine.slot_sampling import Drafts, Masks, Sampled, SlotSampling, Verified, upwards
from penstock_kernels.draws import DRAW_ROW, Draws, LogitsSummary, RowMasks, seed_keys, uniform, uniform_at
from penstock_kernels.program import Array

NO_TOKENS: I64 = np.zeros(0, np.int64)
NO_BIASES: F32 = np.zeros(0, np.float32)

# So many logits are compared for the largest of them, where the largest of a row are looked for.
BLOCK_OF_LOGITS = 64


class Chooser(Protocol):
    """What chooses: see `CpuProgram`."""

    def summarize(self, logits_SV: Array, masks: RowMasks | None = None) -> LogitsSummary:
        """What sampling asks of logits that nothing but masks changes."""

    def draw(self, logits_SV: Array, draws: Draws) -> tuple[I64, Bools]:
        """Chooses the tokens of rows that are drawn, or whose logits something but a mask changes."""


@dataclass(slots=True)
class RepeatedDraws:
    """How steps that go on from each other draw: of a row nothing differs but its random number, the token before, and whether its ends are
    held back.
    """

    draws: Draws | None  # None: all take the likeliest
    rows: I64  # those that are drawn
    keys: U64  # of their seeds
    are_penalized: Bools
    first_ends: I64 | None  # of these rows; None: none holds ends back
    are_marked: bool  # some, with a watermark
    may_lack: bool  # a row may have no token left
    before: I64 = field(
        default_factory=lambda: NO_TOKENS
    )  # what `draws.before` is, with room for a step's drafts

    @property
    def are_counted(self) -> bool:
        """Whether what some rows sample is counted for their penalties."""
        return bool(self.are_penalized.any())

    def possible(self, possible_D: Bools | None, samples: int) -> Bools | None:
        """Which of so many samples had a token left, of what was said of those that were drawn; None: all."""
        if not self.may_lack or self.draws is None or possible_D is None:
            return None
        possible_S = np.ones(samples, np.bool_)
        drawn = self.draws.rows["row"][: len(possible_D)]
        possible_S[drawn] = possible_D
        return possible_S

    def move(self, positions_R: I64, previous_R: I64) -> None:
        """To the step that samples at these positions, behind these tokens, of all rows."""
        if self.draws is not None:
            all_of_them = slice(None)
            self._place(self.draws.rows, all_of_them, positions_R[self.rows], previous_R[self.rows])

    def _place(
        self, made: npt.NDArray[np.void], places: I64 | slice, positions_D: I64, previous_D: I64
    ) -> None:
        made["uniform"] = uniform_at(self.keys[places], positions_D)
        if self.are_marked:
            made["previous"] = previous_D
        if self.first_ends is not None and self.draws is not None:
            width = self.draws.end_tokens.shape[1]
            made["ends"] = np.where(positions_D < self.first_ends[places], width, 0)

    def of_samples(self, most: int) -> "RepeatedDraws":
        """With room for so many samples, several of a row: see `take`."""
        if self.draws is None:
            return self
        # What is fed, then each path of a tree.
        before = np.empty(most * (1 + LONGEST_PATH) if self.are_counted else 0, np.int64)
        draws = replace(self.draws, rows=np.zeros(most, DRAW_ROW), before=before)
        return replace(self, draws=draws, before=before)

    def take(
        self, of_rows: "RepeatedDraws", rows_S: I64, firsts_R: I64, positions_S: I64, fed_S: I64
    ) -> npt.NDArray[np.void]:
        """To a step whose samples are of these rows, at these positions, each behind what was fed; each is drawn as `of_rows` draws its row.
        `firsts`: of each row its first sample. Returns how each of those is drawn that are; what was fed before a sample counts as output.
        """
        assert self.draws is not None and of_rows.draws is not None
        place_of_row = np.full(len(firsts_R), -1)
        place_of_row[of_rows.rows] = np.arange(len(of_rows.rows))
        places_S = place_of_row[rows_S]
        drawn = np.flatnonzero(places_S >= 0)
        places, made = places_S[drawn], self.draws.rows[: len(drawn)]
        made[:] = of_rows.draws.rows[places]
        made["row"] = drawn
        of_rows._place(made, places, positions_S[drawn], fed_S[drawn])
        if len(self.before):
            self.before[: len(fed_S)] = fed_S
            firsts_D = firsts_R[rows_S[drawn]]
            made["first_before"] = firsts_D + 1
            made["before"] = np.where(self.are_penalized[places], drawn - firsts_D, 0)
        return made

    def follow_paths(self, made: npt.NDArray[np.void], parents_S: I64) -> None:
        """Where some rows are trees: counts for each sample what was fed on its path. `parents`: see `Drafts`."""
        penalized = np.flatnonzero(made["before"])
        samples, at = made["row"][penalized].tolist(), len(parents_S)
        for one, sample in zip(penalized.tolist(), samples, strict=True):
            path = []
            while parents_S[sample] >= 0:
                path.append(self.before[sample])
                sample = parents_S[sample]
            if len(path) <= LONGEST_PATH:  # else it is of a chain
                made["first_before"][one], made["before"][one] = at, len(path)
                self.before[at : at + len(path)] = path[::-1]
                at += len(path)


class NativeSampler(SlotSampling):
    """Sampling parameters of all slots, and token counts in the host's memory."""

    def __init__(self, max_slots: int, vocab_size: int, chooser: Chooser) -> None:
        super().__init__(max_slots, vocab_size)
        self._chooser = chooser
        self._prompt_RV: I32 = np.zeros((0, vocab_size), np.int32)
        self._output_RV: I32 = np.zeros((0, vocab_size), np.int32)
        # Of each slot how many biases it has, and where its tokens and biases are.
        self._bias_counts: I64 = np.zeros(max_slots, np.int64)
        self._bias_tokens_at: U64 = np.zeros(max_slots, np.uint64)
        self._biases_at: U64 = np.zeros(max_slots, np.uint64)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What the CPU engine is told of the slots, and changes where it has sequences begin: penstock_sampling."""
        return {
            "seeds": self.seeds,
            "temperatures": self.temperatures,
            "top_ps": self.top_ps,
            "typical_ps": self.typical_ps,
            "min_ps": self.min_ps,
            "furthest": self.furthest,
            "repetitions": self.repetitions,
            "frequencies": self.frequencies,
            "presences": self.presences,
            "watermark_deltas": self.watermark_deltas,
            "top_ks": self.top_ks,
            "top_counts": self.top_counts,
            "first_ends": self.first_ends,
            "watermark_greens": self.watermark_greens,
            "are_simple": self.are_simple,
            "are_plain": self.are_plain,
            "count_rows": self.count_rows,
            "free_rows": self.free_rows,
            "free_count": self.free_count,
            "bias_counts": self._bias_counts,
            "bias_tokens": self._bias_tokens_at,
            "biases": self._biases_at,
            "end_tokens": self.end_tokens,
            "prompt_counts": self._prompt_RV,
            "output_counts": self._output_RV,
        }

    def clear(self) -> None:
        """See SlotSampling."""
        super().clear()
        self._bias_counts[:] = 0

    def release(self, slots: I64) -> None:
        """See SlotSampling."""
        super().release(slots)
        self._bias_counts[slots] = 0

    def start(self, slots: I64, starts: Starts) -> None:
        """See SlotSampling."""
        super().start(slots, starts)
        for slot in slots[starts.bias_counts > 0].tolist():
            tokens, biases = map(np.ascontiguousarray, self.biases[slot])
            self.biases[slot] = tokens, biases
            self._bias_counts[slot] = len(tokens)
            self._bias_tokens_at[slot], self._biases_at[slot] = tokens.ctypes.data, biases.ctypes.data

    def sample(
        self,
        logits_SV: F32,
        slots: I64,
        positions: I64,
        previous_S: I64,
        masks: Masks | None = None,
        drafts: Drafts | None = None,
    ) -> Sampled:
        """See SlotSampling."""
        # Of every step, whatever its rows want: a row's log probability must not depend on the others.
        summary = self._chooser.summarize(logits_SV, masks)
        tokens_S, possible_S, verified = summary.tokens_S, None, None
        are_plain = self.are_plain[slots].all()
        if drafts is not None or not are_plain:
            tokens_S, possible_S = self._draw(logits_SV, slots, positions, previous_S, masks, drafts, summary)
        if masks is not None:
            samples, only = masks.only
            tokens_S[samples] = only
        if drafts is not None:
            verified = verify(tokens_S, drafts, drafts.closed(masks))
        if not are_plain:
            self._count(slots, tokens_S, NO_TOKENS if masks is None else masks.skipped, verified)
        return self._sampled(logits_SV, summary, slots, tokens_S, possible_S, verified)

    def repeated(self, slots: I64, positions: I64) -> RepeatedDraws:
        """What is drawn in steps that go on from each other, of these slots and no others, the first of them at `positions`."""
        is_biased, is_held = self._are_biased(slots), positions < self.first_ends[slots]
        is_penalized, is_marked = self.count_rows[slots] >= 0, self.watermark_deltas[slots] > 0
        rows = np.flatnonzero((self.temperatures[slots] > 0) | is_biased | is_held | is_penalized | is_marked)
        chosen, holds = slots[rows], bool(is_held.any())
        draws = None
        if len(rows):
            made = self._describe(rows, chosen)
            if is_marked.any():
                made["greens"], made["delta"] = self.watermark_greens[chosen], self.watermark_deltas[chosen]
            if holds:
                made["first_end"] = chosen * self.end_tokens.shape[1]
            if is_penalized.any():
                self._list_penalties(made, rows, chosen, is_penalized[rows], None)
            bias_tokens, biases = self._list_biases(made, chosen, is_biased[rows])
            no_masks = np.zeros((0, 0), np.int32)
            draws = Draws(made, no_masks, bias_tokens, biases, self.end_tokens, NO_TOKENS)
        return RepeatedDraws(
            draws,
            rows,
            seed_keys(self.seeds[chosen]),
            is_penalized[rows],
            self.first_ends[chosen] if holds else None,
            bool(is_marked.any()),
            holds or bool(is_biased.any()),
        )

    def taken(
        self,
        logits_SV: F32,
        summary: LogitsSummary,
        slots: I64,
        counted: bool,
        skipped: I64 = NO_TOKENS,
        possible_S: Bools | None = None,
        rows_S: I64 | None = None,
    ) -> Sampled:
        """What `sample` gives of samples that were chosen with the logits, those of `slots`. `rows`: of the logits and the summary those that
        count; None: all. `counted`: of penalties, some of them count their tokens, but for those that are `skipped`.
        """
        some = summary
        if rows_S is not None:
            some = LogitsSummary(
                summary.tokens_S[rows_S], summary.largest_S[rows_S], summary.totals_S[rows_S]
            )
        if counted:
            self._count(slots, some.tokens_S, skipped, None)
        return self._sampled(logits_SV, some, slots, some.tokens_S, possible_S, rows_S=rows_S)

    def _sampled(
        self,
        logits_SV: F32,
        summary: LogitsSummary,
        slots: I64,
        tokens_S: I64,
        possible_S: Bools | None = None,
        verified: Verified | None = None,
        rows_S: I64 | None = None,
    ) -> Sampled:
        """Tokens with their log probabilities, and alternatives. `rows`: of the logits; None: all."""
        chosen_S1 = logits_SV[np.arange(len(slots)) if rows_S is None else rows_S, tokens_S][:, None]
        sampled = Sampled(
            tokens_S=tokens_S,
            logprobs_S=summary.logprobs(chosen_S1)[:, 0],
            sound_S=summary.sound_S,
            possible_S=possible_S,
            top_counts=self.top_counts[slots],
            top_tokens_SN=None,
            top_logprobs_SN=None,
            verified=verified,
        )
        most = int(sampled.top_counts.max(initial=0))
        if most:
            wanting = np.flatnonzero(sampled.top_counts)
            wanting_SV = logits_SV[wanting if rows_S is None else rows_S[wanting]]
            tokens_SN = sampled.top_tokens_SN = most_likely(wanting_SV, most)
            logits_SN = np.take_along_axis(wanting_SV, tokens_SN, 1)
            sampled.top_logprobs_SN = summary.logprobs(logits_SN, wanting)
        return sampled

    def tell(self, logits_TV: F32, targets_T: I64, most: int) -> tuple[F32, I64 | None, F32 | None]:
        """See SlotSampling."""
        summary = self._chooser.summarize(logits_TV)
        logprobs_T = summary.logprobs(np.take_along_axis(logits_TV, targets_T[:, None], 1))[:, 0]
        if not most:
            return logprobs_T, None, None
        tokens_TN = most_likely(logits_TV, most)
        return logprobs_T, tokens_TN, summary.logprobs(np.take_along_axis(logits_TV, tokens_TN, 1))

    def guess(self, logits_SV: Array, slots: I64, positions: I64, previous_S: Array) -> I64:
        """See SlotSampling; of numpy or torch, on the host."""
        summary = self._chooser.summarize(logits_SV)
        return self._draw(logits_SV, slots, positions, np.asarray(previous_S), None, None, summary)[0]

    def suppose(self, slots: I64, tokens_S: Array, times: int) -> None:
        """See SlotSampling."""
        counted = np.flatnonzero(self.count_rows[slots] >= 0)
        if len(counted):
            places = self.count_rows[slots[counted]], np.asarray(tokens_S)[counted]
            np.add.at(self._output_RV, places, np.int32(times))

    def _draw(
        self,
        logits_SV: Array,
        slots: I64,
        positions: I64,
        previous_S: I64,
        masks: Masks | None,
        drafts: Drafts | None,
        summary: LogitsSummary,
    ) -> tuple[I64, Bools | None]:
        """A token for each row of logits, and which rows have a token left. Rows that nothing but a mask changes get their likeliest
        token."""
        is_biased, is_held = self._are_biased(slots), positions < self.first_ends[slots]
        is_penalized, is_marked = self.count_rows[slots] >= 0, self.watermark_deltas[slots] > 0
        is_drawn = self.temperatures[slots] > 0
        rows = np.flatnonzero(is_drawn | is_biased | is_held | is_penalized | is_marked)
        if not len(rows):
            return summary.tokens_S, None
        chosen = slots[rows]
        made = self._describe(rows, chosen)
        made["uniform"] = uniform(self.seeds[chosen], positions[rows])
        words_MW = np.zeros((0, 0), np.int32)
        if masks is not None and len(masks.rows):
            of_row_S = np.full(len(slots), -1, np.int32)
            of_row_S[masks.rows] = np.arange(len(masks.rows), dtype=np.int32)
            made["mask"], words_MW = of_row_S[rows], np.ascontiguousarray(masks.words_MW)
        if is_marked.any():
            made["previous"], made["greens"] = previous_S[rows], self.watermark_greens[chosen]
            made["delta"] = self.watermark_deltas[chosen]
        if is_held.any():
            width = self.end_tokens.shape[1]
            made["first_end"], made["ends"] = chosen * width, np.where(is_held[rows], width, 0)
        bias_tokens, biases = self._list_biases(made, chosen, is_biased[rows])
        before = NO_TOKENS
        if is_penalized.any():
            before = self._list_penalties(made, rows, chosen, is_penalized[rows], drafts)
        lists = Draws(made, words_MW, bias_tokens, biases, self.end_tokens, before)
        tokens_S = summary.tokens_S
        tokens_S[rows], possible_D = self._chooser.draw(logits_SV, lists)
        if not (is_biased.any() or is_held.any()):
            return tokens_S, None
        possible_S = np.ones(len(slots), np.bool_)
        possible_S[rows] = possible_D
        return tokens_S, possible_S

    def _describe(self, rows: I64, chosen: I64) -> npt.NDArray[np.void]:
        """How a token is drawn of rows of logits, which are those of the slots `chosen`, where no list and no mask has a say."""
        made = np.zeros(len(rows), DRAW_ROW)
        made["row"], made["top_k"], made["mask"] = rows, self.top_ks[chosen], -1
        made["temperature"], made["top_p"] = self.temperatures[chosen], self.top_ps[chosen]
        made["typical_p"], made["furthest"] = self.typical_ps[chosen], self.furthest[chosen]
        return made

    def _are_biased(self, slots: I64) -> Bools:
        # `biases` may still have those of a sequence whose slot the CPU engine has given to another.
        are_biased: Bools = self._bias_counts[slots] > 0
        return are_biased

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
            made[name][penalized] = counts_RV.ctypes.data + self.count_rows[some] * counts_RV.strides[0]
        if drafts is None:
            return NO_TOKENS
        places, before = drafts.before(rows[penalized])
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=len(penalized))
        made["first_before"][penalized], made["before"][penalized] = np.cumsum(counts) - counts, counts
        return np.ascontiguousarray(drafts.drafts_S[before[order]])

    def _count(self, slots: I64, tokens_S: I64, skipped: I64, verified: Verified | None) -> None:
        is_counted = self.count_rows[slots] >= 0
        is_counted[skipped] = False
        if verified is not None:
            is_kept_S = verified.kept_S
            if is_kept_S is None:
                is_kept_S = verified.offsets_S <= verified.accepted_R[verified.rows_S]
            is_counted &= is_kept_S
        counted = np.flatnonzero(is_counted)
        if len(counted):
            np.add.at(self._output_RV, (self.count_rows[slots[counted]], tokens_S[counted]), np.int32(1))

    def _add_rows(self, more: int) -> None:
        rows = np.zeros((more, self.vocab_size), np.int32)
        self._prompt_RV = np.concatenate((self._prompt_RV, rows))
        self._output_RV = np.concatenate((self._output_RV, rows))

    def _set_counts(self, row: int, prompt_V: I32, output_V: I32) -> None:
        self._prompt_RV[row], self._output_RV[row] = prompt_V, output_V


def verify(tokens_S: I64, drafts: Drafts, closed: I64) -> Verified:
    """What becomes of the drafts of a step that has sampled these tokens: as `accept_drafts` and `accept_draft_trees` have it. `closed`: samples
    behind drafts that are not accepted.
    """
    has_drafts_R = drafts.counts_R > 1
    if drafts.parents_S is not None:
        return _verify_trees(tokens_S, drafts, drafts.parents_S, closed)
    is_draft_S = drafts.offsets_S + 1 < drafts.counts_R[drafts.rows_S]
    agrees_S = is_draft_S & (tokens_S == drafts.drafts_S)
    agrees_S[closed - 1] = False
    # The last sample of a row is behind all its drafts.
    accepted_R = np.minimum.reduceat(np.where(agrees_S, len(tokens_S), drafts.offsets_S), drafts.firsts_R)
    last_tokens_R = tokens_S[drafts.firsts_R + accepted_R]
    return Verified(accepted_R, last_tokens_R, has_drafts_R, drafts.offsets_S, drafts.rows_S)


def _verify_trees(tokens_S: I64, drafts: Drafts, parents_S: I64, closed: I64) -> Verified:
    deepest = sum(1 for _ in upwards(np.arange(len(parents_S)), parents_S))
    is_first_S, before_S = parents_S < 0, np.maximum(parents_S, 0)
    agrees_S = tokens_S[before_S] == np.roll(drafts.drafts_S, 1)
    agrees_S[closed] = False
    kept_S = is_first_S
    for _ in range(deepest):
        kept_S = is_first_S | (agrees_S & kept_S[before_S])
    kept_R = np.add.reduceat(kept_S.astype(np.int64), drafts.firsts_R)
    # A draft comes behind the one that it follows: the last that is kept ends the path.
    lasts_R = np.maximum.reduceat(np.arange(len(tokens_S)) * kept_S, drafts.firsts_R)
    has_drafts_R = drafts.counts_R > 1
    return Verified(kept_R - 1, tokens_S[lasts_R], has_drafts_R, drafts.offsets_S, drafts.rows_S, kept_S)


def most_likely(logits_SV: F32, count: int) -> I64:
    """The ids (S, count) of the largest of each row of logits (S, V), largest first; ties by the lower id.

    Tokens are looked at in blocks first: those that are wanted are in the blocks whose largest logit is not below the `count`-th of all
    blocks' largest. An integer for each token of a vocabulary takes ten to twenty times as long.
    """
    samples, vocabulary = logits_SV.shape
    blocks = vocabulary // BLOCK_OF_LOGITS
    if blocks > count:
        # Block b has the tokens b, b + blocks, b + 2 * blocks and so on, so that whole vectors are compared.
        in_blocks = blocks * BLOCK_OF_LOGITS
        largest_SB = logits_SV[:, :in_blocks].reshape(samples, BLOCK_OF_LOGITS, blocks).max(axis=1)
        least_S1 = np.partition(largest_SB, blocks - count, axis=1)[:, blocks - count, None]
        # With ties there are more of them.
        chosen = max(count, int((largest_SB >= least_S1).sum(axis=1).max(initial=0)))
        if chosen * BLOCK_OF_LOGITS < vocabulary // 2:
            blocks_SC = np.argpartition(largest_SB, blocks - chosen, axis=1)[:, blocks - chosen :]
            members_SCM = blocks_SC[:, :, None] + np.arange(0, in_blocks, blocks)
            rest_SR = np.broadcast_to(np.arange(in_blocks, vocabulary), (samples, vocabulary - in_blocks))
            ids_SK = np.concatenate((members_SCM.reshape(samples, -1), rest_SR), axis=1)
            return _largest(np.take_along_axis(logits_SV, ids_SK, 1), ids_SK, count)
    return _largest(logits_SV, np.arange(vocabulary)[None], count)


def _largest(logits_SK: F32, ids_SK: I64, count: int) -> I64:
    """Of tokens and their logits those with the largest; see `most_likely`."""
    # One integer per token, all of them different: the bits of the logit, ordered as the numbers are, above the id.
    # Adding zero makes -0.0 to 0.0, which are equal.
    bits_SK = (logits_SK + np.float32(0.0)).view(np.int32)
    ordered_SK = np.where(bits_SK < 0, bits_SK ^ np.int32(0x7FFFFFFF), bits_SK).astype(np.int64)
    keys_SK = (ordered_SK << 32) - ids_SK
    first = keys_SK.shape[1] - count
    keys_SN = np.sort(np.partition(keys_SK, first, axis=1)[:, first:], axis=1)[:, ::-1]
    # The low half of a key is the id below zero.
    return np.ascontiguousarray(-keys_SN & 0xFFFFFFFF)
