"""The choice of blocks of keys for each key head, and attention to them, against loops in double precision."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from chosen_step import ROWS, TOKENS, ZERO, metadata, random
from penstock_kernels import attention
from penstock_kernels.score_modifiers import PLAIN

SIZE, INDEX, HEADS, KEY_HEADS, BLOCK = 6, 4, 4, 2, 3
ROWS_OF_KEYS = 2 * KEY_HEADS  # behind them a row that an index key fits in


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
