"""Residual streams, numbers that are made as large as others, and sparse gates on the CPU engine, against plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock_kernels.program import Activation, Kind, Layout, Operation
from test_cpu_engine import SETS, Bench, close, random

ROWS = [1, 2, 7, 33, 300]


def parts(bench: Bench, *widths: int) -> list[int]:
    """Buffers of fp32 with the numbers of each token, divided."""
    made, at = [], 0
    for number, width in enumerate(widths):
        made.append(bench.program.buffer(f"part {number}", Layout.F32, width))
        bench.add(Kind.NORM, bench.x, made[-1], columns=width, source_at=at)
        at += width
    return made


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("streams", "active", "width"), [(4, 0, 48), (3, 2, 40), (16, 5, 16)])
def test_streams_are_predicted_and_corrected(name: str, streams: int, active: int, width: int) -> None:
    table = random(320, (streams + 1) * width + streams)
    prediction, correction = random(streams**2, streams, scale=0.3, seed=1), random(streams, streams, seed=2)
    bench = Bench(name, table)
    held, computed, router = parts(bench, streams * width, width, streams)
    predicted = bench.program.buffer("predicted", Layout.F32, streams * width)
    corrected = bench.program.buffer("corrected", Layout.F32, streams * width)
    shape = {"second": router, "heads": streams, "columns": width, "offset": active}
    bench.add(Kind.PREDICT, held, predicted, **shape, norm_weight=prediction)
    bench.add(Kind.CORRECT, predicted, corrected, **shape, third=computed, norm_weight=correction)
    # Where they are, too.
    bench.add(Kind.PREDICT, held, held, **shape, norm_weight=prediction)
    for rows in ROWS:
        made = bench.run(list(range(rows)))
        x_TAE, computed_TE, router_TA = torch.split(
            table[:rows].bfloat16().float(), [streams * width, width, streams], 1
        )
        x_TAE, modes_TA = x_TAE.view(rows, streams, width), router_TA.tanh()
        mix_TAA = (modes_TA @ prediction.T).view(rows, streams, streams)
        exact_TAE = x_TAE + mix_TAA @ x_TAE
        torch.testing.assert_close(made.rows(predicted, rows), exact_TAE.flatten(1), rtol=1e-4, atol=1e-4)
        assert torch.equal(made.rows(held, rows), made.rows(predicted, rows))
        news_T1E = (computed_TE - exact_TAE[:, active]).unsqueeze(1)
        exact_TAE = exact_TAE + news_T1E * (1 + modes_TA @ correction.T).unsqueeze(-1)
        torch.testing.assert_close(made.rows(corrected, rows), exact_TAE.flatten(1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("width", [16, 40, 288])
def test_numbers_become_as_large_as_others(name: str, width: int) -> None:
    table = random(320, 2 * width)
    table[3, :width] = 0  # too small to be divided by
    bench = Bench(name, table)
    ours, others = parts(bench, width, width)
    both = bench.program.buffer("both", Layout.F32, 2 * width)
    shape = {"second": others, "inner_at": 0, "columns": width, "eps": 1e-5}
    bench.add(Kind.NORM, bench.x, both, columns=2 * width)
    bench.add(Kind.MATCH, ours, both, **shape, target_at=width)
    bench.add(Kind.MATCH, ours, both, **shape, accumulate=True)
    for rows in ROWS:
        x, y = torch.split(table[:rows].bfloat16().float(), width, 1)
        matched = (
            x
            * y.square().mean(-1, keepdim=True).sqrt()
            / x.square().mean(-1, keepdim=True).clamp(1e-5).sqrt()
        )
        exact = torch.cat((x + matched, matched), 1)
        torch.testing.assert_close(bench.run(list(range(rows))).rows(both, rows), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("width", [16, 40, 288])
def test_only_the_largest_gates_open(name: str, width: int) -> None:
    padded = -(-width // 16) * 16
    table = random(320, 2 * padded)
    bench = Bench(name, table)
    hidden = bench.program.buffer("hidden", Layout.BF16, padded)
    bench.add(
        Kind.SPARSE_GATE,
        bench.x,
        hidden,
        columns=width,
        inner_at=padded,
        alpha=0.5,
        activation=Activation.GELU_TANH,
    )
    for rows in ROWS:
        x = table[:rows].bfloat16().float()
        gates, up = x[:, :width], x[:, padded : padded + width]
        shut = gates.mean(-1, keepdim=True) + 0.5 * gates.std(-1, keepdim=True, correction=0)
        exact = F.pad(F.gelu((gates - shut).relu(), approximate="tanh") * up, (0, padded - width))
        got: Tensor = bench.run(list(range(rows))).rows(hidden, rows)
        close(got, exact)
        assert (
            not got[:, width:].any() and 0.2 < float((got[:, :width] != 0).float().mean()) < 0.4
        ) or rows < 33


def test_streams_that_are_not_there_are_refused() -> None:
    bench = Bench("generic", random(16, 64))
    router = parts(bench, 4)[0]
    weight = random(16, 4)
    wrong = [
        Operation(Kind.PREDICT, bench.x, bench.x, second=router, heads=5, columns=16, norm_weight=weight),
        Operation(Kind.PREDICT, bench.x, bench.x, second=router, heads=4, columns=16),
        Operation(
            Kind.PREDICT, bench.x, bench.x, second=router, heads=4, columns=16, offset=4, norm_weight=weight
        ),
        Operation(
            Kind.CORRECT,
            bench.x,
            bench.x,
            second=router,
            third=router,
            heads=4,
            columns=16,
            norm_weight=weight,
        ),
    ]
    for operation in wrong:
        broken = Bench("generic", random(16, 64))
        parts(broken, 4)
        broken.program.body.append(operation)
        with pytest.raises(ValueError, match="residual streams that this library does not know"):
            broken.run([0])


@pytest.mark.parametrize("name", SETS)
def test_what_is_behind_a_narrowed_buffer_is_computed_of_wanted_tokens(name: str) -> None:
    table = random(320, 48)
    bench = Bench(name, table)
    (held,) = parts(bench, 48)
    bench.add(Kind.NARROW, bench.x, bench.x)
    bench.add(Kind.NARROW, held, held)
    bench.add(Kind.NORM, held, bench.x, columns=48, accumulate=True, scale=2.0)
    counts = [3, 1, 100, 7, 1, 60]
    tokens = list(range(sum(counts)))
    exact_TE = 3 * table[: len(tokens)].bfloat16().float()
    ends = torch.tensor(counts).cumsum(0).tolist()
    for wanted in (None, counts, [1] * 6, [0] * 6, [0, 1, 0, 7, 0, 1], [3, 0, 99, 0, 1, 60]):
        made = bench.run(tokens, counts, wanted=wanted)
        x_TE = made.rows(bench.x, len(tokens))
        for end, count in zip(ends, wanted or counts, strict=True):
            assert torch.equal(x_TE[end - count : end], exact_TE[end - count : end])
    for wanted in ([4, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0]):
        with pytest.raises(RuntimeError, match="a row wants tokens that it has not"):
            bench.run(tokens, counts, wanted=wanted)


def test_a_body_is_narrowed_where_nothing_is_kept_behind() -> None:
    bench = Bench(SETS[0], random(320, 48))
    bench.add(Kind.NARROW, bench.x, bench.x)
    with pytest.raises(ValueError, match="layers that every token needs"):
        bench.run([0])
    bench = Bench(SETS[0], random(320, 48))
    bench.add(Kind.NARROW, bench.rounded(), bench.x)
    with pytest.raises(ValueError, match="a buffer of fp32"):
        bench.run([0])
    bench = Bench(SETS[0], random(320, 48))
    bench.add(Kind.NARROW, bench.x, bench.x)
    bench.add(Kind.GATHER, bench.x, bench.x)
    with pytest.raises(ValueError, match="layers that every token needs"):
        bench.run([0])
