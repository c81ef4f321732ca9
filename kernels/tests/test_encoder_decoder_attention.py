"""Attention of encoder-decoders against the formula, token by token in double precision."""

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
HEADS, SIZE, SCALE = 3, 8, 0.7


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attended(q_HD: Tensor, k_LHD: Tensor, v_LHD: Tensor, added_HL: Tensor | float = 0.0) -> Tensor:
    scores_HL = torch.einsum("hd,lhd->hl", q_HD.double(), k_LHD.double()) * SCALE + added_HL
    return torch.einsum("hl,lhd->hd", scores_HL.softmax(-1), v_LHD.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
def test_every_token_of_an_input_sees_all_of_its_own(dtype: torch.dtype, biased: bool) -> None:
    counts = [5, 1, 12]
    qkv = random(sum(counts), 3 * HEADS, SIZE, seed=0).to(dtype)
    bias = random(HEADS, 2 * max(counts) - 1, seed=1).to(dtype) if biased else None
    out = qkv.new_empty(sum(counts), HEADS, SIZE)
    ops.bidirectional_attention(qkv, counts, SCALE, bias, out)
    begin = 0
    for count in counts:
        own = qkv[begin : begin + count]
        q, k, v = own[:, :HEADS], own[:, HEADS : 2 * HEADS], own[:, 2 * HEADS :]
        for query in range(count):
            added: Tensor | float = 0.0
            if bias is not None:
                # The entry of the distance 0 is in the middle.
                first = max(counts) - 1 - query
                added = bias[:, first : first + count].double()
            exact = attended(q[query], k, v, added)
            torch.testing.assert_close(
                out[begin + query].double(), exact, atol=DTYPES[dtype], rtol=DTYPES[dtype]
            )
        begin += count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_rectangle_sees_the_rows_that_it_names(dtype: torch.dtype, biased: bool) -> None:
    """Two sequences of 2 and 1 queries over 4 and 2 keys, which lie anywhere, as do the tokens."""
    cache = random(20, 2 * HEADS, SIZE, seed=2).to(dtype)
    cache[7] = torch.nan  # nobody's row
    cache[19] = 0  # what padding reads
    q = random(5, HEADS, SIZE, seed=3).to(dtype)
    bias = random(HEADS, 3, seed=4).to(dtype) if biased else None
    tokens, keys = [[4, 1], [2]], [[3, 9, 4, 0], [12, 11]]
    # The first sequence's queries are at 2 and 3, the second's at 1.
    first = [2, 1]
    mask = torch.full((2, 1, 2, 4), -torch.inf, dtype=dtype)
    distances = torch.zeros(2, 2, 4, dtype=torch.int64)
    for s in range(2):
        for at in range(2):
            sees = min(first[s] + at, len(keys[s]) - 1)
            mask[s, 0, at, : sees + 1] = 0
            distances[s, at, : sees + 1] = sees - torch.arange(sees + 1)
    rectangle = ops.Rectangle(
        sequences=2,
        queries=2,
        keys=4,
        tokens_SQ=torch.tensor([4, 1, 2, 2]),
        real=torch.tensor([0, 1, 2]),
        slot_mapping_SL=torch.tensor([*keys[0], *keys[1], 19, 19]),
        mask_S1QL=mask,
        distances_SQL=distances.reshape(-1),
    )
    out = torch.full((5, HEADS, SIZE), 9.0, dtype=dtype)
    ops.rectangle_attention(q, cache, rectangle, ops.score_mask(rectangle, bias), SCALE, out)
    for s in range(2):
        for at, token in enumerate(tokens[s]):
            rows = cache[keys[s][: first[s] + at + 1]]
            added: Tensor | float = 0.0
            if bias is not None:
                # What is further away than the table knows is as far as its end.
                away = (first[s] + at - torch.arange(len(rows))).clamp(max=2)
                added = bias[:, away].double()
            exact = attended(q[token], rows[:, :HEADS], rows[:, HEADS:], added)
            torch.testing.assert_close(out[token].double(), exact, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert (out[[0, 3]] == 9).all(), "tokens of others stay as they are"
