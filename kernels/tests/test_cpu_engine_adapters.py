"""Adapters in the CPU engine: what they add to products, for tokens of slots that have one, on every instruction set of this processor."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock_kernels.program import (
    BYTE_INPUTS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    Activation,
    Epilogue,
    Format,
    Kind,
    Layout,
    rounded_up,
)
from test_cpu_engine import SETS, Bench, close, in_bytes, packed, quantized, random, whole_numbers

INPUTS, ADAPTERS = 96, 3
# Slots 0 to 7, and how many tokens of each: decodes, prompts that are more than one run, neighbours with the same adapter, and some that are apart.
OF_SLOTS = np.array([0, 2, 2, 1, 0, 3, 3, 2], np.int32)
COUNTS = [1, 1, 3, 290, 20, 1, 33, 2]


@dataclass
class Matrix:
    """A product with a matrix, and the low-rank ones beside it."""

    bench: Bench
    target: int
    product: Tensor  # of all tokens, in fp32: what base and adapters add up to
    base: Tensor


def adapted(name: str, format: Format, rank: int, outputs: int, **choices: Any) -> Matrix:
    """A program of one product that three adapters change, whose target is as wide as `width` says, and what it should give of tokens 0, 1, ..."""
    table = random(sum(COUNTS), INPUTS)
    weight = random(outputs, INPUTS, scale=INPUTS**-0.5, seed=1).bfloat16()
    a_KRI = random(ADAPTERS, rank, INPUTS, scale=INPUTS**-0.5, seed=2).bfloat16()
    whole = rounded_up(outputs, TILE_OUTPUTS)
    b_KOR = torch.zeros(ADAPTERS, whole, rank)
    b_KOR[:, :outputs] = random(ADAPTERS, outputs, rank, seed=3)
    b_KOR = b_KOR.bfloat16()
    bench = Bench(name, table)
    source, x = bench.rounded(), table.bfloat16().float()
    layout = choices.pop("layout", Layout.F32)
    width = outputs // 2 if choices.get("epilogue") == Epilogue.GATE else outputs
    target = bench.program.buffer("target", layout, width)
    low = bench.program.buffer("low", Layout.BF16, rank)
    added = bench.program.buffer("added", Layout.F32, outputs)
    of_base: dict[str, Any] = {"weight": packed(weight), "columns": INPUTS}
    of_a: dict[str, Any] = {"weight": packed(a_KRI.reshape(-1, INPUTS)), "columns": INPUTS}
    read, base_weight, a_weight = x.double(), weight.double(), a_KRI.double()
    if format != Format.BF16:
        rounded, source = source, bench.program.buffer("bytes", Layout.BYTES, INPUTS)
        bench.add(Kind.QUANTIZE, rounded, source)
        of_base, base_weight = _in_format(weight, format, name)
        of_a, a_weight = _in_format(a_KRI.reshape(-1, INPUTS), Format.INT8, name)
        a_weight = a_weight.reshape(a_KRI.shape)
        q, scale = in_bytes(x)
        read = q.double() * scale
    bench.add(Kind.ADAPT, source, low, rows=rank, experts=ADAPTERS, **of_a)
    bench.add(
        Kind.ADAPT,
        low,
        added,
        rows=outputs,
        experts=ADAPTERS,
        weight=packed(b_KOR.reshape(-1, rank)),
        columns=rounded_up(rank, TILE_INPUTS),
    )
    bench.add(Kind.LINEAR, source, target, rows=outputs, second=added, **of_base, **choices)
    base = (read @ base_weight.T).float()
    product = base.clone()
    for token, adapter in enumerate(np.repeat(OF_SLOTS, COUNTS).tolist()):
        if adapter:
            low_R = (a_weight[adapter - 1] @ read[token]).bfloat16().double()
            product[token] += (b_KOR[adapter - 1, :outputs].double() @ low_R).float()
    return Matrix(bench, target, product, base)


def _in_format(weight_OI: Tensor, format: Format, name: str) -> tuple[dict[str, Any], Tensor]:
    made = quantized(weight_OI, format, name)
    columns = rounded_up(weight_OI.shape[1], BYTE_INPUTS)
    of_operation = {"weight": made.tiles, "scales": made.scales, "sums": made.sums, "format": format}
    numbers = whole_numbers(made).double() * made.scales[: len(weight_OI), None]
    return {**of_operation, "columns": columns}, numbers


def run(matrix: Matrix, counts: list[int] = COUNTS, slots: list[int] | None = None, first: int = 0) -> Tensor:
    """Of tokens from `first` on."""
    tokens = sum(counts)
    bench = matrix.bench
    if not hasattr(bench, "made"):
        bench.run([0])
    bench.made.set_adapters(OF_SLOTS)
    ran = bench.run(list(range(first, first + tokens)), counts, slots=slots)
    return ran.rows(matrix.target, tokens).clone()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", [Format.BF16, Format.INT8, Format.INT4])
@pytest.mark.parametrize(("rank", "outputs"), [(16, 48), (32, 48), (48, 50), (64, 800)])
def test_products_with_adapters_are_those_of_both_matrices(
    name: str, format: Format, rank: int, outputs: int
) -> None:
    matrix = adapted(name, format, rank, outputs)
    made = run(matrix)
    close(made, matrix.product)
    plain = np.repeat(OF_SLOTS, COUNTS) == 0
    torch.testing.assert_close(made[plain], matrix.base[plain], atol=2e-4, rtol=2e-4)
    # Far more than what `close` lets pass.
    assert (matrix.product - matrix.base)[~plain].abs().mean() > 0.3


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", [Format.BF16, Format.INT8])
def test_a_token_gets_the_same_whoever_is_beside_it(name: str, format: Format) -> None:
    matrix = adapted(name, format, 32, 80)
    together, begin = run(matrix), 0
    for slot, count in enumerate(COUNTS):
        alone = run(matrix, [count], [slot], begin)
        assert torch.equal(alone, together[begin : begin + count]), slot
        begin += count
    # A prompt in pieces.
    first = sum(COUNTS[:3])
    assert torch.equal(run(matrix, [100], [3], first + 150), together[first + 150 : first + 250])


@pytest.mark.parametrize("name", SETS)
def test_steps_without_an_adapter_are_those_of_a_model_without(name: str) -> None:
    matrix = adapted(name, Format.BF16, 32, 80)
    plain = Bench(name, random(sum(COUNTS), INPUTS))
    target = plain.program.buffer("target", Layout.F32, 80)
    weight = packed(random(80, INPUTS, scale=INPUTS**-0.5, seed=1).bfloat16())
    plain.add(Kind.LINEAR, plain.rounded(), target, rows=80, columns=INPUTS, weight=weight)
    ran = plain.run(list(range(40)), [20, 20]).rows(target, 40)
    assert torch.equal(run(matrix, [20, 20], [0, 4]), ran)


@pytest.mark.parametrize("name", SETS)
def test_what_adapters_add_comes_before_what_becomes_of_the_product(name: str) -> None:
    gated = adapted(
        name,
        Format.BF16,
        32,
        160,
        layout=Layout.BF16,
        epilogue=Epilogue.GATE,
        activation=Activation.SILU,
    )
    gate, up = gated.product.chunk(2, 1)
    close(run(gated), F.silu(gate) * up, 2)
    activated = adapted(
        name,
        Format.INT8,
        32,
        80,
        layout=Layout.BF16,
        epilogue=Epilogue.ACTIVATE,
        activation=Activation.GELU,
        bias=random(80, seed=7),
    )
    close(run(activated), F.gelu(activated.product + random(80, seed=7)), 2)
    added = adapted(name, Format.BF16, 32, INPUTS, epilogue=Epilogue.STORE, scale=0.5)
    close(run(added), 0.5 * added.product)


def test_what_contradicts_itself_is_refused() -> None:
    matrix = adapted(SETS[0], Format.BF16, 32, 48)
    run(matrix)
    matrix.bench.made.set_adapters(np.array([4], np.int32))
    with pytest.raises(RuntimeError, match="a row has an adapter that is not there"):
        matrix.bench.run([0])
    for number, (name, wrong) in enumerate([("rows", 33), ("columns", 64), ("experts", 0), ("weight", None)]):
        other = adapted(SETS[0], Format.BF16, 32, 48)
        setattr(other.bench.program.body[2], name, wrong)
        with pytest.raises(ValueError, match=re.escape("adapters that this library does not know")):
            other.bench.run([number])
    other = adapted(SETS[0], Format.BF16, 32, 48)
    other.bench.program.body[-1].second = other.bench.program.buffer("short", Layout.BF16, 48)
    with pytest.raises(ValueError, match="what adapters add is as many numbers of fp32"):
        other.bench.run([0])
