"""States that tokens advance one after the other, and how a step's tokens do: what the operations of recurrent layers share.

An operation has a tensor of states (P, ...), of which each slot and each snapshot has a place. A step's first S tokens are single ones
(decodes) and are advanced in one batched call, or, where a row has several (a token and its drafts), in as many calls as the longest
row has; the others are runs of prompts. A run is computed in chunks, or token
by token where results may not depend on where a prompt is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from penstock_kernels.later import Tensor, torch

# Numbers of states that a processor's second cache holds beside what is made of them.
NUMBERS_AT_ONCE = 1 << 17

# Tokens of a run that are computed in one call: what pairs of a chunk's tokens take is a multiple of them.
TOKENS_AT_ONCE = 256

# Of states that are sums of powers of e, relative to the largest exponent so far: that exponent of a sum of nothing.
NO_EXPONENT = -1e38


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens `begin` .. `end` - 1 of the step, which advance the state at `place`."""

    begin: int
    end: int
    place: int
    save: int | None = None  # the place that the state is copied to behind the last of them


# Which tokens of a step: some behind one another, or any.
Tokens = slice | Tensor


@dataclass(frozen=True, slots=True)
class Turn:
    """Single tokens that are advanced together, each of another sequence."""

    tokens: Tokens  # int64 (t,), rising, if it is no slice
    places_S: Tensor  # int64
    saved_C: Tensor | None = None  # int64: places that are copied behind them, and to which
    saves_C: Tensor | None = None

    def some(self, part: slice) -> Tokens:
        """Part of its tokens, by their number in it."""
        if isinstance(self.tokens, slice):
            return slice(self.tokens.start + part.start, self.tokens.start + part.stop)
        return self.tokens[part]

    def copy(self, state_P: Tensor) -> None:
        """Makes the copies that are due behind it."""
        if self.saved_C is not None and self.saves_C is not None:
            state_P.index_copy_(0, self.saves_C, state_P.index_select(0, self.saved_C))


class RunColumns(NamedTuple):
    """The runs of a step as kernels read them: int32 and contiguous."""

    # Of each run, in order of sequences: the begin, the end, the place of its copy or -1.
    runs_3R: Tensor
    # Of each sequence: the place, the number of its first run, and the one behind its last.
    sequences_3N: Tensor
    longest: int  # from the begin of a sequence's first run to the end of its last
    is_whole: bool  # the runs of each sequence are neighbours


@dataclass(slots=True)
class StateMetadata:
    """Whose state each token of a step advances."""

    places_S: (
        Tensor  # int64: of the first S tokens, each of which is a row, or a part of a row of single tokens
    )
    runs: list[Run]  # of the tokens after them, in their order
    saved_C: Tensor | None = None  # int64: places of single tokens that are copied behind them, and to which
    saves_C: Tensor | None = None
    exact: bool = False  # a token's result depends on no other token of the step, to the last bit
    # Where a row has several single tokens: first those that come first in their rows, then the second ones, and so on. They have the
    # copies, too. None: each is of another sequence.
    turns: list[Turn] | None = None
    # What `run_columns` has made, for every layer of the step.
    _columns: RunColumns | None = field(default=None, repr=False, compare=False)

    def run_columns(self, device: torch.device) -> RunColumns:
        """For kernels. Sent to the device once."""
        if self._columns is None:
            of_places: dict[int, list[Run]] = {}
            for run in self.runs:
                of_places.setdefault(run.place, []).append(run)
            runs = [run for some in of_places.values() for run in some]
            saves = [-1 if run.save is None else run.save for run in runs]
            ends = list(accumulate(len(some) for some in of_places.values()))
            runs_3R = [[run.begin for run in runs], [run.end for run in runs], saves]
            # Sent without a wait for what the device computes.
            made_3R, made_3N = (
                torch.tensor(numbers, dtype=torch.int32).to(device, non_blocking=True)
                for numbers in (runs_3R, [list(of_places), [0, *ends[:-1]], ends])
            )
            lengths = [some[-1].end - some[0].begin for some in of_places.values()]
            is_whole = all(
                one.end == next_one.begin for some in of_places.values() for one, next_one in pairwise(some)
            )
            self._columns = RunColumns(made_3R, made_3N, max(lengths), is_whole)
        return self._columns

    def in_turns(self) -> list[Turn]:
        """The single tokens, in the order in which they have to be advanced."""
        if self.turns is not None:
            return self.turns
        singles = len(self.places_S)
        return [Turn(slice(0, singles), self.places_S, self.saved_C, self.saves_C)] if singles else []


# (the tokens, their states (S, ...), changed in place) to what the tokens give, (S, ...): of S sequences a token each.
StepForm = Callable[[Tokens, Tensor], Tensor]
# (the tokens, their sequence's state (...), changed in place) to what the tokens give, (L, ...).
RunForm = Callable[[slice, Tensor], Tensor]


def advance(
    states: StateMetadata, state_P: Tensor, out_T: Tensor, step_form: StepForm, run_form: RunForm | None
) -> Tensor:
    """Advances the states (P, ...) by all tokens of a step, writes what they give into `out` (T, ...) and returns it.

    `step_form` defines the operation; `run_form` gives the same but for rounding, and None says that there is none.
    """
    for turn in states.in_turns():
        count = len(turn.places_S)
        for part in chunks(slice(0, count), _at_once(state_P, count)):
            tokens, places = turn.some(part), turn.places_S[part]
            if len(places) == 1 and state_P.device.type == "cpu":
                place = int(places)
                out_T[tokens] = step_form(tokens, state_P[place : place + 1])
                continue
            state_S = state_P.index_select(0, places)
            out_T[tokens] = step_form(tokens, state_S)
            state_P.index_copy_(0, places, state_S)
        turn.copy(state_P)
    for run in states.runs:
        if states.exact or run_form is None or run.end - run.begin == 1:
            state_1 = state_P[run.place : run.place + 1]
            for token in range(run.begin, run.end):
                out_T[token : token + 1] = step_form(slice(token, token + 1), state_1)
        else:
            for tokens in chunks(slice(run.begin, run.end), TOKENS_AT_ONCE):
                out_T[tokens] = run_form(tokens, state_P[run.place])
        if run.save is not None:
            state_P[run.save] = state_P[run.place]
    return out_T


def _at_once(state_P: Tensor, singles: int) -> int:
    """Single tokens that are advanced in one call: all, or on a CPU as many as have their states in its cache together."""
    if state_P.device.type != "cpu":
        return singles
    return min(max(NUMBERS_AT_ONCE // max(state_P[0].numel(), 1), 1), singles)


def add_products(state_SHDV: Tensor, k_SHD: Tensor, v_SHV: Tensor) -> None:
    """Adds each head's key times value to its state, in place."""
    state_SHDV.flatten(0, 1).baddbmm_(k_SHD.flatten(0, 1).unsqueeze(-1), v_SHV.flatten(0, 1).unsqueeze(-2))


def chunks(tokens: slice, size: int) -> Iterator[slice]:
    """The tokens in pieces of at most `size`."""
    for begin in range(tokens.start, tokens.stop, size):
        yield slice(begin, min(begin + size, tokens.stop))


def causal(size: int, device: torch.device, diagonal: int = 0) -> Tensor:
    """Which of (size, size) pairs are not above the diagonal."""
    return torch.ones((size, size), dtype=torch.bool, device=device).tril(diagonal)


def decays(decay_HNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From logarithms (H, N, C) of the decays of a chunk's tokens: their sums up to each token (H, N, C), what is left of one
    token's part at another one behind it (H, N, C, C), and at the chunk's end (H, N, C, 1); all in fp32.

    Sums are large and their differences small, so they are float64 on the way.
    """
    total_HNC = decay_HNC.double().cumsum(-1)
    between_HNCC = total_HNC.unsqueeze(-1) - total_HNC.unsqueeze(-2)
    below = causal(decay_HNC.shape[-1], decay_HNC.device)
    left_HNCC = between_HNCC.masked_fill_(~below, -torch.inf).float().exp_()
    until_HNC1 = (total_HNC[..., -1:] - total_HNC).float().exp_().unsqueeze(-1)
    return total_HNC.float(), left_HNCC, until_HNC1
