"""The choice of blocks of keys, and attention to them, against loops in double precision."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from chosen_step import ROWS, TOKENS, ZERO, metadata, random
from penstock_kernels import attention, chosen_blocks

SIZE, ROTATED, INDEX = 6, 2, 4
HEADS, KEY_HEADS, INDEX_HEADS, BLOCK = 4, 2, 3, 3
ROWS_OF_KEYS = 2 * KEY_HEADS  # behind them a row that an index key fits in
NORM = (1 + 0.1 * torch.arange(INDEX), 1e-6)


def turns(positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin (T, 1, R) of a plane that turns by a third for each position."""
    angles_T1 = positions.unsqueeze(1) / 3
    cos, sin = angles_T1.cos(), angles_T1.sin()
    return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)


def write(cache: Tensor, keys: Tensor, step: ops.AttentionMetadata, tokens: list[tuple[int, int]]) -> None:
    """Writes these tokens' index keys."""
    positions = torch.tensor([seen - 1 for _, seen in tokens])
    slots = torch.tensor([ROWS[sequence][seen - 1] for sequence, seen in tokens])
    cos, sin = (part.to(cache.dtype) for part in turns((positions - BLOCK + 1).clamp_min(0)))
    norm = (NORM[0].to(cache.dtype), NORM[1])
    ops.write_block_keys(keys, cache, slots, positions, step, BLOCK, norm, (cos, sin))


def block_keys(raw: Tensor) -> Tensor:
    """(Y, C) in double precision of a sequence's own index keys (L, C)."""
    made = []
    for begin in range(0, len(raw) - BLOCK + 1, BLOCK):
        mean = raw[begin : begin + BLOCK].double().mean(0).to(raw.dtype).double()
        normed = mean / (mean.square().mean() + NORM[1]).sqrt() * NORM[0].double()
        angle = torch.tensor(begin / 3, dtype=torch.float64)
        x, y = normed[0].clone(), normed[1].clone()
        normed[0], normed[1] = x * angle.cos() - y * angle.sin(), y * angle.cos() + x * angle.sin()
        made.append(normed)
    return torch.stack(made) if made else torch.zeros(0, INDEX, dtype=torch.float64)


@pytest.fixture
def raw() -> list[Tensor]:
    """Index keys of each sequence's tokens."""
    return [random(len(rows), INDEX, seed=10 + at) for at, rows in enumerate(ROWS)]


def filled(raw: list[Tensor], dtype: torch.dtype) -> Tensor:
    """A cache in which the step's tokens are written behind those before them, whose blocks are complete already."""
    cache = random(50, ROWS_OF_KEYS + 1, SIZE).to(dtype)
    cache[ZERO] = 0
    for sequence, before in ((0, 10), (1, 3), (3, 7)):
        step = ops.AttentionMetadata(
            chunks=[
                ops.ChunkGroup(
                    0,
                    before,
                    1,
                    before,
                    before,
                    torch.tensor(ROWS[sequence][:before]),
                    None,
                    True,
                    None,
                    None,
                )
            ]
        )
        tokens = [(sequence, at + 1) for at in range(before)]
        write(cache, raw[sequence][:before].to(dtype), step, tokens)
    keys = torch.stack([raw[sequence][seen - 1] for sequence, seen in TOKENS])
    write(cache, keys.to(dtype), metadata(), TOKENS)
    return cache


@pytest.mark.parametrize("at_once", [1, 60, 1 << 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_queries_attend_to_the_blocks_that_score_best_and_to_the_keys_behind_them(
    most: int, dtype: torch.dtype, at_once: int, raw: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(chosen_blocks, "SCORES_AT_ONCE", at_once)
    cache = filled(raw, dtype)
    index_q = random(len(TOKENS), INDEX_HEADS, INDEX, seed=1).to(dtype)
    step = metadata()
    chosen = ops.choose_blocks(index_q, cache, step, BLOCK, most)
    assert [taken is None for taken in chosen] == [most == 3] * 3
    q = random(len(TOKENS), HEADS, SIZE, seed=3).to(dtype)
    out = torch.empty(len(TOKENS), HEADS, SIZE, dtype=dtype)
    ops.paged_attention(q, cache[:, :ROWS_OF_KEYS], step, 0.3, out, ops.PLAIN, chosen)
    left_something = False
    for token, (sequence, seen) in enumerate(TOKENS):
        scores_Y = (block_keys(raw[sequence][:seen].to(dtype)) @ index_q[token].double().T).relu().sum(-1)
        best = sorted(range(len(scores_Y)), key=lambda at: (-float(scores_Y[at]), at))[:most]
        behind = range(len(scores_Y) * BLOCK, seen)
        taken = sorted([*(at * BLOCK + inside for at in best for inside in range(BLOCK)), *behind])
        left_something |= len(taken) < seen
        rows = cache[[ROWS[sequence][at] for at in taken]].double()
        for head in range(HEADS):
            keys, values = rows[:, head // 2], rows[:, KEY_HEADS + head // 2]
            shares = (0.3 * keys @ q[token, head].double()).softmax(0)
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(
                out[token, head].double(), shares @ values, atol=tolerance, rtol=tolerance
            )
    assert left_something == (most < 3)


def test_a_blocks_key_is_in_the_row_of_its_last_token_wherever_the_sequence_was_cut(
    raw: list[Tensor],
) -> None:
    cache = filled(raw, torch.float32)
    for sequence, rows in enumerate(ROWS):
        made = block_keys(raw[sequence])
        for at, row in enumerate(rows):
            wanted = made[at // BLOCK] if at % BLOCK == BLOCK - 1 else raw[sequence][at].double()
            torch.testing.assert_close(cache[row].flatten()[-INDEX:].double(), wanted, atol=1e-6, rtol=1e-6)
    untouched = random(50, ROWS_OF_KEYS + 1, SIZE)
    assert torch.equal(cache[:ZERO, :ROWS_OF_KEYS], untouched[:ZERO, :ROWS_OF_KEYS])


def test_equal_scores_go_to_the_earlier_blocks_however_a_step_is_divided() -> None:
    cache = random(50, ROWS_OF_KEYS + 1, SIZE)
    cache.view(50, -1)[:, -INDEX:] = -1.0  # no head sees anything in any block
    queries = torch.ones(len(TOKENS), INDEX_HEADS, INDEX)
    few, whole, parts = ops.choose_blocks(queries, cache, metadata(), BLOCK, 1)
    assert few is not None and whole is not None and parts is not None
    assert few.tolist() == [[0, 1, 2, 9, 10], [-1, 0, 1, 2, 3]]
    assert whole[-2:].tolist() == [[-1, -1, 0, 1, 2], [-1, 0, 1, 2, 9]]
    assert whole[:2].tolist() == [[-1, -1, -1, -1, 0], [-1, -1, -1, 0, 1]]
    assert parts[:3].tolist() == [[0, 1, 2, 6, 7], [-1, -1, 0, 1, 2], [-1, 0, 1, 2, 9]]
