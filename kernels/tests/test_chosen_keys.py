"""The choice of keys, and attention to them, against loops in double precision."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from chosen_step import ZERO, hidden, padded, random
from penstock_kernels import attention, chosen_keys

LATENT, ROTATED, INDEX = 6, 2, 4
HEADS, INDEX_HEADS = 3, 5
# Two decodes of 9 and 4 keys, a whole prompt of 7, and a second piece of 3 behind 5 keys, beside one of 2 behind none.
ROWS = [
    [4, 9, 1, 20, 21, 22, 23, 24, 25],
    [0, 2, 3, 5],
    [10, 11, 12, 13, 14, 15, 16],
    [30, 31, 32, 33, 34, 35, 36, 37],
    [40, 41],
]
# Of each token, which of these sequences it is of, and how many of its keys it sees.
TOKENS = [(0, 9), (1, 4), *((2, at + 1) for at in range(7)), (3, 6), (3, 7), (3, 8), (4, 1), (4, 2)]


def metadata() -> ops.AttentionMetadata:
    few = ops.FewGroup(0, 2, 9, padded(ROWS[:2], 9), hidden([[9], [4]], 9).unsqueeze(1))
    whole = ops.ChunkGroup(2, 9, 1, 7, 7, padded(ROWS[2:3], 7), None, True, None, None)
    pieces = ops.ChunkGroup(
        9,
        14,
        2,
        3,
        8,
        padded(ROWS[3:], 8),
        hidden([[6, 7, 8], [1, 2, 2]], 8).unsqueeze(1),
        False,
        torch.tensor([0, 1, 2, 3, 4, 4]),
        torch.tensor([0, 1, 2, 3, 4]),
    )
    return ops.AttentionMetadata(few=[few], chunks=[whole, pieces])


def wanted(token: int, scores_L: Tensor, most: int) -> list[int]:
    """Places of the best of the keys that a token sees, the earlier ones of equals."""
    _, seen = TOKENS[token]
    order = sorted(range(seen), key=lambda at: (-float(scores_L[at]), at))
    return sorted(order[:most])


@pytest.mark.parametrize("at_once", [1, 60, 1 << 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [1, 3, 5, 8])
def test_queries_attend_to_the_keys_that_score_best(
    most: int, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(chosen_keys, "SCORES_AT_ONCE", at_once)
    cache = random(50, 1, LATENT + ROTATED + INDEX).to(dtype)
    cache[ZERO] = 0
    index_q, weights = (
        random(len(TOKENS), INDEX_HEADS, INDEX, seed=1).to(dtype),
        random(len(TOKENS), INDEX_HEADS, seed=2),
    )
    step = metadata()
    chosen = ops.choose_keys(index_q, weights, cache, step, most)
    q = random(len(TOKENS), HEADS, LATENT + ROTATED, seed=3).to(dtype)
    out = torch.empty(len(TOKENS), HEADS, LATENT, dtype=dtype)
    ops.paged_attention(q, cache, step, 0.3, out, ops.ScoreModifiers(latent=LATENT), chosen)
    for token, (sequence, seen) in enumerate(TOKENS):
        rows = cache[ROWS[sequence][:seen], 0].double()
        products_IL = index_q[token].double() @ rows[:, -INDEX:].T
        scores_L = weights[token].double() @ products_IL.relu()
        taken = rows[wanted(token, scores_L.float(), most)]
        for head in range(HEADS):
            shares = (0.3 * taken[:, :-INDEX] @ q[token, head].double()).softmax(0)
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            exact = shares @ taken[:, :LATENT]
            torch.testing.assert_close(out[token, head].double(), exact, atol=tolerance, rtol=tolerance)


def test_equal_scores_go_to_the_earlier_keys_however_a_step_is_divided() -> None:
    cache = random(50, 1, LATENT + ROTATED + INDEX)
    cache[..., -INDEX:] = -1.0  # no head sees anything in any key
    queries = torch.ones(len(TOKENS), INDEX_HEADS, INDEX)
    few, whole, pieces = ops.choose_keys(queries, torch.ones(len(TOKENS), INDEX_HEADS), cache, metadata(), 3)
    assert few is not None and whole is not None and pieces is not None
    for found in (few, whole, pieces):
        assert found.tolist() == [[0, 1, 2]] * len(found)


def test_where_all_keys_may_be_chosen_nothing_is_scored() -> None:
    cache = torch.full((50, 1, LATENT + ROTATED + INDEX), torch.nan)
    queries, weights = random(len(TOKENS), INDEX_HEADS, INDEX), random(len(TOKENS), INDEX_HEADS)
    assert ops.choose_keys(queries, weights, cache, metadata(), 9) == [None, None, None]
