"""A step of decodes, a whole prompt and pieces of prompts, for the tests of chosen keys."""

import torch
from torch import Tensor

import penstock_kernels as ops

# Two decodes of 11 and 4 keys, a whole prompt of 10, and a second piece of 3 behind 7 keys, beside one of 2 behind none.
ROWS = [
    [4, 9, 1, 20, 21, 22, 23, 24, 25, 26, 27],
    [0, 2, 3, 5],
    [10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
    [30, 31, 32, 33, 34, 35, 36, 37, 38, 39],
    [40, 41],
]
ZERO = 49
# Of each token, which of these sequences it is of, and how many of its keys it sees.
TOKENS = [(0, 11), (1, 4), *((2, at + 1) for at in range(10)), (3, 8), (3, 9), (3, 10), (4, 1), (4, 2)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[list[int]], keys: int) -> Tensor:
    return torch.tensor([row + [ZERO] * (keys - len(row)) for row in rows]).flatten()


def hidden(seen: list[list[int]], keys: int) -> Tensor:
    """(S, Q, L) of the keys that each query sees."""
    counts = torch.tensor(seen).unsqueeze(-1)
    return torch.where(torch.arange(keys) < counts, 0.0, -torch.inf)


def metadata() -> ops.AttentionMetadata:
    few = ops.FewGroup(0, 2, 11, padded(ROWS[:2], 11), hidden([[11], [4]], 11).unsqueeze(1))
    whole = ops.ChunkGroup(2, 12, 1, 10, 10, padded(ROWS[2:3], 10), None, True, None, None)
    places, tokens = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([0, 1, 2, 3, 4])
    mask = hidden([[8, 9, 10], [1, 2, 2]], 10).unsqueeze(1)
    parts = ops.ChunkGroup(12, 17, 2, 3, 10, padded(ROWS[3:], 10), mask, False, places, tokens)
    return ops.AttentionMetadata(few=[few], chunks=[whole, parts])
