"""Chosen blocks of keys on the CPU engine: the keys of the blocks that score best by the formulas, and those behind the last; attention to
them alone; and the same to the last bit in pieces and beside others.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from penstock_kernels.program import PAGE_TOKENS, TILE_INPUTS, TILE_OUTPUTS, Kind, Layout, rounded_up
from test_cpu_engine import LONGEST, SETS, Bench, close, random

HEADS, KV_HEADS, SIZE, INDEX, ROTATED, EPS, TOKENS = 4, 2, 40, 24, 8, 1e-5, 400
QKV = (HEADS + 2 * KV_HEADS) * SIZE
ANGLES = torch.outer(torch.arange(LONGEST + PAGE_TOKENS).float(), 0.3 ** torch.arange(1, ROTATED // 2 + 1))
SHAPES = [(4, 5, 3), (4, 40, 17), (3, 20, 8), (16, 9, 5), (1, 30, 2), (7, 4, 1)]  # block, blocks, index heads


class Blocked(Bench):
    """A layer that attends to the blocks that it chooses."""

    def __init__(self, name: str, block: int, most: int, index_heads: int, threads: int = 2) -> None:
        self.block, self.most, self.index_heads = block, most, index_heads
        self.table = random(TOKENS, QKV + (index_heads + 1) * INDEX, scale=1.5)
        super().__init__(name, self.table, threads)
        self.query_weight, self.key_weight = 1 + 0.3 * random(INDEX, seed=1), 1 + 0.3 * random(INDEX, seed=2)
        program = self.program
        qkv = program.buffer("qkv", Layout.F32, QKV)
        self.add(Kind.NORM, self.x, qkv, columns=QKV)
        index = program.buffer("index", Layout.F32, (index_heads + 1) * INDEX)
        self.add(Kind.NORM, self.x, index, columns=(index_heads + 1) * INDEX, source_at=QKV)
        shape: dict[str, Any] = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": SIZE}
        queries = program.buffer("queries", Layout.QUERIES, HEADS * SIZE)
        self.add(Kind.WRITE_KV, qkv, queries, **shape)
        of_index: dict[str, Any] = {"heads": index_heads, "kv_heads": 1, "head_dim": INDEX, "window": block}
        asked = program.buffer("index queries", Layout.QUERIES, index_heads * INDEX)
        weights = {"norm_weight": self.query_weight, "second_weight": self.key_weight, "eps": EPS}
        turns = {"rope_dim": ROTATED, "cos": ANGLES.cos(), "sin": ANGLES.sin()}
        self.add(Kind.WRITE_BLOCKS, index, asked, **of_index, **weights, **turns)
        self.columns = (most + 1) * block - 1
        self.chosen = program.buffer("chosen", Layout.F32, self.columns)
        self.add(Kind.CHOOSE, asked, self.chosen, **of_index, columns=self.columns)
        self.attended = program.buffer("attended", Layout.BF16, HEADS * SIZE)
        choice: dict[str, Any] = {"second": self.chosen, "columns": self.columns}
        self.add(Kind.ATTENTION, queries, self.attended, **shape, scale=SIZE**-0.5, **choice)
        held = KV_HEADS * (rounded_up(SIZE, TILE_INPUTS) + rounded_up(SIZE, TILE_OUTPUTS))
        width = held + rounded_up(INDEX, TILE_INPUTS)
        self.caches[0] = torch.full((3 * rounded_up(LONGEST, PAGE_TOKENS), width), torch.nan).bfloat16()

    def feed(self, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """What a sequence's tokens choose and are given in such pieces, each beside others."""
        chosen, attended, done = [], [], 0
        for turn, count in enumerate(counts):
            beside = [[(5 * i + row) % TOKENS for i in range(9)] for row in range(turn % 3)]
            ids = [*range(done, done + count), *(token for other in beside for token in other)]
            made = self.run(ids, [count, *map(len, beside)], [done] + [0] * len(beside))
            chosen.append(made.rows(self.chosen, count).contiguous().view(torch.int32).clone())
            attended.append(made.rows(self.attended, count).clone())
            done += count
        return torch.cat(chosen), torch.cat(attended)


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """(T, ..., C) whose first numbers are rotated."""
    shape = (len(positions), *[1] * (x.dim() - 2), -1)
    cos, sin = (part[positions].double().view(shape) for part in (ANGLES.cos(), ANGLES.sin()))
    a, b = x[..., : ROTATED // 2], x[..., ROTATED // 2 : ROTATED]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., ROTATED:]), -1).bfloat16().double()


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("block", "most", "index_heads"), SHAPES)
def test_a_token_attends_to_the_best_blocks(name: str, block: int, most: int, index_heads: int) -> None:
    bench = Blocked(name, block, most, index_heads)
    chosen, attended = bench.feed((TOKENS,))
    numbers = bench.table.bfloat16().double()
    q, k, v = torch.split(numbers[:, :QKV], [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], 1)
    asked = normed(numbers[:, QKV:-INDEX].view(TOKENS, index_heads, INDEX), bench.query_weight)
    asked = turned(asked, torch.arange(TOKENS))
    blocks = TOKENS // block
    means = numbers[: blocks * block, -INDEX:].view(blocks, block, INDEX).mean(1).bfloat16().double()
    keys = turned(normed(means, bench.key_weight), torch.arange(blocks) * block)
    scores = torch.einsum("tic,bc->tib", asked, keys).relu().sum(1)
    for token in (0, bench.columns - 1, bench.columns, 255, 256, 300, TOKENS - 2, TOKENS - 1):
        taken, complete = torch.arange(token + 1), (token + 1) // block
        if complete > most:
            listed = chosen[token]
            taken = listed[listed < TOKENS].long()
            assert (taken.diff() > 0).all() and (listed[len(taken) :] == 2**31 - 1).all()
            whole, behind = taken[: most * block].view(most, block), taken[most * block :]
            assert torch.equal(behind, torch.arange(complete * block, token + 1))
            assert torch.equal(whole, whole[:, :1] + torch.arange(block)) and not (whole[:, 0] % block).any()
            best = scores[token, :complete].topk(most).values
            # Where a number of a key is rounded another way, by its last bit.
            found = scores[token, whole[:, 0] // block].sort(descending=True).values
            assert (found - best).abs().max() < 0.1
        for head in range(HEADS):
            of_key, of_query = (slice(at * SIZE, (at + 1) * SIZE) for at in (head * KV_HEADS // HEADS, head))
            shares = (k[taken, of_key] @ q[token, of_query] * SIZE**-0.5).softmax(0)
            close(attended[token, of_query], shares @ v[taken, of_key], ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("block", "most", "index_heads"), SHAPES)
def test_a_token_gets_the_same_to_the_last_bit(name: str, block: int, most: int, index_heads: int) -> None:
    whole = Blocked(name, block, most, index_heads, threads=1)
    pieces = (1, 2, 13, 16, 101, 200, 33, *[1] * 34)
    for one, other in zip(
        whole.feed((TOKENS,)), Blocked(name, block, most, index_heads).feed(pieces), strict=True
    ):
        assert torch.equal(one[whole.columns :], other[whole.columns :])


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (Kind.WRITE_BLOCKS, {"window": 0}),
        (Kind.WRITE_BLOCKS, {"rope_dim": 26}),
        (Kind.WRITE_BLOCKS, {"norm_weight": None}),
        (Kind.WRITE_BLOCKS, {"cos": None}),
        (Kind.WRITE_BLOCKS, {"heads": 4}),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(kind: Kind, other: dict[str, Any]) -> None:
    bench = Blocked("generic", 4, 5, 3)
    found = next(operation for operation in bench.program.body if operation.kind == kind)
    for field, value in other.items():
        setattr(found, field, value)
    with pytest.raises(ValueError, match="an index that this library does not know"):
        bench.run([0])


@pytest.mark.parametrize("other", [{"window": 5}, {"window": 24}, {"window": 4, "rows": 4}])
def test_a_choice_that_contradicts_itself_is_refused(other: dict[str, Any]) -> None:
    bench = Blocked("generic", 4, 5, 3)
    found = next(operation for operation in bench.program.body if operation.kind == Kind.CHOOSE)
    for field, value in other.items():
        setattr(found, field, value)
    with pytest.raises(ValueError, match="a choice of keys that this library does not know"):
        bench.run([0])
