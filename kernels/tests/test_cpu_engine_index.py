"""An index in the CPU engine, and attention to the keys that it chooses: as the torch operations define it, the earlier one of equal keys, and
the same however a token is computed. Numbers of the index are whole, so that scores are exact and many are equal.
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

HEADS, SIZE, INDEX, ROTATED = 4, 48, 24, 8
QKV = (HEADS + 2) * SIZE
# A quarter of a turn for each position in one plane, and half of one in the next: what is turned stays whole.
TURNS = torch.arange(LONGEST + PAGE_TOKENS).unsqueeze(1) * torch.tensor([1, 2, 0, 3]) % 4
COS, SIN = torch.tensor([1.0, 0.0, -1.0, 0.0])[TURNS], torch.tensor([0.0, 1.0, 0.0, -1.0])[TURNS]


def numbers(tokens: int, index_heads: int, kinds: int = 0) -> Tensor:
    """(T, QKV + C + I C + I) of tokens: those of attention, then whole ones of the index: its key, queries and weights. `kinds`: of so
    many different keys.
    """
    generator = torch.Generator().manual_seed(7)
    whole = torch.randint(-2, 3, (tokens, INDEX * (1 + index_heads)), generator=generator).float()
    if kinds:
        whole[:, :INDEX] = whole[torch.arange(tokens) % kinds, :INDEX]
    weights = torch.randint(-3, 6, (tokens, index_heads), generator=generator).float()
    return torch.cat((random(tokens, QKV, scale=1.5), whole, weights), 1)


def pages(format: CacheFormat = CacheFormat.BF16) -> Tensor:
    """Of one layer, with index keys behind keys and values; nothing in them is a number."""
    held = rounded_up(SIZE, TILE_INPUTS) + rounded_up(SIZE, TILE_OUTPUTS)
    if format != CacheFormat.BF16:
        held = held // 2 + (4 if format == CacheFormat.INT8 else 0)
    rows = 3 * rounded_up(LONGEST, PAGE_TOKENS)
    return torch.full((rows, held + rounded_up(INDEX, TILE_INPUTS)), -1, dtype=torch.int16).view(
        torch.bfloat16
    )


class Indexed(Bench):
    """A program that chooses keys for its tokens and attends to them."""

    def __init__(
        self, name: str, table: Tensor, index_heads: int, most: int, *, chooses: bool = True, threads: int = 2
    ) -> None:
        super().__init__(name, table, threads)
        program = self.program

        def part(buffer: str, first: int, width: int) -> int:
            made = program.buffer(buffer, Layout.F32, width)
            self.add(Kind.NORM, self.x, made, source_at=first, columns=width)
            return made

        qkv = part("qkv", 0, QKV)
        key = part("index key", QKV, INDEX)
        asked = part("asked", QKV + INDEX, index_heads * INDEX)
        weights = part("weights", QKV + INDEX * (1 + index_heads), index_heads)
        shape = {"heads": HEADS, "kv_heads": 1, "head_dim": SIZE}
        queries = program.buffer("queries", Layout.QUERIES, HEADS * SIZE)
        self.attended = program.buffer("attended", Layout.BF16, HEADS * SIZE)
        self.add(Kind.WRITE_KV, qkv, queries, **shape)
        index = {"heads": index_heads, "kv_heads": 1, "head_dim": INDEX}
        index_queries = program.buffer("index queries", Layout.QUERIES, index_heads * INDEX)
        turns = {"rope_dim": ROTATED, "cos": COS, "sin": SIN}
        self.add(Kind.WRITE_INDEX, key, index_queries, second=asked, **index, **turns)
        self.chosen = program.buffer("chosen", Layout.F32, most)
        self.add(Kind.CHOOSE, index_queries, self.chosen, second=weights, columns=most, scale=0.5, **index)
        reads: dict[str, Any] = {"second": self.chosen, "columns": most} if chooses else {}
        self.add(Kind.ATTENTION, queries, self.attended, **shape, scale=SIZE**-0.5, **reads)
        self.caches[0] = pages()


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """(T, H, C) as the index has it."""
    made = x.clone()
    cos, sin = (torch.cat((part, part), -1)[positions].unsqueeze(1) for part in (COS, SIN))
    sin[..., : ROTATED // 2] *= -1
    ops.rope(made[..., :ROTATED], cos, sin)
    return made


def wanted(table: Tensor, index_heads: int, most: int) -> Tensor:
    """(T, A): what the torch operations choose for the tokens of a sequence, in one piece."""
    tokens = len(table)
    positions = torch.arange(tokens)
    keys, queries, weights = torch.split(table[:, QKV:], [INDEX, index_heads * INDEX, index_heads], 1)
    cache = turned(keys.unsqueeze(1), positions)
    queries = turned(queries.view(tokens, index_heads, INDEX), positions)
    group = ops.ChunkGroup(0, tokens, 1, tokens, tokens, positions, None, True, None, None)
    (chosen,) = ops.choose_keys(queries, 0.5 * weights, cache, ops.AttentionMetadata(chunks=[group]), most)
    assert chosen is not None
    return chosen


def chosen_of(bench: Indexed, made: Any, count: int) -> Tensor:
    found: Tensor = made.rows(bench.chosen, count).contiguous().view(torch.int32).to(torch.int64)
    return found


def steps(bench: Indexed, ids: list[int], counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Choices and what is attended to of a sequence in pieces, each beside others."""
    done, choices, attended = 0, [], []
    for turn, count in enumerate(counts):
        beside = [[(5 * i + row) % len(ids) for i in range(9)] for row in range(turn % 3)]
        fed = ids[done : done + count] + [token for other in beside for token in other]
        made = bench.run(fed, [count, *map(len, beside)], [done] + [0] * len(beside))
        choices.append(chosen_of(bench, made, count))
        attended.append(made.rows(bench.attended, count).clone())
        done += count
    return torch.cat(choices), torch.cat(attended)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("index_heads", "most"), [(5, 20), (16, 130), (21, 7), (37, 300), (1, 1)])
@pytest.mark.parametrize("kinds", [0, 5])
def test_a_token_chooses_what_the_definition_chooses(
    name: str, index_heads: int, most: int, kinds: int
) -> None:
    table = numbers(400, index_heads, kinds)
    exact = wanted(table, index_heads, most)
    ids = list(range(400))
    for counts in ((400,), (1, 3, 16, 180, 33, 150, *[1] * 17)):
        choices, _ = steps(Indexed(name, table, index_heads, most), ids, counts)
        assert torch.equal(choices[most:], exact[most:])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("most", [7, 130])
def test_attention_is_to_the_chosen_keys_alone(name: str, most: int) -> None:
    table = numbers(400, 16)
    exact = wanted(table, 16, most)
    _, attended = steps(Indexed(name, table, 16, most), list(range(400)), (400,))
    x = table[:, :QKV].bfloat16().double()
    q, k, v = torch.split(x, [HEADS * SIZE, SIZE, SIZE], 1)
    for token in (0, most - 1, most, 200, 255, 256, 257, 399):
        taken = exact[token] if token >= most else torch.arange(token + 1)
        shares = (q[token].view(HEADS, SIZE) @ k[taken].T * SIZE**-0.5).softmax(-1)
        close(attended[token], (shares @ v[taken]).flatten(), ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("rank", "rotated", "most"), [(48, 8, 7), (48, 8, 130), (48, 8, 300), (1024, 64, 130)]
)
def test_latents_are_attended_to_alone_as_well(name: str, rank: int, rotated: int, most: int) -> None:
    """Keys that begin with their values, and are copied from them where few are chosen of a split."""
    size, tokens, index_heads = rank + rotated, 400, 5
    index = numbers(tokens, index_heads)[:, QKV:]
    table = torch.cat((random(tokens, (HEADS + 1) * size, scale=1.2), index), 1)
    bench = Bench(name, table)
    program, ends = bench.program, (HEADS * rank, HEADS * size, (HEADS + 1) * size)

    def part(buffer: str, layout: Layout, first: int, width: int) -> int:
        made = program.buffer(buffer, layout, width)
        bench.add(Kind.NORM, bench.x, made, source_at=first, columns=width)
        return made

    asked = part("asked", Layout.BF16, 0, HEADS * rank)
    turned_last = part("rotated", Layout.BF16, ends[0], HEADS * rotated)
    latent = part("latents", Layout.F32, ends[1], size)
    key = part("index key", Layout.F32, ends[2], INDEX)
    index_asked = part("index asked", Layout.F32, ends[2] + INDEX, index_heads * INDEX)
    weights = part("weights", Layout.F32, ends[2] + INDEX * (1 + index_heads), index_heads)
    shape = {"heads": HEADS, "kv_heads": 1, "head_dim": size, "value_dim": rank}
    queries = program.buffer("queries", Layout.QUERIES, HEADS * size)
    attended = program.buffer("attended", Layout.BF16, HEADS * rank)
    bench.add(Kind.WRITE_LATENT, asked, queries, second=turned_last, third=latent, rope_dim=rotated, **shape)
    of_index = {"heads": index_heads, "kv_heads": 1, "head_dim": INDEX}
    index_queries = program.buffer("index queries", Layout.QUERIES, index_heads * INDEX)
    turns = {"rope_dim": ROTATED, "cos": COS, "sin": SIN}
    bench.add(Kind.WRITE_INDEX, key, index_queries, second=index_asked, **of_index, **turns)
    chosen = program.buffer("chosen", Layout.F32, most)
    bench.add(Kind.CHOOSE, index_queries, chosen, second=weights, columns=most, scale=0.5, **of_index)
    bench.add(Kind.ATTENTION, queries, attended, **shape, scale=0.2, second=chosen, columns=most)
    held = rounded_up(size, TILE_INPUTS) + rank + rounded_up(INDEX, TILE_INPUTS)
    rows = 3 * rounded_up(LONGEST, PAGE_TOKENS)
    bench.caches[0] = torch.full((rows, held), torch.nan, dtype=torch.bfloat16)
    got = bench.run(list(range(tokens))).rows(attended, tokens)
    exact = wanted(torch.cat((torch.zeros(tokens, QKV), index), 1), index_heads, most)
    x = table[:, : ends[2]].bfloat16().double()
    q = torch.cat(
        (x[:, : ends[0]].view(tokens, HEADS, rank), x[:, ends[0] : ends[1]].view(tokens, HEADS, rotated)), -1
    )
    k = x[:, ends[1] :]
    for token in (0, most, 200, 255, 256, 270, 300, 399):
        taken = exact[token] if token >= most else torch.arange(token + 1)
        shares = (q[token] @ k[taken].T * 0.2).softmax(-1)
        close(got[token], (shares @ k[taken, :rank]).flatten(), ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", CacheFormat)
@pytest.mark.parametrize("most", [20, 130])
def test_a_token_gets_the_same_to_the_last_bit_in_pieces_and_beside_others(
    name: str, format: CacheFormat, most: int
) -> None:
    table, found = numbers(400, 16), []
    for counts, threads in (((400,), 1), ((1, 2, 13, 16, 101, 200, 33, *[1] * 34), 2)):
        bench = Indexed(name, table, 16, most, threads=threads)
        bench.caches[0], bench.cache_format = pages(format), format
        choices, attended = steps(bench, list(range(400)), counts)
        found.append((choices[most:], attended))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", [CacheFormat.BF16, CacheFormat.INT8])
def test_up_to_as_many_tokens_it_is_attention_to_all_to_the_last_bit(name: str, format: CacheFormat) -> None:
    table, most = numbers(400, 5), 270
    found = []
    for chooses in (True, False):
        bench = Indexed(name, table, 5, most, chooses=chooses)
        bench.caches[0], bench.cache_format = pages(format), format
        found.append(steps(bench, list(range(400)), (261, 139))[1])
    assert torch.equal(found[0][:most], found[1][:most])
    assert not torch.equal(found[0][most:], found[1][most:])


@pytest.mark.parametrize("name", SETS)
def test_a_path_of_a_tree_chooses_as_if_its_tokens_were_one_behind_the_other(name: str) -> None:
    table, most, before = numbers(100, 16), 20, 59
    # Behind 59 tokens: 60, of it 61 and 62, and 63 behind the latter; then the path of 60, 62 and 63 moves to its positions.
    plain = Indexed(name, table, 16, most)
    ids = list(range(before))
    plain.run(ids)
    exact = plain.run([60, 62, 63], [3], [before])
    wanted_choice = chosen_of(plain, exact, 3).clone()
    wanted_rows = exact.rows(plain.attended, 3).clone()
    further = plain.run([64], [1], [before + 3]).rows(plain.attended, 1).clone()

    bench = Indexed(name, table, 16, most)
    made = bench.run(ids)
    blocks = rounded_up(LONGEST, PAGE_TOKENS) // PAGE_TOKENS
    table_pages = np.arange(blocks).reshape(1, 1, blocks)[:, :, ::-1].copy()
    one = np.array([0], np.int64)
    # Places 59 to 62; 62 is at depth 1 as 61 is, and 63 at depth 2 reads depth 1 from the place of 62.
    positions = np.array([before, before + 1, before + 1, before + 2], np.int64)
    moved = np.array(
        [[2, before + 1, before + 2], [3, before + 1, before + 2], [3, before + 2, before + 3]], np.int64
    )
    made.step(
        np.array([60, 61, 62, 63], np.int64),
        one,
        np.array([before], np.int64),
        np.array([4], np.int64),
        table_pages,
        positions_T=positions,
        moved_M3=moved,
    )
    assert torch.equal(chosen_of(bench, made, 4)[[0, 2, 3]], wanted_choice)
    assert torch.equal(made.rows(bench.attended, 4)[[0, 2, 3]], wanted_rows)

    def row_of(place: int) -> int:
        return int(table_pages[0, 0, place // PAGE_TOKENS]) * PAGE_TOKENS + place % PAGE_TOKENS

    sources = np.array([[row_of(before + 2), row_of(before + 3)]], np.int64)
    targets = np.array([[row_of(before + 1), row_of(before + 2)]], np.int64)
    made.move(sources, targets)
    again = bench.run([64], [1], [before + 3])
    assert torch.equal(again.rows(bench.attended, 1), further)


@pytest.mark.parametrize("name", SETS)
def test_what_is_no_number_is_chosen_first_and_in_its_own_row_alone(name: str) -> None:
    table = numbers(100, 16)
    table[50, QKV + 3] = torch.nan  # of its index key
    table[51, QKV + INDEX + 3] = torch.nan  # of a query
    bench = Indexed(name, table, 16, 20)
    made = bench.run(list(range(100)), [60, 40], [0, 0])
    assert made.rows(bench.attended, 100).isfinite().all()
    choices = chosen_of(bench, made, 100)
    for token in [*range(20, 60), *range(80, 100)]:
        assert (choices[token].diff() > 0).all() and choices[token][0] >= 0
    assert (choices[52:60] == 50).any(-1).all(), "what is no number is the largest, as torch sorts"


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (6, {"heads": 7}, "an index that this library does not know"),
        (6, {"rope_dim": 26}, "an index that this library does not know"),
        (7, {"columns": 21}, "a choice of keys that this library does not know"),
        (8, {"columns": 21}, "attention to keys that were chosen otherwise"),
        (8, {"window": 9}, "attention to keys that were chosen otherwise"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(at: int, change: dict[str, Any], words: str) -> None:
    bench = Indexed("generic", numbers(64, 16), 16, 20)
    for field, value in change.items():
        setattr(bench.program.body[at], field, value)
    with pytest.raises(ValueError, match=words):
        bench.run([0])


def test_pages_without_room_for_index_keys_are_refused() -> None:
    bench = Indexed("generic", numbers(64, 16), 16, 20)
    bench.caches[0] = bench.caches[0][:, :-TILE_INPUTS].contiguous()
    with pytest.raises(RuntimeError, match="pages that are too short for a layer's heads"):
        bench.run([0])
