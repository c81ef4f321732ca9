"""Recurrent layers on the CPU engine against plain torch, for every instruction set that this processor has; and the same bits
wherever a prompt is cut, which torch's chunks do not give.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels.program import Activation, Kind, Layout, Norm, NormOver, Rule
from test_cpu_engine import SETS, Bench, close, random

TOKENS, PLACES = 90, 8


def runs(*counts: int, places: list[int] | None = None) -> ops.StateMetadata:
    """Rows of so many tokens, as torch's operations are told of them."""
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    spans = zip((0, *ends[:-1]), ends, places or range(len(counts)), strict=True)
    return ops.StateMetadata(
        torch.zeros(0, dtype=torch.int64), [ops.Run(*span) for span in spans], exact=True
    )


def cut_everywhere(bench: Bench, out: int, states: dict[int, Tensor], tokens: int = TOKENS) -> None:
    """The same numbers and states in pieces, beside others, with one thread and with two; and copies on the way."""
    before = {number: places.clone() for number, places in states.items()}

    def start() -> None:
        for number, places in states.items():
            places.copy_(before[number])

    ids = list(range(tokens))
    whole = bench.run(ids, slots=[2]).rows(out, tokens).clone()
    ended = {number: places[2].clone() for number, places in states.items()}
    start()
    position, pieces = 0, []
    for turn, count in enumerate((1, 16, 2, 1, 37, 1, 1, 20)):
        bench.made.set_threads(1 + turn % 2)
        piece = ids[position : position + count]
        other = ids[: 5 + turn]
        counts, first = [len(other), count, 1], [0, position, 0]
        made = bench.run(other + piece + [3], counts, first, slots=[0, 2, 1])
        pieces.append(made.rows(out, len(other) + count)[len(other) :].clone())
        position += count
    made = bench.run(ids[position:], first=[position], slots=[2])
    pieces.append(made.rows(out, tokens - position).clone())
    assert torch.equal(torch.cat(pieces), whole)
    assert all(torch.equal(states[number][2], ended[number]) for number in states)
    start()
    bench.run(ids, slots=[2], saves=[(0, 19, 5), (0, tokens, 6)])
    copies = {number: places[5].clone() for number, places in states.items()}
    assert all(torch.equal(states[number][6], ended[number]) for number in states)
    start()
    bench.run(ids[:19], slots=[2])
    assert all(torch.equal(states[number][2], copies[number]) for number in states)
    rest = bench.run(ids[19:], first=[19], slots=[2]).rows(out, tokens - 19)
    assert torch.equal(rest, whole[19:])
    # A state may be anywhere, and two copies of it are made at once.
    start()
    for number, there in states.items():
        there[7] = before[number][2]
    bench.run(ids, slots=[2], places=[7], saves=[(0, 19, 5), (0, 19, 4), (0, tokens, 6)])
    for number, there in states.items():
        assert torch.equal(there[7], ended[number]) and torch.equal(there[2], before[number][2])
        assert torch.equal(there[5], copies[number]) and torch.equal(there[4], copies[number])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("channels", "kernel"), [(64, 4), (40, 3), (144, 7), (16, 1), (33, 2)])
def test_convolutions(name: str, gated: bool, channels: int, kernel: int) -> None:
    table = random(TOKENS, 3 * channels).bfloat16().float()
    weight, bias = random(kernel, channels, seed=1), random(channels, seed=2)
    states = random(PLACES, kernel - 1, channels, seed=3).bfloat16()
    bench = Bench(name, table)
    bench.program.body[0].scale = 0.7
    table = table * 0.7  # no numbers of bf16: they are rounded as those are that a state keeps
    bench.states = {0: states} if kernel > 1 else {}
    layout = Layout.BF16 if gated else Layout.F32
    out = bench.program.buffer("out", layout, channels)
    columns = {"inner_at": 0, "outer_at": channels} if gated else {}
    bench.add(
        Kind.CONVOLVE,
        bench.x,
        out,
        **columns,
        source_at=2 * channels,
        rows=kernel,
        columns=channels,
        norm_weight=weight,
        bias=bias,
        activation=Activation.IDENTITY if gated else Activation.SILU,
    )
    inner, outer, x = table.bfloat16().chunk(3, -1)
    start = states.clone()
    made = ops.causal_conv(inner * x if gated else x, weight, bias, start, runs(50, 40))
    exact = outer.float() * made if gated else F.silu(made)
    got = bench.run(list(range(TOKENS)), counts=[50, 40]).rows(out, TOKENS)
    if gated:
        close(got, exact)
    else:
        torch.testing.assert_close(got, exact, atol=1e-5, rtol=1e-5)
    assert torch.equal(states, start)
    if kernel > 1:
        cut_everywhere(bench, out, bench.states)


class Heads:
    """A delta rule, or a state space: queries, keys and values, then a and b, are columns of what is embedded."""

    def __init__(
        self, name: str, learns: bool, key_heads: int, shared: int, key_dim: int, value_dim: int
    ) -> None:
        heads = key_heads * shared
        self.shape = (key_heads, heads, key_dim, value_dim)
        keys, values = key_heads * key_dim, heads * value_dim
        self.widths = [keys, keys, values, heads, heads]
        self.table = random(TOKENS, sum(self.widths)).bfloat16().float()
        self.decay, self.bias, self.skip = (
            0.2 + random(heads, seed=1).square(),
            random(heads, seed=2),
            random(heads, seed=3),
        )
        self.states = 0.3 * random(PLACES, heads, key_dim, value_dim, seed=4)
        self.learns = learns
        self.bench = bench = Bench(name, self.table)
        bench.states = {1: self.states}
        rates = bench.program.buffer("rates", Layout.F32, 2 * heads)
        # In place of a convolution: units are made where queries and keys are.
        bench.add(
            Kind.RATES,
            bench.x,
            rates,
            second=bench.x,
            rule=Rule.DELTA_RULE if learns else Rule.STATE_SPACE,
            source_at=2 * keys + values,
            inner_at=2 * keys + values + heads,
            columns=heads,
            norm_weight=self.decay,
            bias=self.bias,
            scale=2.0 if learns else 1.0,
            lowest=0.05,
            highest=1.5,
            heads=key_heads if learns else 0,
            head_dim=key_dim,
            eps=1e-6,
            alpha=key_dim**-0.5,
        )
        self.out = bench.program.buffer("answers", Layout.F32, values)
        bench.add(
            Kind.RECUR,
            bench.x,
            self.out,
            second=rates,
            source_at=0,
            inner_at=keys,
            outer_at=2 * keys,
            heads=heads,
            kv_heads=key_heads,
            head_dim=key_dim,
            value_dim=value_dim,
            learns=learns,
            norm_weight=None if learns else self.skip,
        )

    def exact(self, states: ops.StateMetadata, state_P: Tensor) -> Tensor:
        """By torch."""
        key_heads, heads, key_dim, value_dim = self.shape
        q, k, v, a, b = self.table.split(self.widths, -1)  # type: ignore[no-untyped-call]
        q, k = (x.unflatten(-1, (key_heads, key_dim)) for x in (q, k))
        v = v.unflatten(-1, (heads, value_dim))
        rate = F.softplus(a + self.bias).clamp(0.05, 1.5)
        if not self.learns:
            made = ops.decayed_attention(q, k, v * rate.unsqueeze(-1), -rate * self.decay, state_P, states)
            skipped = v * self.skip.unsqueeze(-1)
            return torch.flatten(made + skipped, 1)
        q, k = (ops.unit_norm(x).repeat_interleave(heads // key_heads, 1) for x in (q, k))
        made = ops.gated_delta_rule(
            q * key_dim**-0.5, k, v, -rate * self.decay, 2 * b.sigmoid(), state_P, states
        )
        return made.flatten(1)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(
    ("key_heads", "shared", "key_dim", "value_dim"),
    [(2, 2, 64, 64), (1, 3, 16, 40), (3, 1, 24, 8), (2, 1, 96, 48), (1, 1, 128, 130)],
)
def test_states_of_heads(
    name: str, learns: bool, key_heads: int, shared: int, key_dim: int, value_dim: int
) -> None:
    heads = Heads(name, learns, key_heads, shared, key_dim, value_dim)
    state_P = heads.states.clone()
    before = heads.states.clone()
    exact = heads.exact(runs(50, 39, 1, places=[3, 1, 4]), state_P)
    made = heads.bench.run(list(range(TOKENS)), counts=[50, 39, 1], slots=[3, 1, 4])
    scale = float(exact.abs().max())
    torch.testing.assert_close(made.rows(heads.out, TOKENS), exact, atol=3e-6 * scale, rtol=1e-4)
    torch.testing.assert_close(heads.states, state_P, atol=3e-6 * float(state_P.abs().max()), rtol=1e-4)
    heads.states.copy_(before)
    cut_everywhere(heads.bench, heads.out, heads.bench.states)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize(("heads", "size"), [(2, 64), (3, 24), (1, 128)])
def test_states_of_which_each_channel_decays_by_itself(
    name: str, bound: float | None, heads: int, size: int
) -> None:
    width = heads * size
    widths = [width, width, width, width, heads]
    table = random(TOKENS, sum(widths)).bfloat16().float()
    decay, bias = 0.2 + random(heads, seed=1).square(), random(heads, size, seed=2)
    states = 0.3 * random(PLACES, heads, size, size, seed=4)
    bench = Bench(name, table)
    bench.states = {1: states}
    rates = bench.program.buffer("rates", Layout.F32, heads * (size + 1))
    bench.add(
        Kind.RATES,
        bench.x,
        rates,
        second=bench.x,
        third=bench.x,
        rule=Rule.CHANNELS if bound is None else Rule.BOUNDED_CHANNELS,
        lowest=bound or 0.0,
        source_at=3 * width,
        inner_at=4 * width,
        columns=heads,
        norm_weight=decay,
        bias=bias,
        heads=heads,
        head_dim=size,
        eps=1e-6,
        alpha=size**-0.5,
    )
    out = bench.program.buffer("answers", Layout.F32, width)
    shape: dict[str, Any] = {"heads": heads, "kv_heads": heads, "head_dim": size, "value_dim": size}
    choices = {"channels": True, "learns": True, "source_at": 0, "inner_at": width, "outer_at": 2 * width}
    bench.add(Kind.RECUR, bench.x, out, second=rates, **shape, **choices)
    q, k, v, a, b = table.split(widths, -1)  # type: ignore[no-untyped-call]
    q, k, v, a = (x.unflatten(-1, (heads, size)) for x in (q, k, v, a))
    rate = a + bias
    if bound is None:
        log_kept = -F.softplus(rate) * decay.unsqueeze(-1)
    else:
        log_kept = (rate * decay.unsqueeze(-1)).sigmoid() * bound
    before, state_P = states.clone(), states.clone()
    q, k = ops.unit_norm(q) * size**-0.5, ops.unit_norm(k)
    exact = ops.channel_delta_rule(q, k, v, log_kept, b.sigmoid(), state_P, runs(50, 40))
    got = bench.run(list(range(TOKENS)), counts=[50, 40]).rows(out, TOKENS)
    torch.testing.assert_close(got, exact.flatten(1), atol=3e-6 * float(exact.abs().max()), rtol=1e-4)
    torch.testing.assert_close(states, state_P, atol=3e-6 * float(state_P.abs().max()), rtol=1e-4)
    states.copy_(before)
    cut_everywhere(bench, out, bench.states)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("channels", "size"), [(64, 16), (40, 8), (17, 5)])
def test_states_of_channels(name: str, channels: int, size: int) -> None:
    table = random(TOKENS, 2 * channels + 2 * size).bfloat16().float()
    decay, skip = -(0.1 + random(channels, size, seed=1).square()), random(channels, seed=2)
    states = 0.3 * random(PLACES, channels, size, seed=3)
    bench = Bench(name, table)
    bench.states = {1: states}
    rates = bench.program.buffer("rates", Layout.F32, channels)
    bench.add(Kind.NORM, bench.x, rates, source_at=channels, columns=channels)
    out = bench.program.buffer("answers", Layout.F32, channels)
    bench.add(
        Kind.SCAN,
        bench.x,
        out,
        second=rates,
        third=bench.x,
        inner_at=2 * channels,
        outer_at=2 * channels + size,
        columns=channels,
        head_dim=size,
        positions=decay,
        norm_weight=skip,
    )
    x, rate, b, c = table.split([channels, channels, size, size], -1)  # type: ignore[no-untyped-call]
    before, state_P = states.clone(), states.clone()
    exact = ops.selective_scan(x, F.softplus(rate), decay, b, c, state_P, runs(50, 40)) + x * skip
    got = bench.run(list(range(TOKENS)), counts=[50, 40]).rows(out, TOKENS)
    torch.testing.assert_close(got, exact, atol=2e-6 * float(exact.abs().max()), rtol=1e-4)
    torch.testing.assert_close(states, state_P, atol=2e-6 * float(state_P.abs().max()), rtol=1e-4)
    states.copy_(before)
    cut_everywhere(bench, out, bench.states)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("heads", "size"), [(2, 32), (3, 8), (2, 20)])
def test_states_of_single_numbers(name: str, heads: int, size: int) -> None:
    """Against the operation in torch, whose gates and decays are made as Griffin's are."""
    width = heads * size
    table = random(TOKENS, 3 * width, scale=2.0).bfloat16().float()
    biases, rate = random(heads, 2 * size, seed=1), 8.0 * F.softplus(random(width, seed=2))
    states = random(PLACES, width, seed=3)
    bench = Bench(name, table)
    bench.states = {1: states}
    gates = bench.program.buffer("gates", Layout.F32, 2 * width)
    bench.add(Kind.NORM, bench.x, gates, columns=2 * width, source_at=width)
    out = bench.program.buffer("out", Layout.F32, width)
    shape: dict[str, Any] = {"heads": heads, "head_dim": size, "norm_weight": rate, "bias": biases}
    bench.add(Kind.GATED_RECUR, bench.x, out, second=gates, **shape)
    x, gate_TI = table.split([width, 2 * width], -1)  # type: ignore[no-untyped-call]
    opened = (gate_TI.unflatten(-1, (heads, 2 * size)) + biases).sigmoid()
    read, kept = (part.flatten(1) for part in opened.chunk(2, -1))
    log_kept = -kept * rate
    scale = (1 - (2 * log_kept).exp()).sqrt()
    scale[0] = scale[50] = 1.0  # a sequence's first token
    before, state_P = states.clone(), states.clone()
    exact = ops.linear_recurrence(log_kept.exp(), x * read * scale, state_P, runs(50, 40))
    got = bench.run(list(range(TOKENS)), counts=[50, 40]).rows(out, TOKENS)
    # 1 - e^x of a small x has few digits.
    torch.testing.assert_close(got, exact, atol=2e-4 * float(exact.abs().max()), rtol=1e-4)
    torch.testing.assert_close(states, state_P, atol=2e-4 * float(state_P.abs().max()), rtol=1e-4)
    states.copy_(before)
    cut_everywhere(bench, out, bench.states)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [64, 40, 144, 2])
def test_mixtures_of_a_token_and_the_one_before_it(name: str, channels: int) -> None:
    table = random(TOKENS, channels).bfloat16().float()
    first_mix, second_mix = torch.rand(channels), random(channels, seed=1)
    states = random(PLACES, 1, channels, seed=3).bfloat16()
    bench = Bench(name, table)
    bench.states = {0: states}
    short = bench.rounded()
    outs = [bench.program.buffer(f"out {at}", Layout.BF16, channels) for at in range(2)]
    # The first leaves the state as it is, so that the second reads the same.
    bench.add(Kind.MIX_TOKENS, short, outs[0], columns=channels, norm_weight=first_mix)
    bench.add(Kind.MIX_TOKENS, short, outs[1], columns=channels, norm_weight=second_mix, accumulate=True)
    state_P = states.clone()
    before, x = states.clone(), table.bfloat16()
    previous = ops.previous_tokens(x, state_P, runs(50, 40))
    made = bench.run(list(range(TOKENS)), counts=[50, 40])
    for out, mix in zip(outs, (first_mix, second_mix), strict=True):
        close(made.rows(out, TOKENS), ops.mix_with_previous(x, previous, mix))
    assert torch.equal(states, state_P)
    for out in outs:
        states.copy_(before)
        cut_everywhere(bench, out, bench.states)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [64, 40, 3])
@pytest.mark.parametrize("largest", [0.0, 300.0, -300.0])
def test_means_of_values_by_the_weights_of_their_keys(name: str, channels: int, largest: float) -> None:
    """Beyond what an exponential holds, and from a sequence's first token on, whose state is zeros."""
    table = random(TOKENS, 3 * channels, scale=3.0)
    table[:, :channels] += largest
    table = table.bfloat16().float()
    decay, first = -random(channels, seed=1).exp(), random(channels, seed=2)
    states = random(PLACES, 3, channels, seed=3)
    states[:, 1].abs_()
    states[:, 2] += largest
    states[1] = 0
    bench = Bench(name, table)
    bench.states = {1: states}
    parts = []
    for at, of in enumerate(("keys", "values", "gates")):
        parts.append(bench.program.buffer(of, Layout.F32, channels))
        bench.add(Kind.NORM, bench.x, parts[-1], columns=channels, source_at=at * channels)
    out = bench.program.buffer("out", Layout.BF16, channels)
    weights = {"columns": channels, "norm_weight": decay, "bias": first}
    bench.add(Kind.WEIGH_VALUES, parts[0], out, second=parts[1], third=parts[2], **weights)
    keys, values, gates = (part.contiguous() for part in table.chunk(3, -1))
    state_P, before = states.clone(), states.clone()
    exact = ops.weighted_key_values(keys, values, decay, first, state_P, runs(50, 40)) * gates.sigmoid()
    got = bench.run(list(range(TOKENS)), counts=[50, 40]).rows(out, TOKENS)
    close(got, exact)
    torch.testing.assert_close(states, state_P, atol=2e-4, rtol=2e-4)
    states.copy_(before)
    cut_everywhere(bench, out, bench.states)


@pytest.mark.parametrize("name", SETS)
def test_decays_that_never_change(name: str) -> None:
    table, decay = random(40, 3 * 32), torch.tensor([0.5, 0.03])
    states = torch.zeros(2, 2, 16, 16)
    bench = Bench(name, table.bfloat16().float())
    bench.states = {1: states}
    rates = bench.program.buffer("rates", Layout.F32, 4)
    bench.add(Kind.RATES, bench.x, rates, rule=Rule.CONSTANT, source_at=-1, columns=2, norm_weight=decay)
    out = bench.program.buffer("out", Layout.F32, 32)
    shape: dict[str, Any] = {"heads": 2, "kv_heads": 2, "head_dim": 16, "value_dim": 16}
    bench.add(Kind.RECUR, bench.x, out, second=rates, source_at=0, inner_at=32, outer_at=64, **shape)
    q, k, v = (x.unflatten(-1, (2, 16)) for x in table.bfloat16().float().chunk(3, -1))  # type: ignore[no-untyped-call]
    exact = ops.decayed_attention(q, k, v, -decay.expand(40, 2), torch.zeros(2, 2, 16, 16), runs(40))
    got = bench.run(list(range(40))).rows(out, 40)
    torch.testing.assert_close(got, exact.flatten(1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("groups", "width"), [(1, 64), (3, 40), (4, 128)])
def test_norms_with_gates(name: str, gate_first: bool, groups: int, width: int) -> None:
    total = groups * width
    table, weight = random(64, 2 * total).bfloat16().float(), 1 + 0.3 * random(groups, width, seed=1)
    bench = Bench(name, table)
    normed = bench.program.buffer("normed", Layout.BF16, total + 16)
    x, gates = (part.unflatten(-1, (groups, width)) for part in table.chunk(2, -1))  # type: ignore[no-untyped-call]
    for norm, activation, function in (
        (Norm.RMS, Activation.SILU, F.silu),
        (Norm.RMS, Activation.SIGMOID, torch.sigmoid),
        (Norm.NONE, Activation.SILU, F.silu),
    ):
        del bench.program.body[1:]
        bench.__dict__.pop("made", None)
        bench.add(
            Kind.GATED_NORM,
            bench.x,
            normed,
            second=bench.x,
            source_at=total,
            target_at=16,
            norm=norm,
            norm_over=NormOver.HEADS,
            eps=1e-5,
            heads=groups,
            head_dim=width,
            accumulate=gate_first,
            norm_weight=weight if norm == Norm.RMS else None,
            activation=activation,
        )
        exact = x * function(gates)
        if norm == Norm.RMS:
            exact = ops.gated_rms_norm(x, function(gates), weight, 1e-5, gate_first=gate_first)
        for rows in (1, 5, 64):
            got = bench.run(list(range(rows))).rows(normed, rows)
            close(got[:, 16:], exact[:rows].flatten(1))
            assert not got[:, :16].any(), "what is before its place belongs to another"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("per_number", [False, True])
@pytest.mark.parametrize(
    ("activation", "function"), [(Activation.SIGMOID, torch.sigmoid), (Activation.SOFTPLUS, F.softplus)]
)
def test_gates_of_what_is_attended_to(
    name: str, per_number: bool, activation: Activation, function: Any
) -> None:
    heads, size = 3, 24
    count = heads * size if per_number else heads
    table = random(64, heads * size + count, scale=4.0).bfloat16().float()
    bench = Bench(name, table)
    opened = bench.program.buffer("opened", Layout.BF16, heads * size)
    bench.add(Kind.NORM, bench.x, opened, columns=heads * size)
    bench.add(
        Kind.OPEN,
        bench.x,
        opened,
        source_at=heads * size,
        heads=heads,
        head_dim=size,
        columns=count,
        activation=activation,
    )
    long = bench.program.buffer("opened in fp32", Layout.F32, heads * size)
    bench.add(Kind.NORM, bench.x, long, columns=heads * size)
    opens = {"source_at": heads * size, "heads": heads, "head_dim": size, "columns": count}
    bench.add(Kind.OPEN, bench.x, long, **opens, activation=activation)
    x, gates = table.split([heads * size, count], -1)  # type: ignore[no-untyped-call]
    exact = x.unflatten(-1, (heads, size)) * function(gates).unflatten(-1, (heads, -1))
    for rows in (1, 5, 64):
        close(bench.run(list(range(rows))).rows(opened, rows), exact[:rows].flatten(1))
        torch.testing.assert_close(bench.run(list(range(rows))).rows(long, rows), exact[:rows].flatten(1))


def test_states_that_contradict_each_other_are_refused_in_one_line() -> None:
    heads = Heads("generic", True, 2, 2, 16, 16)
    heads.bench.run([0, 1, 2])
    for saves in ([(0, 4, 1)], [(1, 1, 1)], [(0, 2, 1), (0, 1, 1)]):
        with pytest.raises(RuntimeError, match="a state is to be copied where its row is not"):
            heads.bench.run([0, 1, 2], saves=saves)
    heads = Heads("generic", True, 2, 2, 16, 16)
    heads.bench.program.body[-1].value_dim = 17
    with pytest.raises(ValueError, match="states that this library does not know"):
        heads.bench.run([0])


@pytest.mark.parametrize("change", [{"columns": 8}, {"norm_weight": None}, {"bias": None}, {"third": 0}])
def test_weights_of_values_that_contradict_each_other_are_refused(change: dict[str, Any]) -> None:
    bench = Bench("generic", random(8, 48))
    parts = [bench.program.buffer(of, Layout.F32, 16) for of in ("keys", "values", "gates")]
    out = bench.program.buffer("out", Layout.BF16, 16)
    weights = {"columns": 16, "norm_weight": random(16), "bias": random(16)}
    bench.add(Kind.WEIGH_VALUES, parts[0], out, second=parts[1], third=parts[2], **weights)
    for field, value in change.items():
        setattr(bench.program.body[-1], field, value)
    with pytest.raises(ValueError, match="weights of values that this library does not know"):
        bench.run([0])


@pytest.mark.parametrize("change", [{"columns": 8}, {"norm_weight": None}, {"source": 0}])
def test_mixtures_that_contradict_each_other_are_refused(change: dict[str, Any]) -> None:
    bench = Bench("generic", random(8, 16))
    short, out = bench.rounded(), bench.program.buffer("out", Layout.BF16, 16)
    bench.add(Kind.MIX_TOKENS, short, out, columns=16, norm_weight=random(16))
    for field, value in change.items():
        setattr(bench.program.body[-1], field, value)
    with pytest.raises(ValueError, match="mixtures of tokens that this library does not know"):
        bench.run([0])
