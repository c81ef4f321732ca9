"""What a recipe says of n-gram embeddings: how a token and those before it name rows of a table, and what a sequence keeps for that.

Knows no weights. Named in `penstock.models.config.LayerConfig`; `penstock.models.ngram_embeddings` computes by it. The table has a
part for each head; heads of one order hash the same n-grams, and the prime numbers of their parts' rows tell them apart.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.models.recurrent_config import StateShape
from penstock.parallel.group import TensorGroup

# Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014: SplitMix64.
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1
LONGEST = (1 << 63) - 1

# Of the seeds of two layers: how far they are from each other.
SEED_STEP = 10007

# A state keeps ids in fp32.
MOST_IDS = 1 << 24


@dataclass(frozen=True)
class NgramConfig:
    """Of one layer (Qwen 4). Its convolution is over each number of each residual stream."""

    multipliers: tuple[int, ...]  # of a token, the one before it, ..: as many as tokens of the longest n-gram
    parts: tuple[int, ...]  # rows of each head's part of the table: heads of two tokens, then of three, ..
    rows: int  # of the whole table, which is filled up
    head_dim: int  # numbers of a row
    end: int  # the token that no n-gram reaches over, and that stands where there is none
    kernel: int  # of the convolution
    channels: int  # of the convolution: the width of all residual streams

    @property
    def before(self) -> int:
        """Tokens before one that its n-grams may have."""
        return len(self.multipliers) - 1

    @property
    def dilation(self) -> int:
        """Of the convolution."""
        return len(self.multipliers)

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 8 * self.channels + 2 * len(self.parts) * self.head_dim

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """What every rank keeps of a sequence: what the convolution read, and the last tokens' ids."""
        return (
            StateShape(((self.kernel - 1) * self.dilation, self.channels), False),
            StateShape((self.before,)),
        )


def hash_multipliers(vocabulary: int, count: int, number: int, seed: int) -> tuple[int, ...]:
    """Of layer `number` of those with n-grams: odd, and small enough that no product with an id takes more than 63 bits."""
    bound = max(1, LONGEST // max(vocabulary, 1) // 2)
    first = seed + SEED_STEP * number
    return tuple(2 * (_mixed(first + GAMMA * place) % bound) + 1 for place in range(1, count + 1))


def _mixed(value: int) -> int:
    """The number that SplitMix64 gives with this state."""
    value = (value + GAMMA) & WORD
    value = ((value ^ (value >> 30)) * FIRST) & WORD
    value = ((value ^ (value >> 27)) * SECOND) & WORD
    return value ^ (value >> 31)


def primes(least: int) -> Iterator[int]:
    """Prime numbers from `least` on."""
    return (number for number in itertools.count(max(least, 2)) if _is_prime(number))


def _is_prime(number: int) -> bool:
    if number % 2 == 0:
        return number == 2
    return all(number % divisor for divisor in range(3, math.isqrt(number) + 1, 2))
