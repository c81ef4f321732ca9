"""What is said between the sampler and what chooses tokens for it, the CPU engine: numbers of a step's rows, in numpy.

Letters: S rows of logits, N some of each row, V vocabulary, M rows with a mask, W words of it, D rows that are drawn. Must not import
torch; `sampling` has the operations in torch that this is compared with.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64: 2^64 over the golden ratio


@dataclass(frozen=True)
class LogitsSummary:
    """Of each row of logits: the token of the largest that its mask allows, of several the lowest id; the largest of all; and the
    sum of the exponentials of all, each less the largest. The sum is no number where one of the row is none, or infinite."""

    tokens_S: I64
    largest_S: F32
    totals_S: F32

    @property
    def sound_S(self) -> npt.NDArray[np.bool_]:
        """Which rows are numbers."""
        return np.isfinite(self.totals_S)

    def logprobs(self, logits_SN: F32, rows_S: I64 | None = None) -> F32:
        """Of some logits of each row, or of the rows with these indices."""
        chosen = (self.largest_S, self.totals_S)
        largest_S, totals_S = (one if rows_S is None else one[rows_S] for one in chosen)
        # In fp64, where what a row's logarithm is rounded to does not depend on the rows beside it.
        logs_S = np.log(totals_S.astype(np.float64)).astype(np.float32)
        with np.errstate(invalid="ignore"):  # of rows that are no numbers
            return logits_SN - largest_S[:, None] - logs_S[:, None]


# How the CPU engine chooses a token of a row: penstock_draw_row of csrc/cpu/penstock_cpu.h, which says more.
DRAW_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("row", "top_k", "previous", "greens")),
        *((name, np.uint64) for name in ("prompt_counts", "output_counts")),
        *(
            (name, np.int64)
            for name in ("first_bias", "biases", "first_end", "ends", "first_before", "before")
        ),
        ("uniform", np.float64),
        *((name, np.float32) for name in ("temperature", "top_p", "typical_p", "furthest")),
        *((name, np.float32) for name in ("repetition", "frequency", "presence", "delta")),
        ("mask", np.int32),
        ("unused", np.int32),
    ],
    align=True,
)


@dataclass(slots=True)
class Draws:
    """Of which rows of logits a token is chosen, how, and the lists that they name parts of. Whoever makes it keeps the counts that
    rows point to."""

    rows: npt.NDArray[np.void]  # of DRAW_ROW
    words_MW: npt.NDArray[np.int32]  # masks
    bias_tokens: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float32]
    end_tokens: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]


def uniform(seeds_S: U64, positions_S: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Random numbers in [0, 1), one for each key (seed, position), 53 bits each.

    Computed on the host from what the plan says, so that they are the same on every device. Two rounds of
    the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014): seeds that differ in one bit, and neighbouring positions, give unrelated numbers.
    """
    return uniform_at(seed_keys(seeds_S), positions_S)


def seed_keys(seeds_S: U64) -> U64:
    """What `uniform_at` makes of seeds once for all positions."""
    return _mix(seeds_S + GOLDEN)


def uniform_at(keys_S: U64, positions_S: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """`uniform` of seeds whose keys are given."""
    z = _mix(keys_S + (positions_S.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RowMasks(Protocol):
    """Which tokens some rows of logits may sample, each at least one."""

    rows: npt.NDArray[np.int64]  # (M,) indices of rows, rising
    words_MW: npt.NDArray[np.int32]  # bit i % 32 of word i // 32 for token i
