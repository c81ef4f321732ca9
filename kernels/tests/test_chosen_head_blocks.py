"""The choice of blocks of keys for each key head, and attention to them, against loops in double precision."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels import attention
from penstock_kernels.score_modifiers import PLAIN

SIZE, INDEX, HEADS, KEY_HEADS, BLOCK = 6, 4, 4, 2, 3
ROWS_OF_KEYS = 2 * KEY_HEADS  # behind them a row that an index key fits in
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


def taken(index_q_C: Tensor, index_keys_LC: Tensor, most: int, latest: int) -> list[int]:
    """The keys that a query sees, and attends to."""
    scores = (index_keys_LC.double() @ index_q_C.double()).tolist()
    blocks = [scores[at : at + BLOCK] for at in range(0, len(scores), BLOCK)]
    late = range(max(len(blocks) - latest, 0), len(blocks))
    early = sorted((at for at in range(len(blocks)) if at not in late), key=lambda at: (-max(blocks[at]), at))
    chosen = [*late, *early[: most - len(late)]]
    return [at for at in range(len(scores)) if at // BLOCK in chosen]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("most", "latest"), [(1, 1), (2, 1), (3, 2), (2, 0), (4, 1)])
def test_each_key_head_attends_to_its_own_blocks(
    most: int, latest: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock_kernels import chosen_head_blocks

    monkeypatch.setattr(chosen_head_blocks, "SCORES_AT_ONCE", 200)  # some queries at a time
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 60)
    cache = random(50, ROWS_OF_KEYS + 1, SIZE).to(dtype)
    cache[ZERO] = 0
    step = metadata()
    index_q = random(len(TOKENS), KEY_HEADS, INDEX, seed=1).to(dtype)
    chosen = ops.choose_head_blocks(index_q, cache, step, BLOCK, most, latest)
    assert [part is None for part in chosen] == [most * BLOCK >= keys for keys in (11, 10, 10)]
    q = random(len(TOKENS), HEADS, SIZE, seed=2).to(dtype)
    out = torch.empty_like(q)
    ops.paged_attention(q, cache[:, :ROWS_OF_KEYS], step, 0.5, out, PLAIN, chosen)
    flat = cache.view(50, -1)
    for token, (sequence, seen) in enumerate(TOKENS):
        rows = ROWS[sequence][:seen]
        for head in range(HEADS):
            key_head = head // (HEADS // KEY_HEADS)
            keys = taken(index_q[token, key_head], flat[rows, -INDEX:], most, latest)
            some = [rows[at] for at in keys]
            k, v = cache[some, key_head].double(), cache[some, KEY_HEADS + key_head].double()
            wanted = (k @ q[token, head].double() * 0.5).softmax(0) @ v
            error = 1e-6 if dtype == torch.float32 else 0.02
            torch.testing.assert_close(out[token, head].double(), wanted, atol=error, rtol=error)


def test_equal_scores_go_to_the_earlier_block() -> None:
    cache = torch.zeros(50, ROWS_OF_KEYS + 1, SIZE)
    chosen = ops.choose_head_blocks(
        torch.zeros(len(TOKENS), KEY_HEADS, INDEX), cache, metadata(), BLOCK, 2, 1
    )
    assert chosen[0] is not None
    assert sorted(set(chosen[0][0, 0].tolist()) - {-1}) == [0, 1, 2, 9, 10]
