"""Blocks of keys that each key head chooses, on the CPU engine: as the torch operation defines it, equal scores to the earlier block; attention of
each key head to its own; and the same to the last bit in pieces, beside others and along a path of drafts. Numbers of the index are whole, so
that scores are exact and many are equal.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels.program import (
    PAGE_TOKENS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    CacheFormat,
    Kind,
    Layout,
    rounded_up,
)
from test_cpu_engine import LONGEST, SETS, Bench, close, random
from test_cpu_engine_index import COS, INDEX, ROTATED, SIN, turned

SIZE, GROUP, TOKENS = 40, 3, 400
# Key heads, tokens of a block, blocks, and the latest of them.
SHAPES = [
    (2, 16, 5, 1),
    (4, 32, 3, 2),
    (2, 3, 40, 0),
    (1, 7, 9, 1),
    (17, 64, 2, 1),
    (3, 1, 20, 4),
    (2, 5, 6, 6),
]
NONE = 2**31 - 1


def numbers(heads: int, tokens: int = TOKENS) -> Tensor:
    """(T, all) of tokens: those of attention, then whole ones of the index: its queries, then its key."""
    generator = torch.Generator().manual_seed(7)
    whole = torch.randint(-2, 3, (tokens, INDEX * (heads + 1)), generator=generator).float()
    return torch.cat((random(tokens, (GROUP + 2) * heads * SIZE, scale=1.5), whole), 1)


class Chosen(Bench):
    """A layer whose key heads attend to the blocks that they choose."""

    def __init__(
        self,
        name: str,
        table: Tensor,
        shape: tuple[int, int, int, int],
        *,
        threads: int = 2,
        format: CacheFormat = CacheFormat.BF16,
        **norms: Any,
    ) -> None:
        super().__init__(name, table, threads)
        heads, block, most, latest = self.shape = shape
        self.width, self.columns = (GROUP + 2) * heads * SIZE, most * block
        program = self.program
        qkv = program.buffer("qkv", Layout.F32, self.width)
        self.add(Kind.NORM, self.x, qkv, columns=self.width)
        parts = program.buffer("index", Layout.F32, (heads + 1) * INDEX)
        self.add(Kind.NORM, self.x, parts, columns=(heads + 1) * INDEX, source_at=self.width)
        of_heads: dict[str, Any] = {"heads": GROUP * heads, "kv_heads": heads, "head_dim": SIZE}
        queries = program.buffer("queries", Layout.QUERIES, GROUP * heads * SIZE)
        self.add(Kind.WRITE_KV, qkv, queries, **of_heads)
        of_index: dict[str, Any] = {"heads": heads, "kv_heads": 1, "head_dim": INDEX}
        asked = program.buffer("index queries", Layout.QUERIES, heads * INDEX)
        turns = {"rope_dim": ROTATED, "cos": COS, "sin": SIN}
        places = {"second": parts, "source_at": heads * INDEX, "inner_at": 0}
        self.add(Kind.WRITE_INDEX, parts, asked, **of_index, **turns, **places, **norms)
        self.chosen = program.buffer("chosen", Layout.F32, heads * self.columns)
        choice = {"columns": self.columns, "window": block, "offset": latest}
        self.add(Kind.CHOOSE_FOR_HEADS, asked, self.chosen, **of_index, **choice)
        self.attended = program.buffer("attended", Layout.BF16, GROUP * heads * SIZE)
        reads: dict[str, Any] = {"second": self.chosen, "columns": self.columns}
        self.add(Kind.ATTENTION, queries, self.attended, **of_heads, scale=SIZE**-0.5, **reads)
        held = rounded_up(SIZE, TILE_INPUTS) + rounded_up(SIZE, TILE_OUTPUTS)
        if format != CacheFormat.BF16:
            held = held // 2 + (4 if format == CacheFormat.INT8 else 0)
        width = heads * held + rounded_up(INDEX, TILE_INPUTS)
        nothing = torch.full((3 * rounded_up(LONGEST, PAGE_TOKENS), width), -1, dtype=torch.int16)
        self.caches[0], self.cache_format = nothing.view(torch.bfloat16), format

    def lists(self, made: Any, count: int) -> Tensor:
        """(T, I, A)."""
        found: Tensor = made.rows(self.chosen, count).contiguous().view(torch.int32).to(torch.int64)
        return found.view(count, self.shape[0], self.columns).clone()

    def feed(self, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """What a sequence's tokens choose and are given in such pieces, each beside others."""
        chosen, attended, done = [], [], 0
        for turn, count in enumerate(counts):
            beside = [[(5 * i + row) % TOKENS for i in range(9)] for row in range(turn % 3)]
            ids = [*range(done, done + count), *(token for other in beside for token in other)]
            made = self.run(ids, [count, *map(len, beside)], [done] + [0] * len(beside))
            chosen.append(self.lists(made, count))
            attended.append(made.rows(self.attended, count).clone())
            done += count
        return torch.cat(chosen), torch.cat(attended)


def wanted(table: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """(T, I, A): what the torch operation chooses for the tokens of a sequence in one piece, ascending."""
    heads, block, most, latest = shape
    tokens = len(table)
    queries, keys = torch.split(table[:, -INDEX * (heads + 1) :], [heads * INDEX, INDEX], 1)
    cache = turned(keys.unsqueeze(1), torch.arange(tokens))
    queries = turned(queries.view(tokens, heads, INDEX), torch.arange(tokens))
    group = ops.ChunkGroup(0, tokens, 1, tokens, tokens, torch.arange(tokens), None, True, None, None)
    step = ops.AttentionMetadata(chunks=[group])
    (chosen,) = ops.choose_head_blocks(queries, cache, step, block, most, latest)
    assert chosen is not None
    seen = torch.arange(tokens).view(-1, 1, 1)
    return chosen.masked_fill((chosen < 0) | (chosen > seen), NONE).sort(-1).values


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_chooses_what_the_definition_chooses_and_attends_to_it_alone(
    name: str, shape: tuple[int, int, int, int]
) -> None:
    table, heads = numbers(shape[0]), shape[0]
    exact = wanted(table, shape)
    bench = Chosen(name, table, shape)
    chosen, attended = bench.feed((TOKENS,))
    assert torch.equal(chosen[bench.columns :], exact[bench.columns :])
    x = table[:, : bench.width].bfloat16().double()
    q, k, v = torch.split(x, [GROUP * heads * SIZE, heads * SIZE, heads * SIZE], 1)
    for token in (0, bench.columns - 1, bench.columns, 255, 256, 300, TOKENS - 1):
        for head in range(heads):
            taken = torch.arange(token + 1)
            if token >= bench.columns:
                taken = exact[token, head][exact[token, head] < NONE]
            of_key = slice(head * SIZE, (head + 1) * SIZE)
            of_queries = slice(head * GROUP * SIZE, (head + 1) * GROUP * SIZE)
            shares = (q[token, of_queries].view(GROUP, SIZE) @ k[taken, of_key].T * SIZE**-0.5).softmax(-1)
            close(attended[token, of_queries], (shares @ v[taken, of_key]).flatten(), ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", [CacheFormat.BF16, CacheFormat.INT8])
def test_a_token_gets_the_same_to_the_last_bit(
    name: str, shape: tuple[int, int, int, int], format: CacheFormat
) -> None:
    table = numbers(shape[0])
    one = Chosen(name, table, shape, threads=1, format=format).feed((TOKENS,))
    other = Chosen(name, table, shape, format=format).feed((1, 2, 13, 16, 101, 200, 33, *[1] * 34))
    columns = shape[1] * shape[2]
    assert torch.equal(one[0][columns:], other[0][columns:]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("name", SETS)
def test_queries_and_keys_are_normed_before_they_turn(name: str) -> None:
    shape = (2, 4, 6, 1)
    weights = [1 + 0.3 * random(INDEX, seed=seed) for seed in (1, 2)]
    table = numbers(2)
    bench = Chosen(name, table, shape, eps=1e-5, norm_weight=weights[0], second_weight=weights[1])
    chosen, _ = bench.feed((TOKENS,))
    parts = table[:, -3 * INDEX :].view(TOKENS, 3, INDEX)
    normed = parts * (parts.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    made = turned(normed * torch.stack([weights[0], weights[0], weights[1]]), torch.arange(TOKENS))
    made = made.bfloat16().double()
    for token in (24, 100, 255, 256, TOKENS - 1):
        blocks = token // 4 + 1
        scores = torch.full((2, blocks * 4), -torch.inf, dtype=torch.float64)
        scores[:, : token + 1] = made[token, :2] @ made[: token + 1, 2].T
        best = scores.view(2, blocks, 4).amax(-1)
        best[:, -1] = torch.inf
        for head in range(2):
            listed = chosen[token, head]
            taken = torch.unique(listed[listed < NONE] // 4)
            # Where a number is rounded another way, by its last bit.
            lacks = best[head].topk(6).values[1:] - best[head][taken].sort(descending=True).values[1:]
            assert len(taken) == 6 and lacks.abs().max() < 0.05


@pytest.mark.parametrize("name", SETS)
def test_a_path_of_a_tree_chooses_as_if_its_tokens_were_one_behind_the_other(name: str) -> None:
    shape, before = (2, 16, 3, 1), 59
    table = numbers(2)
    # Behind 59 tokens: 60, of it 61 and 62, and 63 behind the latter.
    plain = Chosen(name, table, shape)
    plain.run(list(range(before)))
    exact = plain.run([60, 62, 63], [3], [before])
    expected = plain.lists(exact, 3), exact.rows(plain.attended, 3).clone()
    bench = Chosen(name, table, shape)
    made = bench.run(list(range(before)))
    blocks = rounded_up(LONGEST, PAGE_TOKENS) // PAGE_TOKENS
    # Places 59 to 62; 62 is at depth 1 as 61 is, and 63 at depth 2 reads depth 1 from the place of 62.
    moved = [[2, before + 1, before + 2], [3, before + 1, before + 2], [3, before + 2, before + 3]]
    made.step(
        np.array([60, 61, 62, 63], np.int64),
        np.array([0], np.int64),
        np.array([before], np.int64),
        np.array([4], np.int64),
        np.arange(blocks).reshape(1, 1, blocks)[:, :, ::-1].copy(),
        positions_T=np.array([before, before + 1, before + 1, before + 2], np.int64),
        moved_M3=np.array(moved, np.int64),
    )
    assert torch.equal(bench.lists(made, 4)[[0, 2, 3]], expected[0])
    assert torch.equal(made.rows(bench.attended, 4)[[0, 2, 3]], expected[1])


@pytest.mark.parametrize("name", SETS)
def test_a_block_with_what_is_no_number_is_chosen_first_and_in_its_own_row_alone(name: str) -> None:
    table = numbers(2, 100)
    table[20, -5] = torch.nan  # of its index key
    bench = Chosen(name, table, (2, 4, 3, 1))
    made = bench.run(list(range(100)), [60, 40], [0, 0])
    assert made.rows(bench.attended, 100).isfinite().all()
    lists = bench.lists(made, 100)
    assert (lists[21:60] == 20).any(-1).all(), "what is no number is the largest, as torch sorts"
    assert ((lists[72:] >= 0) & ((lists[72:] < 40) | (lists[72:] == NONE))).all()


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (Kind.WRITE_INDEX, {"source_at": 3 * INDEX}, "an index that this library does not know"),
        (Kind.WRITE_INDEX, {"inner_at": 2 * INDEX}, "an index that this library does not know"),
        (Kind.CHOOSE_FOR_HEADS, {"heads": 3}, "an index that this library does not know"),
        (Kind.CHOOSE_FOR_HEADS, {"window": 5}, "a choice of keys that this library does not know"),
        (Kind.CHOOSE_FOR_HEADS, {"window": 0}, "a choice of keys that this library does not know"),
        (Kind.CHOOSE_FOR_HEADS, {"offset": 7}, "a choice of keys that this library does not know"),
        (Kind.CHOOSE_FOR_HEADS, {"columns": 20}, "a choice of keys that this library does not know"),
        (Kind.ATTENTION, {"columns": 20}, "attention to keys that were chosen otherwise"),
        (Kind.ATTENTION, {"kv_heads": 1}, "attention to keys that were chosen otherwise"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: Kind, change: dict[str, Any], words: str) -> None:
    bench = Chosen("generic", numbers(2), (2, 4, 6, 1))
    found = next(operation for operation in bench.program.body if operation.kind == kind)
    for field, value in change.items():
        setattr(found, field, value)
    with pytest.raises(ValueError, match=words):
        bench.run([0])
