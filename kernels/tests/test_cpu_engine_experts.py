"""Experts on the CPU engine against plain torch, for every instruction set that this processor has."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels.program import (
    BYTE_INPUTS,
    GROUPED,
    Activation,
    Epilogue,
    Format,
    Kind,
    Layout,
    Operation,
    rounded_up,
)
from published import held, of_format, worth
from test_cpu_engine import ROWS, SETS, Bench, close, in_bytes, packed, quantized, random, whole_numbers

WIDTH, INNER, EXPERTS = 96, 48, 8

ROUTINGS = {
    "softmax": ops.Routing(2),
    "all": ops.Routing(8, normalize=True),
    "one": ops.Routing(1, sigmoid=True),
    "normalized": ops.Routing(3, normalize=True, scale=2.5),
    "sigmoid": ops.Routing(2, sigmoid=True, normalize=True),
    "roots": ops.Routing(3, root_softplus=True, normalize=True, scale=1.5),
    "groups": ops.Routing(3, sigmoid=True, groups=4, top_groups=2, group_best=2),
    "groups of one": ops.Routing(2, groups=8, top_groups=3, normalize=True),
    "one by one": ops.Routing(2, one_by_one=0.02),
}


def add_route(
    bench: Bench, source: int, routing: ops.Routing, correction: Tensor | None, experts: int
) -> int:
    """The buffer of a route by logits."""
    route = bench.program.buffer("route", Layout.F32, 2 * routing.per_token)
    choices = {
        name: getattr(routing, name) for name in Operation.__dataclass_fields__ if hasattr(routing, name)
    }
    if routing.root_softplus:
        choices["sigmoid"] = 2
    bench.add(Kind.ROUTE, source, route, **choices, bias=correction, experts=experts)
    return route


def chosen(route_TO: Tensor, experts: int) -> Tensor:
    """The weight of each expert, (T, X); 0 where it was not chosen."""
    weights_TA, bits_TA = route_TO.contiguous().chunk(2, -1)
    numbers_TA = bits_TA.contiguous().view(torch.int32).long()
    return torch.zeros(len(route_TO), experts).scatter_(1, numbers_TA, weights_TA)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("corrected", [False, True])
def test_a_route_is_that_of_torch(name: str, routing: str, corrected: bool) -> None:
    choice = ROUTINGS[routing]
    if corrected and choice.one_by_one:
        pytest.skip("no family has both")
    experts = 24 if choice.groups == 1 else 8
    # Numbers of bf16, as tables hold them, none of which are equal.
    some = torch.unique((3 * random(64, seed=9)).bfloat16())[:experts].float()
    logits = torch.stack([some[random(experts, seed=row).argsort()] for row in range(300)])
    correction = 0.3 * random(experts, seed=3) if corrected else None
    bench = Bench(name, logits)
    route = add_route(bench, bench.x, choice, correction, experts)
    weights_TA, experts_TA = ops.route(logits, correction, choice)
    wanted = torch.zeros(300, experts).scatter_(1, experts_TA, weights_TA)
    for rows in (1, 5, 300):
        got = chosen(bench.run(list(range(rows))).rows(route, rows), experts)
        torch.testing.assert_close(got, wanted[:rows], atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("name", SETS)
def test_weights_may_have_a_factor_of_each_expert(name: str) -> None:
    logits, factors = random(40, 24).bfloat16().float(), 1 + 0.3 * random(24, seed=3)
    choice = ops.Routing(3, normalize=True)
    bench = Bench(name, logits)
    route = add_route(bench, bench.x, choice, None, 24)
    plain = chosen(bench.run(list(range(40))).rows(route, 40), 24)
    bench = Bench(name, logits)
    route = add_route(bench, bench.x, choice, None, 24)
    bench.program.body[-1].norm_weight = factors
    got = chosen(bench.run(list(range(40))).rows(route, 40), 24)
    torch.testing.assert_close(got, plain * factors, atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("routing", ["roots", "softmax", "groups"])
def test_a_table_may_say_which_experts_a_token_goes_to(name: str, routing: str) -> None:
    logits, choice = random(40, 24).bfloat16().float(), ROUTINGS[routing]
    generator = torch.Generator().manual_seed(5)
    by_token = torch.stack([torch.randperm(24, generator=generator) for _ in range(40)])
    by_token = by_token[:, : choice.per_token].contiguous()
    bench = Bench(name, logits)
    route = add_route(bench, bench.x, choice, None, 24)
    bench.program.body[-1].sums = by_token.to(torch.int32)
    ids = [(7 * i) % 40 for i in range(33)]
    got = bench.run(ids).rows(route, 33)
    assert torch.equal(got[:, choice.per_token :].contiguous().view(torch.int32).long(), by_token[ids])
    weights_TA = ops.weigh(logits[ids], by_token[ids], choice)
    torch.testing.assert_close(got[:, : choice.per_token], weights_TA, atol=1e-6, rtol=2e-6)


class Mixture:
    """Random experts, in a program and for torch."""

    def __init__(self, name: str, routing: ops.Routing, **choices: Any) -> None:
        self.routing, self.choices = routing, choices
        self.format: Format = choices.get("format", Format.BF16)
        self.gated: bool = choices.get("gated", True)
        self.inner: int = choices.get("inner", INNER)
        self.table = random(512, WIDTH)
        self.router = random(EXPERTS, WIDTH, scale=0.3, seed=1).bfloat16()
        rows = 2 * self.inner if self.gated else self.inner
        self.up = random(EXPERTS, rows, WIDTH, scale=WIDTH**-0.5, seed=2).bfloat16()
        self.down = random(EXPERTS, WIDTH, self.inner, scale=self.inner**-0.5, seed=3).bfloat16()
        if self.format in GROUPED:
            self.up = of_format(self.format, EXPERTS * rows, WIDTH, seed=2).view_as(self.up)
            self.down = of_format(self.format, EXPERTS * WIDTH, self.inner, seed=3).view_as(self.down)
        has_biases = choices.get("biases", False)
        self.up_bias = random(EXPERTS, rows, scale=0.2, seed=4) if has_biases else None
        self.down_bias = random(EXPERTS, WIDTH, scale=0.2, seed=5) if has_biases else None
        self.bench = Bench(name, self.table)
        self._record(name)

    def _record(self, name: str) -> None:
        bench, program, per_token = self.bench, self.bench.program, self.routing.per_token
        is_short = self.format == Format.BF16
        layout = Layout.BF16 if is_short else Layout.BYTES
        rounded = bench.rounded()
        logits = program.buffer("logits", Layout.F32, EXPERTS)
        bench.add(Kind.LINEAR, rounded, logits, rows=EXPERTS, columns=WIDTH, weight=packed(self.router))
        self.route = add_route(bench, logits, self.routing, None, EXPERTS)
        reads = rounded
        if not is_short:
            reads = program.buffer("bytes", Layout.BYTES, WIDTH)
            bench.add(Kind.QUANTIZE, rounded, reads)
        shape = {
            "second": self.route,
            "per_token": per_token,
            "experts": EXPERTS,
            "weighs_input": self.choices.get("weighs_input", False),
        }
        gathered = program.buffer("gathered", layout, WIDTH, per_token)
        bench.add(Kind.GATHER, reads, gathered, **shape)
        hidden = program.buffer("hidden", Layout.BF16, self.inner, per_token)
        clamp, limit = self.choices.get("clamp"), self.choices.get("limit")
        gate = Activation.CLAMPED_GATE if clamp else Activation.LIMITED_GATE if limit else Activation.SILU
        limits = {} if clamp is None else {"limit": clamp[0], "alpha": clamp[1]}
        bench.add(
            Kind.EXPERTS,
            gathered,
            hidden,
            **shape,
            **self._weights(name, "up"),
            bias=self.up_bias,
            epilogue=Epilogue.GATE if self.gated else Epilogue.ACTIVATE,
            activation=gate,
            **({"limit": limit} if limit else limits),
        )
        given = hidden
        if not is_short:
            given = program.buffer("hidden bytes", Layout.BYTES, self.inner, per_token)
            bench.add(Kind.QUANTIZE, hidden, given)
        self.out = program.buffer("out", Layout.F32, WIDTH)
        down = {**shape, **self._weights(name, "down"), "bias": self.down_bias}
        bench.add(Kind.EXPERTS, given, self.out, **down, epilogue=Epilogue.STORE)
        bench.add(Kind.EXPERTS, given, self.out, **down, epilogue=Epilogue.ADD, scale=0.5)

    def _weights(self, name: str, which: str) -> dict[str, Any]:
        """And leaves what they are worth in fp32 for torch."""
        matrices = getattr(self, which)
        count, rows, columns = matrices.shape
        assert rows % 16 == 0, "else each expert's rows are filled up"
        whole = matrices.reshape(count * rows, columns)
        if self.format == Format.BF16:
            setattr(self, which, matrices.float())
            return {"rows": rows, "columns": rounded_up(columns, 32), "weight": packed(whole)}
        made = quantized(whole, self.format, name)
        if self.format in GROUPED:
            numbers = worth(*held(made), GROUPED[self.format]).float()
        else:
            numbers = whole_numbers(made) * made.scales[: count * rows, None]
        setattr(self, which, numbers.view(count, rows, columns))
        return {
            "rows": rows,
            "columns": rounded_up(columns, BYTE_INPUTS),
            "weight": made.tiles,
            "format": made.format,
            "scales": made.scales,
            "sums": made.sums,
        }

    def run(self, ids: list[int]) -> Tensor:
        """1.5 times the mixture of these tokens."""
        return self.bench.run(ids).rows(self.out, len(ids)).clone()

    def exact(self, ids: list[int]) -> Tensor:
        """The same by torch, in fp32 but for what is rounded on the way."""
        x_TE = self.table[ids].bfloat16().float()
        weights_TA, experts_TA = ops.route(x_TE @ self.router.float().T, None, self.routing)
        clamp, limit = self.choices.get("clamp"), self.choices.get("limit")

        def activation(gate_up: Tensor) -> Tensor:
            if clamp is not None:
                made = ops.gated_clamped(gate_up, *clamp)
            elif limit is not None:
                made = ops.gated_limited(gate_up, partial(F.silu), limit)
            elif self.gated:
                made = ops.gated(gate_up, partial(F.silu))
            else:
                made = F.silu(gate_up)
            made = made.bfloat16().float()
            if self.format == Format.BF16:
                return made
            numbers, scale = in_bytes(made)
            return numbers * scale

        if self.format != Format.BF16:
            numbers, scale = in_bytes(x_TE)
            x_TE = numbers * scale
        return 1.5 * ops.mix_experts(
            x_TE,
            weights_TA,
            experts_TA,
            0,
            self.up,
            self.up_bias,
            self.down,
            self.down_bias,
            activation,
            weighs_input=self.choices.get("weighs_input", False),
        )


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"biases": True},
    "clamped": {"biases": True, "clamp": (0.7, 1.702)},
    "limited": {"biases": True, "limit": 0.7},
    "not gated": {"gated": False},
    "narrow": {"inner": 16},
    "int8": {"format": Format.INT8},
    "int4": {"format": Format.INT4},
    "int4 in groups": {"format": Format.GROUPS_32},
    "int4 with offsets": {"format": Format.OFFSET_32, "inner": 96},
    "int4 of fp4": {"format": Format.FP4_32, "biases": True, "clamp": (0.7, 1.702)},
    "int4 in groups of 64": {"format": Format.GROUPS_64, "inner": 64},
    "int8 not gated": {"format": Format.INT8, "gated": False, "biases": True},
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_experts_give_what_torch_gives(name: str, variant: str) -> None:
    mixture = Mixture(name, ops.Routing(2, normalize=True), **VARIANTS[variant])
    for rows in ROWS:
        ids = [(7 * i) % 512 for i in range(rows)]
        exact = mixture.exact(ids)
        error = (mixture.run(ids) - exact).norm() / exact.norm()
        # Where a hidden number is rounded another way, by its last bit; of bytes that bit is larger.
        assert error < (2e-3 if "int" not in variant else 1e-2), (rows, float(error))


@pytest.mark.parametrize("name", SETS)
def test_a_weight_may_be_a_factor_of_what_an_expert_reads(name: str) -> None:
    mixture = Mixture(name, ops.Routing(1, sigmoid=True), weighs_input=True)
    plain = Mixture(name, ops.Routing(1, sigmoid=True))
    ids = list(range(40))
    given = mixture.run(ids)
    x_TE = mixture.table[ids].bfloat16()
    weights_T1, experts_T1 = ops.route(x_TE.float() @ mixture.router.float().T, None, mixture.routing)
    exact = torch.zeros(40, WIDTH)
    for token, expert in enumerate(experts_T1[:, 0].tolist()):
        read = (x_TE[token] * weights_T1[token].bfloat16()).float()
        both = mixture.up[expert] @ read
        hidden = (F.silu(both[:INNER]) * both[INNER:]).bfloat16().float()
        exact[token] = 1.5 * mixture.down[expert] @ hidden
    close(given, exact)
    assert not torch.allclose(given, plain.run(ids), rtol=0.05)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", [Format.BF16, Format.INT8, Format.INT4, Format.GROUPS_32])
def test_a_token_gets_the_same_from_its_experts_to_the_last_bit(name: str, format: Format) -> None:
    """Alone, among few and among many; with one thread and with two."""
    mixture = Mixture(name, ops.Routing(3, normalize=True), format=format)
    wanted = mixture.run(list(range(300)))
    for count in (1, 3, 16, 17, 40):
        mixture.bench.made.set_threads(1 + count % 2)
        assert torch.equal(mixture.run(list(range(100, 100 + count))), wanted[100 : 100 + count]), count


def test_what_is_no_number_reaches_its_own_row_only() -> None:
    for name in SETS:
        mixture = Mixture(name, ops.Routing(2))
        sound = mixture.run([4, 5, 6])
        bad = mixture.table.clone()
        bad[5, 7] = torch.nan
        mixture = Mixture(name, ops.Routing(2))
        mixture.bench.program.body[0].weight = packed(bad)
        got = mixture.run([4, 5, 6])
        assert torch.equal(got[[0, 2]], sound[[0, 2]]) and got[1].isnan().all(), name


def test_experts_that_contradict_each_other_are_refused_in_one_line() -> None:
    mixture = Mixture("generic", ops.Routing(2))
    experts = next(one for one in mixture.bench.program.body if one.kind == Kind.EXPERTS)
    experts.per_token = 3
    with pytest.raises(ValueError, match="experts read what was gathered"):
        mixture.run([0])
    mixture = Mixture("generic", ops.Routing(2))
    route = next(one for one in mixture.bench.program.body if one.kind == Kind.ROUTE)
    route.groups = 3
    with pytest.raises(ValueError, match="a route that this library does not know"):
        mixture.run([0])
