"""N-grams on the CPU engine, as `NgramTable` and `NgramInjection` define them, convolutions of which some tokens have weights, and mixtures of
streams by a share for each number; and the same to the last bit in pieces, beside others and behind a snapshot.
"""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.layers.linear import Embedding
from penstock.models.hyper_connections import StreamNorm
from penstock.models.ngram_config import NgramConfig, hash_multipliers
from penstock.models.ngram_embeddings import NgramTable
from penstock_kernels.program import Activation, Format, Kind, Layout
from test_cpu_engine import SETS, Bench, random

STREAMS, WIDTH, ROW, HEADS, KERNEL, EPS, TOKENS = 3, 40, 20, 2, 4, 1e-5, 60
PARTS, END = (53, 59, 61, 67), 7
CONFIG = NgramConfig(
    multipliers=hash_multipliers(TOKENS, 3, 0, 1234),
    parts=PARTS,
    rows=256,
    head_dim=ROW,
    end=END,
    kernel=KERNEL,
    channels=STREAMS * WIDTH,
)
TABLE = random(CONFIG.rows, ROW, seed=1).bfloat16()
NUMBERS = STREAMS * WIDTH
# Some of them end a text.
TEXT = [(i * 17 + 3) % TOKENS if i % 9 else END for i in range(150)]


class Ngrams(Bench):
    """What n-grams find, and from the table of tokens keys, values and streams of which it is made how much is taken."""

    def __init__(self, name: str, threads: int = 2, rows: range = range(CONFIG.rows)) -> None:
        self.table = random(TOKENS, 2 * NUMBERS + WIDTH)
        super().__init__(name, self.table, threads)
        self.key_weight, self.stream_weight = (1 + 0.3 * random(STREAMS, WIDTH, seed=seed) for seed in (2, 3))
        self.weight_WC = random(KERNEL, NUMBERS, seed=4)
        program = self.program
        self.found = program.buffer("found", Layout.F32, len(PARTS) * ROW)
        begins = list(accumulate(PARTS, initial=0))[:-1]
        hashed = [
            np.array(CONFIG.multipliers, np.int64).view(np.int32),
            np.array([*PARTS, *begins], np.int32),
        ]
        self.add(
            Kind.NGRAMS,
            self.found,
            self.found,
            rows=CONFIG.before,
            heads=HEADS,
            head_dim=ROW,
            offset=END,
            columns=len(rows),
            first_id=rows.start,
            format=Format.ROWS,
            weight=TABLE[rows.start : rows.stop].contiguous(),
            sums=torch.from_numpy(np.concatenate(hashed)),
        )
        made = program.buffer("made", Layout.F32, NUMBERS + WIDTH)
        self.add(Kind.NORM, self.x, made, columns=NUMBERS + WIDTH)
        held = program.buffer("held", Layout.F32, NUMBERS)
        self.add(Kind.NORM, self.x, held, columns=NUMBERS, source_at=NUMBERS + WIDTH)
        self.taken = program.buffer("taken", Layout.F32, NUMBERS)
        weights: dict[str, Any] = {"norm_weight": self.key_weight, "second_weight": self.stream_weight}
        shape: dict[str, Any] = {"heads": STREAMS, "columns": WIDTH}
        self.add(Kind.NGRAM_GATE, made, self.taken, second=held, **shape, eps=EPS, **weights)
        self.convolved = program.buffer("convolved", Layout.F32, NUMBERS)
        self.add(
            Kind.CONVOLVE,
            self.taken,
            self.convolved,
            offset=2,
            rows=KERNEL,
            dilation=CONFIG.dilation,
            columns=NUMBERS,
            norm_weight=self.weight_WC,
            activation=Activation.SILU,
        )
        self.states[2] = torch.zeros(10, (KERNEL - 1) * CONFIG.dilation, NUMBERS).bfloat16()
        self.states[3] = torch.zeros(10, CONFIG.before)

    def feed(self, counts: tuple[int, ...], first: int = 0, **options: Any) -> list[Tensor]:
        """What the text's tokens find, take and convolve in such pieces, each beside others."""
        made_of: list[list[Tensor]] = [[], [], []]
        done = first
        for turn, count in enumerate(counts):
            beside = [TEXT[row : row + 9] for row in range(turn % 3)]
            ids = [*TEXT[done : done + count], *(token for other in beside for token in other)]
            rows = [count, *map(len, beside)]
            for state in self.states.values():
                state[1 : len(rows)] = 0
            made = self.run(ids, rows, [done] + [0] * len(beside), **(options if turn == 0 else {}))
            for into, buffer in zip(made_of, (self.found, self.taken, self.convolved), strict=True):
                into.append(made.rows(buffer, count).clone())
            done += count
        return [torch.cat(one) for one in made_of]


@pytest.mark.parametrize("name", SETS)
def test_ngrams_find_and_give_what_torch_does(name: str) -> None:
    bench = Ngrams(name)
    found, taken, convolved = bench.feed((len(TEXT),))
    ids, table = torch.tensor(TEXT), NgramTable(CONFIG, Embedding(TABLE))
    table.to_torch(torch.device("cpu"))
    padded = F.pad(ids, (CONFIG.before, 0))
    before_TU = torch.stack(
        [padded[CONFIG.before - 1 - at : len(padded) - 1 - at] for at in range(CONFIG.before)], 1
    )
    assert torch.equal(found, table(ids, torch.arange(len(TEXT)), before_TU).float())
    key, value, held = torch.split(bench.table[ids].bfloat16().float(), [NUMBERS, WIDTH, NUMBERS], 1)
    key, held = (one.view(-1, STREAMS, WIDTH) for one in (key, held))
    agree = StreamNorm(bench.key_weight, EPS)(key) * StreamNorm(bench.stream_weight, EPS)(held)
    agree_TA1 = agree.sum(-1, keepdim=True) * WIDTH**-0.5
    gate = (agree_TA1.abs().clamp_min(1e-6).sqrt() * agree_TA1.sign()).sigmoid()
    torch.testing.assert_close(taken, (gate * value.unsqueeze(1)).flatten(1), rtol=1e-4, atol=1e-5)
    padded = F.pad(taken.bfloat16().float(), (0, 0, (KERNEL - 1) * CONFIG.dilation, 0))
    wanted = sum(
        padded[at * CONFIG.dilation : at * CONFIG.dilation + len(TEXT)] * bench.weight_WC[at]
        for at in range(KERNEL)
    )
    torch.testing.assert_close(convolved, F.silu(torch.as_tensor(wanted)), rtol=1e-3, atol=1e-4)
    # Of a table that is divided each has some.
    parts = [Ngrams(name, rows=rows).feed((len(TEXT),))[0] for rows in (range(100), range(100, 256))]
    assert all(part.any() for part in parts) and torch.equal(parts[0] + parts[1], found)


@pytest.mark.parametrize("name", SETS)
def test_a_token_gets_the_same_to_the_last_bit(name: str) -> None:
    whole = Ngrams(name, threads=1).feed((len(TEXT),))
    pieces = (1, 1, 2, 13, 16, 3, 64, 33, *[1] * 17)
    for one, other in zip(Ngrams(name).feed(pieces), whole, strict=True):
        assert torch.equal(one, other)
    bench = Ngrams(name)
    bench.feed((40, 7), saves=[(0, 31, 8)])
    for state in bench.states.values():
        state[0] = state[8]
    for one, other in zip(bench.feed((1, 20), first=31), whole, strict=True):
        assert torch.equal(one, other[31:52])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("streams", "width"), [(4, 48), (3, 40), (2, 1072)])
def test_numbers_of_streams_are_mixed_as_torch_does(name: str, streams: int, width: int) -> None:
    numbers = streams * width
    table = random(320, 2 * numbers + streams)
    bench = Bench(name, table)
    shares = bench.program.buffer("shares", Layout.F32, numbers)
    normed = bench.program.buffer("normed", Layout.BF16, numbers)
    given = bench.program.buffer("given", Layout.F32, streams)
    mixed = bench.program.buffer("mixed", Layout.F32, width)
    bench.add(Kind.NORM, bench.x, shares, columns=numbers)
    bench.add(Kind.NORM, bench.x, normed, columns=numbers, source_at=numbers)
    bench.add(Kind.NORM, bench.x, given, columns=streams, source_at=2 * numbers)
    bench.add(Kind.HYPER_MIX, shares, mixed, second=normed, third=given, heads=streams, columns=width)
    for rows in (1, 2, 5, 33, 300):
        made = bench.run(list(range(rows)))
        x, y, z = torch.split(table[:rows].bfloat16().float(), [numbers, numbers, streams], 1)
        wanted = (x.sigmoid() * y).view(rows, streams, width).mean(1)
        torch.testing.assert_close(made.rows(mixed, rows), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(made.rows(given, rows), 2 * z.sigmoid(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "other", "says"),
    [
        (Kind.NGRAMS, {"rows": 17}, "n-grams"),
        (Kind.NGRAMS, {"heads": 3}, "n-grams"),
        (Kind.NGRAMS, {"sums": None}, "n-grams"),
        (Kind.NGRAMS, {"weight": None}, "n-grams"),
        (Kind.NGRAM_GATE, {"columns": 41}, "n-grams"),
        (Kind.NGRAM_GATE, {"norm_weight": None}, "n-grams"),
        (Kind.CONVOLVE, {"dilation": 9}, "a convolution"),
        (Kind.CONVOLVE, {"dilation": 0}, "a convolution"),
        (Kind.CONVOLVE, {"offset": 4}, "a convolution"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: Kind, other: dict[str, Any], says: str) -> None:
    bench = Ngrams("generic")
    found = next(operation for operation in bench.program.body if operation.kind == kind)
    for field, value in other.items():
        setattr(found, field, value)
    with pytest.raises(ValueError, match=f"{says} that this library does not know"):
        bench.run([0])
