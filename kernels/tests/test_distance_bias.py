"""What queries say of distances, added to the scores of attention, against loops in double precision."""

import pytest
import torch

import penstock_kernels as ops
from chosen_step import ROWS, TOKENS, ZERO, metadata, random
from penstock_kernels import attention

SIZE, HEADS, KEY_HEADS, RANK = 6, 4, 2, 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reach", [1, 4, 40])
def test_a_query_adds_what_it_says_of_each_distance(
    reach: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 60)  # some queries at a time
    cache = random(50, 2 * KEY_HEADS, SIZE).to(dtype)
    cache[ZERO] = 0
    q, states = random(len(TOKENS), HEADS, SIZE, seed=2).to(dtype), random(len(TOKENS), HEADS, RANK, seed=3)
    profiles, out = random(RANK, reach, seed=4), torch.empty_like(q)
    modifiers = ops.ScoreModifiers(distances=ops.DistanceBias(states, profiles))
    ops.paged_attention(q, cache, metadata(), 0.5, out, modifiers)
    for token, (sequence, seen) in enumerate(TOKENS):
        rows = ROWS[sequence][:seen]
        for head in range(HEADS):
            key_head = head // (HEADS // KEY_HEADS)
            k, v = cache[rows, key_head].double(), cache[rows, KEY_HEADS + key_head].double()
            scores = k @ q[token, head].double() * 0.5
            for at in range(seen):
                distance = seen - 1 - at
                if distance < reach:
                    scores[at] += states[token, head].double() @ profiles[:, distance].double()
            error = 1e-6 if dtype == torch.float32 else 0.02
            torch.testing.assert_close(
                out[token, head].double(), scores.softmax(0) @ v, atol=error, rtol=error
            )
