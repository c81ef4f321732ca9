"""What queries say of distances, added to scores by the CPU engine, beside the definition in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.attention import distance_bias
from penstock_kernels.program import Kind, Layout
from test_cpu_engine import LONGEST, SETS, Bench, attends_in_pieces, empty_cache, random

HEADS, KEY_HEADS, SIZE, RANK = 4, 2, 32, 5
QKV = (HEADS + 2 * KEY_HEADS) * SIZE


def said_choices(profiles_RL: Tensor, factors: Tensor | None) -> dict[str, Any]:
    """As `recorder` has them."""
    rank, reach = profiles_RL.shape
    rows = torch.nn.functional.pad(profiles_RL.flip(1), (16, 16))
    return {
        "norm_weight": rows.contiguous(),
        "positions": factors,
        "rows": rank,
        "columns": reach,
        "offset": reach - 1,
    }


def attending(name: str, table: Tensor, window: int, said: dict[str, Any]) -> tuple[Bench, int]:
    """A program whose queries, keys and values, and what is said of distances, are its tokens' numbers."""
    bench = Bench(name, table)
    shape = {"heads": HEADS, "kv_heads": KEY_HEADS, "head_dim": SIZE}
    queries = bench.program.buffer("queries", Layout.QUERIES, HEADS * SIZE)
    states = bench.program.buffer("said", Layout.F32, HEADS * RANK)
    attended = bench.program.buffer("attended", Layout.BF16, HEADS * SIZE)
    bench.add(Kind.WRITE_KV, bench.x, queries, **shape)
    bench.add(Kind.NORM, bench.x, states, source_at=QKV, columns=HEADS * RANK)
    bench.add(
        Kind.ATTENTION, queries, attended, **shape, scale=SIZE**-0.5, window=window, third=states, **said
    )
    bench.caches[0] = empty_cache(KEY_HEADS, SIZE)
    return bench, attended


def exact(rows: Tensor, window: int, profiles_RL: Tensor, factors: Tensor | None) -> Tensor:
    """Of one sequence, (T, H D)."""
    tokens, split = len(rows), [HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE, HEADS * RANK]
    q, k, v, said = torch.split(rows, split, 1)
    q, k, v = (part.reshape(tokens, -1, SIZE) for part in (q, k, v))
    k, v = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (k, v))
    at = torch.arange(tokens)
    said = said.view(1, tokens, HEADS, RANK)
    if factors is not None:
        said = said * factors[:tokens].view(1, -1, 1, 1)
    added_QHK = distance_bias(said, profiles_RL, at[None], tokens)[0]
    scores = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5 + added_QHK.transpose(0, 1)
    seen = at[None] <= at[:, None]
    if window:
        seen &= at[None] > at[:, None] - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(1)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("reach", "window", "is_heated"), [(1, 0, False), (40, 40, False), (100, 0, True), (640, 0, True)]
)
def test_what_queries_say_of_distances_is_added_to_scores(
    name: str, reach: int, window: int, is_heated: bool
) -> None:
    table, profiles = random(640, QKV + HEADS * RANK), random(RANK, reach, seed=1)
    factors = torch.from_numpy(np.linspace(0.5, 2.0, LONGEST + 20, dtype=np.float32)) if is_heated else None
    bench, attended = attending(name, table, window, said_choices(profiles, factors))
    ids = [list(range(600)), [(11 * i + 5) % 640 for i in range(37)]]
    wanted = [exact(table[row].bfloat16().float(), window, profiles, factors) for row in ids]
    # Of what is added nothing is rounded: without it all of this would be elsewhere.
    without = exact(table[ids[1]].bfloat16().float(), window, torch.zeros_like(profiles), factors)
    assert (without - wanted[1]).abs().max() > 0.1
    attends_in_pieces(bench, attended, ids, wanted)


@pytest.mark.parametrize("change", [{"rows": 65}, {"offset": 40}, {"norm_weight": None}], ids=str)
def test_what_contradicts_it_is_refused(change: dict[str, Any]) -> None:
    said = said_choices(random(RANK, 40), None) | change
    bench, _ = attending(SETS[0], random(8, QKV + HEADS * RANK), 0, said)
    with pytest.raises(ValueError, match="what queries say of distances otherwise"):
        bench.run([1])
