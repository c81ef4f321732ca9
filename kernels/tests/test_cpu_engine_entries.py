"""Attention to a window and to entries that stand for several tokens on the CPU engine: near to what torch makes of the formulas, and the same
to the last bit in pieces, beside others, behind a snapshot, and with one thread and two.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock_kernels.program import PAGE_TOKENS, Kind, Layout, Norm, rounded_up
from test_cpu_engine import LONGEST, SETS, Bench, close, random

HEADS, ROTATED, EPS, TOKENS = 5, 8, 1e-5, 300
ANGLES = torch.outer(torch.arange(LONGEST + PAGE_TOKENS).float(), 0.3 ** torch.arange(1, ROTATED // 2 + 1))
TURNS: dict[str, Any] = {"rope_dim": ROTATED, "cos": ANGLES.cos(), "sin": ANGLES.sin()}
SLOTS, SNAPSHOTS = 8, 2


@dataclass(frozen=True)
class Shape:
    """Of a layer: rate 0 is a window alone, and most 0 attends to all entries."""

    rate: int
    overlaps: bool = False
    most: int = 0
    size: int = 48
    window: int = 20
    index_heads: int = 3
    index_size: int = 24

    @property
    def series(self) -> int:
        return 1 + self.overlaps

    @property
    def reads(self) -> int:
        return self.rate * self.series

    @property
    def own(self) -> int:
        """Numbers of a token that an entry is made of."""
        return 2 * self.series * self.size if self.rate else 0

    @property
    def pending(self) -> int:
        return self.own + (2 * self.series * self.index_size if self.most else 0)


# A window of several blocks of keys that are copied at once, rates that divide a page and not, sizes of whole tiles and not.
SHAPES = [
    Shape(0),
    Shape(0, size=64, window=200),
    Shape(4, overlaps=True, most=11),
    Shape(4, overlaps=True, most=40, size=40, index_heads=17, index_size=40),
    Shape(6, overlaps=True, most=9),
    Shape(16, size=72),
    Shape(20),
    Shape(1, most=150),
]


class Entries(Bench):
    """A layer, of what the table has of each token."""

    def __init__(self, name: str, shape: Shape, threads: int = 2) -> None:
        self.shape, size = shape, shape.size
        widths = [HEADS * size, size, shape.pending]
        if shape.most:
            widths += [shape.index_heads * shape.index_size, shape.index_heads]
        self.table = random(TOKENS, sum(widths), scale=1.5)
        super().__init__(name, self.table, threads)
        self.numbers = torch.split(self.table.bfloat16().float(), widths, 1)
        self.key_weight, self.entry_weight = 1 + 0.3 * random(size, seed=1), 1 + 0.3 * random(size, seed=2)
        self.index_weight, self.sinks = 1 + 0.3 * random(shape.index_size, seed=3), random(HEADS, seed=4)
        self.bias = random(shape.reads, size, seed=5)
        self.index_bias = random(shape.reads, shape.index_size, seed=6)
        program, at = self.program, 0
        parts = []
        for number, width in enumerate(widths):
            layout = Layout.BF16 if number == 2 else Layout.F32
            parts.append(program.buffer(f"part {number}", layout, width))
            if width:
                self.add(Kind.NORM, self.x, parts[-1], columns=width, source_at=at)
            at += width
        asked, key, pending, *index = parts
        of: dict[str, Any] = {"heads": HEADS, "kv_heads": 1, "head_dim": size}
        queries = program.buffer("queries", Layout.QUERIES, HEADS * size)
        self.near = program.buffer("near", Layout.BF16, size)
        normed: dict[str, Any] = {"norm": Norm.RMS, "eps": EPS, **TURNS}
        self.add(Kind.TURN, asked, queries, **of, **normed)
        one: dict[str, Any] = {"heads": 1, "kv_heads": 1, **normed}
        self.add(Kind.TURN, key, self.near, **one, head_dim=size, norm_weight=self.key_weight)
        pools: dict[str, Any] = {**one, "rows": shape.rate, "groups": shape.series}
        choice: dict[str, Any] = {}
        self.chosen = -1
        if shape.rate:
            self.add(
                Kind.POOL,
                pending,
                pending,
                **pools,
                head_dim=size,
                positions=self.bias,
                norm_weight=self.entry_weight,
            )
        if shape.most:
            weights = {"positions": self.index_bias, "norm_weight": self.index_weight}
            at_end = {"source_at": shape.own, "accumulate": True, "head_dim": shape.index_size}
            self.add(Kind.POOL, pending, pending, **pools, **weights, **at_end)
            heads: dict[str, Any] = {
                "heads": shape.index_heads,
                "kv_heads": 1,
                "head_dim": shape.index_size,
            }
            width = shape.index_heads * shape.index_size
            index_queries = program.buffer("index queries", Layout.QUERIES, width)
            self.add(Kind.TURN, index[0], index_queries, **heads, **TURNS)
            self.chosen = program.buffer("chosen", Layout.F32, shape.most)
            choose = {"second": index[1], "columns": shape.most, "rows": shape.rate, "scale": 0.5}
            self.add(Kind.CHOOSE, index_queries, self.chosen, **heads, **choose)
            choice = {"third": self.chosen, "columns": shape.most}
        self.attended = program.buffer("attended", Layout.BF16, HEADS * size)
        self.add(
            Kind.COMPRESSED_ATTENTION,
            queries,
            self.attended,
            second=self.near,
            **of,
            **choice,
            **TURNS,
            rows=shape.rate,
            window=shape.window,
            scale=size**-0.5,
            sinks=self.sinks,
        )
        self.add(Kind.KEEP, self.near, self.near, columns=shape.window - 1)
        self.states[0] = torch.full((SLOTS + SNAPSHOTS, shape.window - 1, size), torch.nan).bfloat16()
        if shape.rate:
            self.add(Kind.KEEP, pending, pending, columns=shape.reads - 1, offset=1)
        if shape.reads > 1:
            kept = (SLOTS + SNAPSHOTS, shape.reads - 1, shape.pending)
            self.states[1] = torch.full(kept, torch.nan).bfloat16()
        entry = size + (shape.index_size if shape.most else 0)
        # Nothing in the pages is a number, and rows are longer than they have to be.
        pages = 3 * rounded_up(LONGEST, PAGE_TOKENS)
        self.caches[0] = torch.full((pages, entry + 8), torch.nan, dtype=torch.bfloat16)

    def feed(self, counts: tuple[int, ...], first: int = 0, **options: Any) -> Tensor:
        """What a sequence's tokens from `first` on are given in such pieces, each beside others of which nothing is kept."""
        found, done = [], first
        for turn, count in enumerate(counts):
            beside = [[(5 * i + row) % TOKENS for i in range(9)] for row in range(turn % 3)]
            ids = [*range(done, done + count), *(token for other in beside for token in other)]
            counts_R, first_R = [count, *map(len, beside)], [done] + [0] * len(beside)
            made = self.run(ids, counts_R, first_R, **(options if turn == 0 else {}))
            found.append(made.rows(self.attended, count).clone())
            done += count
        return torch.cat(found)


def normed(x: Tensor, weight: Tensor | None) -> Tensor:
    made = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return made if weight is None else made * weight


def turned(x: Tensor, positions: Tensor, back: bool = False) -> Tensor:
    """(T, ..., D) whose last numbers are rotated."""
    cos, sin = (TURNS[name][positions].double() for name in ("cos", "sin"))
    shape = (len(positions), *[1] * (x.dim() - 2), -1)
    cos, sin = cos.view(shape), -sin.view(shape) if back else sin.view(shape)
    a, b = x[..., -ROTATED : -ROTATED // 2], x[..., -ROTATED // 2 :]
    return torch.cat((x[..., :-ROTATED], a * cos - b * sin, b * cos + a * sin), -1)


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def pooled(shape: Shape, numbers: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """(entries, D) of what a compressor has of each token: values, then gates."""
    values, gates = numbers.double().chunk(2, 1)
    size, made = bias.shape[1], []
    for entry in range(len(numbers) // shape.rate):
        end = (entry + 1) * shape.rate
        own = slice((shape.series - 1) * size, shape.series * size)
        kv, gate = (
            values[end - shape.rate : end, own],
            gates[end - shape.rate : end, own] + bias[-shape.rate :],
        )
        if shape.overlaps and entry:
            before = slice(end - shape.reads, end - shape.rate)
            kv = torch.cat((values[before, :size], kv))
            gate = torch.cat((gates[before, :size] + bias[: shape.rate], gate))
        made.append((gate.softmax(0) * kv).sum(0))
    positions = torch.arange(len(made)) * shape.rate
    return rounded(turned(normed(torch.stack(made), weight), positions))


def exact(bench: Entries, chosen: Tensor | None) -> Tensor:
    """(T, H D) of all tokens; `chosen`: the entries that the engine has chosen, which are seen to be the best."""
    shape, positions = bench.shape, torch.arange(TOKENS)
    asked, key, pending, *index = bench.numbers
    q = rounded(turned(normed(asked.view(TOKENS, HEADS, -1).double(), None), positions))
    near = rounded(turned(normed(key.double(), bench.key_weight), positions))
    entries, scores = near[:0], near[:0]
    if shape.rate:
        entries = pooled(shape, pending[:, : shape.own], bench.bias, bench.entry_weight)
    if shape.most:
        keys = pooled(shape, pending[:, shape.own :], bench.index_bias, bench.index_weight)
        index_q = rounded(turned(index[0].view(TOKENS, shape.index_heads, -1).double(), positions))
        scores = torch.einsum("tie,ti->te", (index_q @ keys.T).relu(), 0.5 * index[1].double())
    made = []
    for token in range(TOKENS):
        seen = (token + 1) // shape.rate if shape.rate else 0
        far = entries[:seen]
        if chosen is not None and seen > shape.most:
            taken = chosen[token].long()
            assert (taken.diff() > 0).all() and taken[0] >= 0 and taken[-1] < seen
            best = scores[token, :seen].topk(shape.most).values
            # Where a number of an index key is rounded another way, by its last bit.
            assert (scores[token, taken].sort(descending=True).values - best).abs().max() < 0.05
            far = entries[taken]
        keys = torch.cat((near[max(token + 1 - shape.window, 0) : token + 1], far))
        with_sink = torch.cat((q[token] @ keys.T * shape.size**-0.5, bench.sinks.double().unsqueeze(1)), 1)
        made.append(with_sink.softmax(1)[:, :-1] @ keys)
    return turned(torch.stack(made), positions, back=True).flatten(1)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_attends_to_its_window_and_to_entries(name: str, shape: Shape) -> None:
    bench = Entries(name, shape)
    made = bench.run(list(range(TOKENS)))
    chosen = None
    if shape.most:
        chosen = made.rows(bench.chosen, TOKENS).contiguous().view(torch.int32).clone()
    close(made.rows(bench.attended, TOKENS), exact(bench, chosen), ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_gets_the_same_to_the_last_bit_in_pieces_and_beside_others(name: str, shape: Shape) -> None:
    whole = Entries(name, shape, threads=1).feed((TOKENS,))
    bench = Entries(name, shape)
    pieces = (1, 2, 13, 16, 3, 101, 64, 33, *[1] * 67)
    assert sum(pieces) == TOKENS and torch.equal(bench.feed(pieces), whole)
    # Behind a copy that was made in the middle of a prompt, and behind one of a single token.
    bench = Entries(name, shape)
    assert torch.equal(bench.feed((7, 120), saves=[(0, 5, SLOTS)]), whole[:127])
    bench = Entries(name, shape)
    bench.feed((60, 40), saves=[(0, 31, SLOTS)])
    for places in bench.states.values():
        places[0] = places[SLOTS]
    assert torch.equal(bench.feed((1, 40, 1), first=31), whole[31:73])
    bench.run([73], [1], [73], saves=[(0, 1, SLOTS + 1)])
    for places in bench.states.values():
        places[0] = places[SLOTS + 1]
    assert torch.equal(bench.feed((1, 1), first=74), whole[74:76])


@pytest.mark.parametrize("name", SETS)
def test_what_is_no_number_stays_in_its_own_row(name: str) -> None:
    shape = SHAPES[2]
    bench = Entries(name, shape)
    bench.run(list(range(40)), [20, 20], [0, 0])
    clean = bench.run([50, 51], [1, 1], [20, 20]).rows(bench.attended, 2).clone()
    bench = Entries(name, shape)
    bench.run(list(range(40)), [20, 20], [0, 0])
    for places in bench.states.values():
        places[0] = torch.nan
    got = bench.run([50, 51], [1, 1], [20, 20]).rows(bench.attended, 2)
    assert got[0].isnan().any() and torch.equal(got[1], clean[1])


@pytest.mark.parametrize(
    ("kind", "other", "says"),
    [
        (Kind.TURN, {"rope_dim": 50}, "heads to rotate"),
        (Kind.TURN, {"rope_dim": 7}, "heads to rotate"),
        (Kind.TURN, {"cos": None}, "heads to rotate"),
        (Kind.TURN, {"heads": 6}, "heads to rotate"),
        (Kind.TURN, {"norm": Norm.LAYER}, "heads to rotate"),
        (Kind.POOL, {"rows": 0}, "entries"),
        (Kind.POOL, {"groups": 3}, "entries"),
        (Kind.POOL, {"positions": None}, "entries"),
        (Kind.POOL, {"source_at": 200}, "entries"),
        (Kind.KEEP, {"offset": 2}, "tokens to keep"),
        (Kind.COMPRESSED_ATTENTION, {"window": 0}, "compressed attention"),
        (Kind.COMPRESSED_ATTENTION, {"rows": 0}, "compressed attention"),
        (Kind.COMPRESSED_ATTENTION, {"sinks": None}, "compressed attention"),
        (Kind.COMPRESSED_ATTENTION, {"columns": 12}, "compressed attention"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: Kind, other: dict[str, Any], says: str) -> None:
    bench = Entries("generic", SHAPES[2])
    first = next(operation for operation in bench.program.body if operation.kind == kind)
    for field, value in other.items():
        setattr(first, field, value)
    with pytest.raises(ValueError, match=f"{says} that this library does not know"):
        bench.run([0])


def test_pages_that_are_too_short_for_entries_are_refused() -> None:
    bench = Entries("generic", Shape(16))
    bench.caches[0] = torch.zeros(48, 2, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="pages that are too short"):
        bench.run([0])
