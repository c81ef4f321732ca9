"""Hyper-connections on the CPU engine, against what torch computes of the same streams, and the same however a token is computed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.layers.linear import Linear
from penstock.models.config import HyperConfig
from penstock.models.hyper_connections import HyperConnection, HyperHead, MixingConnection
from penstock_kernels.program import Kind, Layout, Operation
from test_cpu_engine import SETS, Bench, random

ROWS = [1, 2, 3, 4, 5, 7, 33, 300]
SIZES = [
    (4, 48),
    (3, 40),
    (2, 1072),
    (16, 16),
]  # streams, and their width: of whole registers and not, and of several parts


class Connected(Bench):
    """A branch that gives what it is told, between what it reads and what it is added to; then one stream of all."""

    def __init__(self, name: str, streams: int, width: int, rounds: int, threads: int = 2) -> None:
        numbers = streams * width
        self.config = HyperConfig(streams, magnitude=1.7, eps=0.01, norm_eps=1e-5, mixing_rounds=rounds)
        self.table = random(320, numbers + width)
        outputs = streams * (2 + streams if rounds else 2)
        weights, base = Linear(random(outputs, numbers, scale=0.4, seed=1)), random(outputs, seed=2)
        scales = [0.7, 1.3, 0.5] if rounds else [0.7, 1.3]
        of = MixingConnection if rounds else HyperConnection
        self.connection = of(self.config, weights, base, torch.tensor(scales))
        weights, base = Linear(random(streams, numbers, scale=0.4, seed=3)), random(streams, seed=4)
        self.head = HyperHead(self.config, weights, base, torch.tensor([0.9]))
        super().__init__(name, self.table, threads)
        self.streams, self.width = streams, width
        self.held = self.part("streams", 0, numbers)
        self.given = self.part("given", numbers, width)
        self.reads = self.program.buffer("reads", Layout.F32, width)
        self.joined = self.program.buffer("joined", Layout.F32, width)
        shape = {"heads": streams, "columns": width, "rounds": rounds}
        shares = self.read(self.reads, self.connection.weights_YX, self.connection.base_Y, scales)
        at = {"second": shares, "inner_at": outputs + 1 + streams}
        self.add(Kind.HYPER_ADD, self.given, self.held, **shape, **at)
        self.read(self.joined, self.head.weights_AX, self.head.base_A, [0.9])

    def part(self, name: str, first: int, width: int) -> int:
        made = self.program.buffer(name, Layout.F32, width)
        self.add(Kind.NORM, self.x, made, columns=width, source_at=first)
        return made

    def read(self, target: int, weights: Linear, base: Tensor, scales: list[float]) -> int:
        outputs, counts = len(base), (self.streams, self.streams, self.streams**2)
        shares = self.program.buffer(f"{outputs} shares", Layout.F32, 2 * outputs + 1)
        numbers: dict[str, Any] = {
            "eps": self.config.norm_eps,
            "lowest": self.config.eps,
            "alpha": self.config.magnitude,
        }
        self.add(
            Kind.HYPER_READ,
            self.held,
            target,
            second=shares,
            heads=self.streams,
            columns=self.width,
            rows=outputs,
            norm_weight=weights.weight_OI,
            bias=base,
            scales=torch.cat(
                [torch.full((count,), scale) for count, scale in zip(counts, scales, strict=False)]
            ),
            rounds=self.config.mixing_rounds,
            **numbers,
        )
        return shares


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("streams", "width"), SIZES)
@pytest.mark.parametrize("rounds", [0, 1, 20])
def test_streams_are_mixed_and_added_to_as_torch_does(
    name: str, streams: int, width: int, rounds: int
) -> None:
    bench = Connected(name, streams, width, rounds)
    for rows in ROWS:
        made = bench.run(list(range(rows)))
        numbers = bench.table[:rows].bfloat16().float()
        x_TAE = numbers[:, : streams * width].view(rows, streams, width)
        read_TE, shares_TA = bench.connection.read(x_TAE)
        torch.testing.assert_close(made.rows(bench.reads, rows), read_TE, rtol=1e-4, atol=1e-4)
        x_TAE = bench.connection.add(x_TAE, numbers[:, streams * width :], shares_TA)
        torch.testing.assert_close(made.rows(bench.held, rows), x_TAE.flatten(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made.rows(bench.joined, rows), bench.head(x_TAE), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("streams", "width"), SIZES)
@pytest.mark.parametrize("rounds", [0, 5])
def test_a_token_s_streams_are_the_same_to_the_last_bit(
    name: str, streams: int, width: int, rounds: int
) -> None:
    """Alone, among few and among many; with one thread and with two."""
    whole = Connected(name, streams, width, rounds)
    made = whole.run(list(range(300)))
    exact = [made.rows(buffer, 300).clone() for buffer in (whole.reads, whole.held, whole.joined)]
    bench = Connected(name, streams, width, rounds, threads=1)
    for first, count in ((0, 1), (7, 1), (3, 2), (40, 3), (11, 6), (200, 33)):
        made = bench.run(list(range(first, first + count)))
        for buffer, wanted in zip((bench.reads, bench.held, bench.joined), exact, strict=True):
            assert torch.equal(made.rows(buffer, count), wanted[first : first + count])


def test_hyper_connections_of_what_is_not_there_are_refused() -> None:
    def refused(**other: Any) -> None:
        bench = Bench("generic", random(16, 64))
        made = [bench.program.buffer(f"part {width}", Layout.F32, width) for width in (16, 17, 9)]
        weights = {"norm_weight": random(8, 64), "bias": random(8), "scales": random(8)}
        choices: dict[str, Any] = {"heads": 4, "columns": 16, "rows": 8, **weights, **other}
        kind, inner_at = choices.pop("kind", Kind.HYPER_READ), choices.pop("inner_at", -1)
        ends = (bench.x, made[0]) if kind == Kind.HYPER_READ else (made[0], bench.x)
        second = made[choices.pop("shares", 1)]
        bench.program.body.append(Operation(kind, *ends, second=second, inner_at=inner_at, **choices))
        with pytest.raises(ValueError, match="hyper-connections that this library does not know"):
            bench.run([0])

    refused(heads=5)
    refused(rows=7)
    refused(rounds=2)
    refused(rounds=-1)
    refused(rows=12)
    refused(columns=17)
    refused(norm_weight=None)
    refused(bias=None)
    refused(scales=None)
    refused(shares=2)
    refused(kind=Kind.HYPER_ADD, inner_at=14)
    refused(kind=Kind.HYPER_ADD)
    refused(kind=Kind.HYPER_ADD, inner_at=0, rounds=1)
    refused(kind=Kind.HYPER_ADD, inner_at=0, heads=5)
