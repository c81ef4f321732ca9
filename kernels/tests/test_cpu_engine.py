"""The CPU engine's operations against plain torch, for every instruction set that this processor has."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels import cpu_engine, tiles
from penstock_kernels.cpu_engine import CpuProgram, NoCpuEngine
from penstock_kernels.program import (
    BYTE_INPUTS,
    INT4_BYTES,
    PAGE_TOKENS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    Activation,
    CacheFormat,
    Epilogue,
    Format,
    Kind,
    Layout,
    Norm,
    NormOver,
    Operation,
    Program,
    QuantizedMatrix,
    Values,
    rounded_up,
)
from penstock_kernels.tensors import in_torch

try:
    SETS = cpu_engine.instruction_sets()
except NoCpuEngine as error:
    pytest.skip(str(error), allow_module_level=True)

LONGEST = 700


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Normal numbers in fp32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def packed(matrix_OI: Tensor) -> Tensor:
    """A copy in tiles."""
    made = tiles.in_whole_tiles(matrix_OI.bfloat16().clone())
    tiles.pack(made)
    return made


class TorchProgram(CpuProgram):
    """Whose rows are torch's."""

    def rows(self, buffer: int, count: int) -> Tensor:  # type: ignore[override]
        """See CpuProgram."""
        found: Tensor = torch.from_numpy(super().rows(buffer, count))
        return found.view(torch.bfloat16) if found.dtype == torch.uint16 else found


class Bench:
    """A program whose first operation embeds: token i has row i of a table as its numbers, rounded to bf16."""

    def __init__(self, instruction_set: str, table_TE: Tensor, threads: int = 2) -> None:
        self.instruction_set, self.threads = instruction_set, threads
        self.program = Program()
        self.x = self.program.buffer("x", Layout.F32, table_TE.shape[1])
        table = packed(table_TE)
        self.program.body.append(Operation(Kind.EMBED, -1, self.x, columns=table_TE.shape[1], weight=table))
        self.caches: dict[int, Tensor] = {}  # of layers
        self.cache_format = CacheFormat.BF16
        self.states: dict[int, Tensor] = {}  # of layer 0

    def add(self, kind: Kind, source: int, target: int, **choices: Any) -> None:
        """One more operation."""
        self.program.body.append(Operation(kind, source, target, **choices))

    def rounded(self) -> int:
        """The numbers in bf16."""
        width = self.program.buffers[self.x].width
        target = self.program.buffer("rounded", Layout.BF16, width)
        self.add(Kind.NORM, self.x, target, columns=width)
        return target

    def run(
        self,
        ids: list[int],
        counts: list[int] | None = None,
        first: list[int] | None = None,
        saves: list[tuple[int, int, int]] | None = None,
        slots: list[int] | None = None,
        places: list[int] | None = None,
        wanted: list[int] | None = None,
    ) -> TorchProgram:
        """A step of these tokens, in rows of `counts` that begin at `first`, in slots 0, 1, ..., whose states are at `places`."""
        if not hasattr(self, "made"):
            self.made = TorchProgram(self.program, self.instruction_set, self.threads)
            self.made.reserve(600, 8, LONGEST)
            for layer, rows_NJ in self.caches.items():
                self.made.set_cache(layer, rows_NJ, 0, self.cache_format)
            for state, of_state in self.states.items():
                self.made.set_state(0, state, of_state)
        counts = counts or [len(ids)]
        rows = len(counts)
        blocks = rounded_up(LONGEST, PAGE_TOKENS) // PAGE_TOKENS
        pages = np.arange(rows * blocks).reshape(1, rows, blocks)[:, :, ::-1].copy()
        columns = (slots or range(rows), first or [0] * rows, counts)
        slots_R, first_R, counts_R = (np.array(column, np.int64) for column in columns)
        copies = np.array(saves or [], np.int64).reshape(-1, 3)
        of_states = None if places is None else np.array(places, np.int64)
        of_rows = {} if wanted is None else {"wanted_R": np.array(wanted, np.int64)}
        self.made.step(
            np.array(ids, np.int64), slots_R, first_R, counts_R, pages, copies, places_R=of_states, **of_rows
        )
        return self.made


def close(ours: Tensor, exact: Tensor, ulps: float = 1.0) -> None:
    """To the rounding of bf16."""
    torch.testing.assert_close(
        ours.float(), exact.float(), atol=4e-3 * ulps * float(exact.abs().max()), rtol=8e-3 * ulps
    )


ROWS = [1, 2, 5, 7, 16, 17, 33, 300]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 16), (64, 48), (40, 50), (288, 864), (544, 96)])
def test_products_and_their_epilogues(name: str, inputs: int, outputs: int) -> None:
    table, weight, bias = (
        random(512, inputs),
        random(outputs, inputs, scale=inputs**-0.5, seed=1),
        random(outputs, seed=2),
    )
    filled = torch.zeros(rounded_up(outputs, TILE_OUTPUTS))
    filled[:outputs] = bias
    bench = Bench(name, table)
    rounded = bench.rounded()
    plain = bench.program.buffer("plain", Layout.F32, outputs)
    short = bench.program.buffer("short", Layout.BF16, outputs)
    tiles = packed(weight)
    shape = {"rows": outputs, "columns": tiles.shape[1], "weight": tiles, "bias": filled}
    bench.add(Kind.LINEAR, rounded, plain, **shape)
    bench.add(Kind.LINEAR, rounded, plain, **shape, epilogue=Epilogue.ADD, scale=0.5)
    bench.add(Kind.LINEAR, rounded, short, **shape, epilogue=Epilogue.ACTIVATE, activation=Activation.RELU)
    for rows in ROWS:
        ids = [(7 * i) % 512 for i in range(rows)]
        made = bench.run(ids)
        exact = table[ids].bfloat16().float() @ weight.bfloat16().float().T + bias
        torch.testing.assert_close(made.rows(plain, rows), 1.5 * exact, atol=2e-4, rtol=2e-4)
        close(made.rows(short, rows), exact.relu())


@pytest.mark.parametrize("name", SETS)
def test_rows_of_many_inputs_get_the_same_alone_and_in_chunks(name: str) -> None:
    """Of so many that fewer rows at once fit a cache; and in parts whose sums are added up."""
    inputs, outputs = 3200, 48
    table, weight = random(300, inputs), random(outputs, inputs, scale=inputs**-0.5, seed=1)
    bench = Bench(name, table)
    rounded = bench.rounded()
    out = bench.program.buffer("out", Layout.F32, outputs)
    tiles = packed(weight)
    bench.add(Kind.LINEAR, rounded, out, rows=outputs, columns=tiles.shape[1], weight=tiles)
    together = bench.run(list(range(300))).rows(out, 300).clone()
    exact = table.bfloat16().float() @ weight.bfloat16().float().T
    torch.testing.assert_close(together, exact, atol=2e-4, rtol=2e-4)
    for count in (1, 20, 160):
        alone = bench.run(list(range(100, 100 + count))).rows(out, count)
        assert torch.equal(alone, together[100 : 100 + count]), count


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("activation", "function"),
    [
        (Activation.SILU, F.silu),
        (Activation.GELU, F.gelu),
        (Activation.GELU_TANH, lambda x: F.gelu(x, approximate="tanh")),
        (Activation.QUICK_GELU, lambda x: x * (1.702 * x).sigmoid()),
        (Activation.RELU, F.relu),
        (Activation.RELU_SQUARED, lambda x: F.relu(x).square()),
    ],
)
def test_gated_layers(name: str, activation: Activation, function: Callable[[Tensor], Tensor]) -> None:
    table, weight = random(64, 64), random(2 * 80, 64, scale=0.4, seed=1)
    bench = Bench(name, table)
    hidden = bench.program.buffer("hidden", Layout.BF16, 80)
    bench.add(
        Kind.LINEAR,
        bench.rounded(),
        hidden,
        rows=160,
        columns=64,
        weight=packed(weight),
        epilogue=Epilogue.GATE,
        activation=activation,
    )
    for rows in ROWS:
        ids = [i % 64 for i in range(rows)]
        both = table[ids].bfloat16().float() @ weight.bfloat16().float().T
        close(bench.run(ids).rows(hidden, rows), function(both[:, :80]) * both[:, 80:])


@pytest.mark.parametrize("name", SETS)
def test_the_activation_with_parameters(name: str) -> None:
    table, weight = random(64, 64), random(50, 64, scale=0.4, seed=1)
    alpha_p, alpha_n, beta, eps = (torch.tensor(x) for x in (0.7, 0.3, 0.5, -1e-6))
    bench = Bench(name, table)
    hidden = bench.program.buffer("hidden", Layout.BF16, 50)
    tiles = packed(weight)
    factors = {
        "alpha": float(F.softplus(alpha_p)),
        "lowest": float(beta + F.softplus(alpha_n)),
        "scale": float(beta),
        "limit": float(eps),
    }
    shape = {"rows": 50, "columns": tiles.shape[1], "weight": tiles}
    activates = {"epilogue": Epilogue.ACTIVATE, "activation": Activation.XIELU}
    bench.add(Kind.LINEAR, bench.rounded(), hidden, **shape, **activates, **factors)
    for rows in ROWS:
        ids = [i % 64 for i in range(rows)]
        exact = table[ids].bfloat16().float() @ weight.bfloat16().float().T
        close(bench.run(ids).rows(hidden, rows), ops.xielu(exact, alpha_p, alpha_n, beta, eps))


def quantized(weight_OI: Tensor, format: Format, name: str, threads: int = 1) -> QuantizedMatrix:
    """In torch's tensors."""
    made = tiles.quantize(weight_OI, format, name, threads)
    if made.scales is None:
        return replace(made, tiles=in_torch(made.tiles))
    return replace(made, tiles=in_torch(made.tiles), scales=in_torch(made.scales), sums=in_torch(made.sums))


def whole_numbers(matrix: QuantizedMatrix) -> Tensor:
    """What the tiles hold, read back by the description of the format: (rows, columns) in fp32."""
    whole, tiles = rounded_up(matrix.rows, TILE_OUTPUTS), matrix.tiles
    if matrix.format == Format.INT8:
        quads = tiles.view(torch.int8).view(
            whole // 16, -1, 16, 16, 4
        )  # panels, tiles, quads, outputs, inputs
        numbers = quads.permute(0, 3, 1, 2, 4).reshape(whole, -1)
    else:
        bytes_ = tiles.view(whole // 16, -1, INT4_BYTES)
        factors = bytes_[..., :64].view(whole // 16, -1, 4, 16).permute(0, 3, 1, 2)  # outputs before groups
        quads = bytes_[..., 64:].reshape(whole // 16, -1, 16, 16, 4).permute(0, 3, 1, 2, 4).flatten(-2)
        halves = torch.stack((quads & 15, quads >> 4), -2).flatten(-2)  # (panels, outputs, tiles, 128)
        groups = (halves.to(torch.int32) - 8).reshape(*halves.shape[:-1], 4, 32) * factors.to(
            torch.int32
        ).unsqueeze(-1)
        numbers = groups.reshape(whole, -1)
    assert numbers[:, matrix.columns :].count_nonzero() == 0 and numbers[matrix.rows :].count_nonzero() == 0
    sums = 128 * numbers.to(torch.int64).sum(1)
    assert torch.equal(sums, matrix.sums.to(torch.int64))
    kept: Tensor = numbers[: matrix.rows, : matrix.columns].float()
    return kept


def in_bytes(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of each row, of which the largest is 127, and its scale."""
    most_T1 = x_TI.abs().amax(-1, keepdim=True)
    # Not 127 / most: torch makes a reciprocal of that.
    inverse_T1 = torch.full_like(most_T1, 127.0) / most_T1.clamp(min=1e-30)
    return (x_TI * inverse_T1).round(), most_T1 / 127


FORMATS = [Format.INT8, Format.INT4]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (48, 64), (50, 40), (96, 544)])
def test_weights_are_rounded_with_little_error(name: str, format: Format, rows: int, columns: int) -> None:
    weight = random(rows, columns).bfloat16()
    weight[3] = 0
    weight[5, 0] = 30.0  # far from the others
    made = quantized(weight, format, name, threads=2)
    numbers = whole_numbers(made)
    errors = numbers * made.scales[:rows, None] - weight.float()
    # Rounding to the nearest with the scale of the largest number, and groups with a scale of their own.
    if format == Format.INT8:
        plain = in_bytes(weight.float())
        plain_errors = plain[0] * plain[1] - weight.float()
    else:
        padded = torch.zeros(rows, rounded_up(columns, 32))
        padded[:, :columns] = weight.float()
        groups = padded.view(rows, -1, 32)
        step = groups.abs().amax(-1, keepdim=True) / 7
        plain_errors = (groups / step.clamp(min=1e-30)).round() * step - groups
    assert errors[3].count_nonzero() == 0
    usual = torch.tensor([row for row in range(rows) if row != 5])
    assert errors[usual].square().sum() <= plain_errors.flatten(1)[usual].square().sum()
    assert errors[5].square().sum() <= 1.3 * plain_errors.flatten(1)[5].square().sum()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(32, 16), (64, 48), (40, 50), (288, 864), (544, 96), (2112, 80), (160, 1060)]
)
def test_quantized_products_are_exact_but_for_their_scales(
    name: str, format: Format, inputs: int, outputs: int
) -> None:
    table, bias = random(512, inputs), random(outputs, seed=2)
    table[7] = 0
    weight = random(outputs, inputs, scale=inputs**-0.5, seed=1).bfloat16()
    filled = torch.zeros(rounded_up(outputs, TILE_OUTPUTS))
    filled[:outputs] = bias
    bench = Bench(name, table)
    rounded = bench.rounded()
    source = bench.program.buffer("bytes", Layout.BYTES, inputs)
    normed = bench.program.buffer("normed bytes", Layout.BYTES, inputs)
    bench.add(Kind.QUANTIZE, rounded, source)
    norm_weight = 1 + 0.3 * random(inputs, seed=5)
    bench.add(Kind.NORM, bench.x, normed, columns=inputs, norm=Norm.RMS, eps=1e-5, norm_weight=norm_weight)
    plain = bench.program.buffer("plain", Layout.F32, outputs)
    of_normed = bench.program.buffer("of normed", Layout.F32, outputs)
    short = bench.program.buffer("short", Layout.BF16, outputs)
    made = quantized(weight, format, name)
    shape = {
        "rows": outputs,
        "columns": rounded_up(inputs, BYTE_INPUTS),
        "weight": made.tiles,
        "bias": filled,
        "format": format,
        "scales": made.scales,
        "sums": made.sums,
    }
    bench.add(Kind.LINEAR, source, plain, **shape)
    bench.add(Kind.LINEAR, source, plain, **shape, epilogue=Epilogue.ADD, scale=0.5)
    bench.add(Kind.LINEAR, source, short, **shape, epilogue=Epilogue.ACTIVATE, activation=Activation.RELU)
    bench.add(Kind.LINEAR, normed, of_normed, **shape)
    numbers = whole_numbers(made).double()
    for rows in ROWS:
        ids = [(7 * i) % 512 for i in range(rows)]
        ran = bench.run(ids)
        x = table[ids].bfloat16().float()
        q, scale = in_bytes(x)
        exact = (q.double() @ numbers.T * scale * made.scales[:outputs] + bias).float()
        torch.testing.assert_close(ran.rows(plain, rows), 1.5 * exact, atol=1e-5, rtol=1e-5)
        close(ran.rows(short, rows), exact.relu())
        # The norm's last bits may round another way.
        q, scale = in_bytes(F.rms_norm(x, (inputs,), norm_weight, 1e-5))
        exact = (q.double() @ numbers.T * scale * made.scales[:outputs] + bias).float()
        off = (ran.rows(of_normed, rows) - exact).abs().max()
        assert off <= 1.1 * (scale * made.scales[:outputs] * numbers.abs().amax(1)).max() + 1e-5


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", FORMATS)
def test_quantized_gated_layers(name: str, format: Format) -> None:
    table, weight = random(64, 96), random(2 * 80, 96, scale=0.3, seed=1).bfloat16()
    bench = Bench(name, table)
    source = bench.program.buffer("bytes", Layout.BYTES, 96)
    bench.add(Kind.QUANTIZE, bench.rounded(), source)
    hidden = bench.program.buffer("hidden", Layout.BF16, 80)
    made = quantized(weight, format, name)
    bench.add(
        Kind.LINEAR,
        source,
        hidden,
        rows=160,
        columns=128,
        weight=made.tiles,
        format=format,
        scales=made.scales,
        sums=made.sums,
        epilogue=Epilogue.GATE,
        activation=Activation.SILU,
    )
    weight_OI = whole_numbers(made) * made.scales[:, None]
    for rows in ROWS:
        ids = [i % 64 for i in range(rows)]
        q, scale = in_bytes(table[ids].bfloat16().float())
        both = q * scale @ weight_OI.T
        close(bench.run(ids).rows(hidden, rows), F.silu(both[:, :80]) * both[:, 80:])


@pytest.mark.parametrize("inputs", [320, 288, 229, 40])
def test_quantized_sums_are_the_same_to_the_last_bit_with_every_instruction_set(inputs: int) -> None:
    """And alone or among others: a row among 300 goes another way than alone. Inputs end within tiles."""
    table, weight = random(300, inputs), random(48, inputs, seed=1).bfloat16()
    columns = rounded_up(inputs, BYTE_INPUTS)
    for format in FORMATS:
        matrix = quantized(weight, format, "generic")
        wanted = None
        for name in SETS:
            bench = Bench(name, table)
            source = bench.program.buffer("bytes", Layout.BYTES, inputs)
            bench.add(Kind.QUANTIZE, bench.rounded(), source)
            out = bench.program.buffer("out", Layout.F32, 48)
            shape = {"format": format, "scales": matrix.scales, "sums": matrix.sums}
            bench.add(Kind.LINEAR, source, out, rows=48, columns=columns, weight=matrix.tiles, **shape)
            together = bench.run(list(range(300))).rows(out, 300).clone()
            wanted = together if wanted is None else wanted
            assert torch.equal(together, wanted), (name, format)
            for count in (*range(1, 18), 24, 31, 32, 33):
                alone = bench.run(list(range(100, 100 + count))).rows(out, count)
                assert torch.equal(alone, wanted[100 : 100 + count]), (name, format, count)


def test_what_is_no_number_or_infinite_reaches_its_own_row_of_quantized_products_only() -> None:
    table, weight = random(64, 96), random(32, 96, seed=1).bfloat16()
    table[5, 40], table[6, 3] = torch.nan, torch.inf
    for name in SETS:
        bench = Bench(name, table)
        source = bench.program.buffer("bytes", Layout.BYTES, 96)
        bench.add(Kind.QUANTIZE, bench.rounded(), source)
        out = bench.program.buffer("out", Layout.F32, 32)
        made = quantized(weight, Format.INT8, name)
        shape = {"format": made.format, "scales": made.scales, "sums": made.sums}
        bench.add(Kind.LINEAR, source, out, rows=32, columns=128, weight=made.tiles, **shape)
        got = bench.run([4, 5, 6, 7]).rows(out, 4)
        assert got[1:3].isnan().all() and got[0].isfinite().all() and got[3].isfinite().all(), name


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("width", [32, 50, 288])
def test_norms(name: str, width: int) -> None:
    table = random(64, width).bfloat16().float() * 3 + 1
    weight, bias = random(width, seed=1), random(width, seed=2)
    bench = Bench(name, table)
    rms = bench.program.buffer("rms", Layout.BF16, width)
    layer = bench.program.buffer("layer", Layout.F32, width)
    bench.add(Kind.NORM, bench.x, rms, columns=width, norm=Norm.RMS, eps=1e-5, norm_weight=weight)
    choices = {"columns": width, "norm": Norm.LAYER, "eps": 1e-5, "norm_weight": weight, "bias": bias}
    bench.add(Kind.NORM, bench.x, layer, **choices)
    bench.add(Kind.NORM, bench.x, layer, **choices, accumulate=True, scale=2.0)
    for rows in (1, 6, 40):
        ids = list(range(rows))
        made, x = bench.run(ids), table[ids].bfloat16().float()
        exact = F.layer_norm(x, (width,), weight, bias, 1e-5)
        torch.testing.assert_close(made.rows(layer, rows), 3 * exact, atol=1e-4, rtol=1e-4)
        if rows > 4:  # fewer are computed by every thread for itself
            close(made.rows(rms, rows), F.rms_norm(x, (width,), weight, 1e-5))


def attention_reference(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    size: int,
    scale: float,
    softcap: float,
    window: int,
    chunked: bool,
) -> Tensor:
    """Of one sequence (T, (H + 2K) D): (T, H D)."""
    tokens = len(qkv)
    q, k, v = (
        part.reshape(tokens, -1, size)
        for part in torch.split(qkv, [heads * size, kv_heads * size, kv_heads * size], 1)
    )
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    at = torch.arange(tokens)
    seen = at[None] <= at[:, None]
    if window and chunked:
        seen &= at[None] // window == at[:, None] // window
    elif window:
        seen &= at[None] > at[:, None] - window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


# Of the last a split is more than what is asked for ahead.
SHAPES = [(4, 2, 64), (6, 6, 48), (3, 1, 16), (2, 1, 128), (18, 1, 8), (4, 2, 80), (2, 1, 544)]


def attending(
    name: str, table: Tensor, heads: int, kv_heads: int, size: int, **choices: Any
) -> tuple[Bench, int]:
    """A program that attends over its tokens' numbers as queries, keys and values. Its cache holds no numbers at first."""
    bench = Bench(name, table)
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": size}
    queries = bench.program.buffer("queries", Layout.QUERIES, heads * size)
    attended = bench.program.buffer("attended", Layout.BF16, heads * size)
    bench.add(Kind.WRITE_KV, bench.x, queries, **shape)
    bench.add(Kind.ATTENTION, queries, attended, **shape, scale=size**-0.5, **choices)
    bench.caches[0] = empty_cache(kv_heads, size)
    return bench, attended


def empty_cache(kv_heads: int, size: int) -> Tensor:
    """Rows of so many heads, which hold no numbers."""
    numbers = kv_heads * (rounded_up(size, TILE_INPUTS) + rounded_up(size, TILE_OUTPUTS))
    return torch.full((3 * rounded_up(LONGEST, PAGE_TOKENS), numbers), torch.nan, dtype=torch.bfloat16)


def attends_in_pieces(bench: Bench, attended: int, ids: list[list[int]], exact: list[Tensor]) -> None:
    """Two sequences, of 600 and 37 tokens, beside each other."""
    done = [0, 0]
    for counts in ((1, 3), (259, 16), (300, 1), (1, 1), (38, 15), (1, 1)):
        fed = [ids[row][done[row] : done[row] + counts[row]] for row in range(2)]
        made = bench.run(fed[0] + fed[1], list(counts), done)
        got = torch.split(made.rows(attended, sum(counts)), list(counts))
        for row in range(2):
            close(got[row], exact[row][done[row] : done[row] + counts[row]], ulps=2.0)
            done[row] += counts[row]
    assert done == [len(row) for row in ids]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), SHAPES)
@pytest.mark.parametrize(
    "choices",
    [{}, {"softcap": 5.0}, {"window": 40}, {"window": 300}, {"window": 48, "chunked": True}],
    ids=str,
)
def test_attention(name: str, heads: int, kv_heads: int, size: int, choices: dict[str, Any]) -> None:
    """Pieces of a prompt, then decodes, of two sequences of which one is longer than a split."""
    width = (heads + 2 * kv_heads) * size
    table = random(640, width, scale=1.5)
    bench, attended = attending(name, table, heads, kv_heads, size, **choices)
    ids = [list(range(600)), [(11 * i + 5) % 640 for i in range(37)]]
    exact = [
        attention_reference(
            table[row].bfloat16().float(),
            heads,
            kv_heads,
            size,
            size**-0.5,
            choices.get("softcap", 0.0),
            choices.get("window", 0),
            choices.get("chunked", False),
        )
        for row in ids
    ]
    attends_in_pieces(bench, attended, ids, exact)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("choices", [{}, {"softcap": 5000.0}, {"window": 300}], ids=str)
def test_large_scores_keep_their_differences(name: str, choices: dict[str, Any]) -> None:
    """As of a model with large biases of queries and keys: all scores are 96 and a little more, where neighbours in bfloat16 are 0.5 apart."""
    heads, kv_heads, size = 4, 2, 64
    table = random(640, (heads + 2 * kv_heads) * size)
    table.view(640, -1, size)[:, : heads + kv_heads, :12] = 8.0
    bench, attended = attending(name, table, heads, kv_heads, size, **choices)
    ids = [list(range(600)), [(11 * i + 5) % 640 for i in range(37)]]
    shape = (heads, kv_heads, size, size**-0.5, choices.get("softcap", 0.0), choices.get("window", 0), False)
    exact = [attention_reference(table[row].bfloat16().float(), *shape) for row in ids]
    attends_in_pieces(bench, attended, ids, exact)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("over", NormOver)
@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (48, 48), (80, 32), (16, 8)])
def test_norms_and_rotations_of_queries_and_keys(name: str, over: NormOver, size: int, rotated: int) -> None:
    """Looked at through attention over few keys."""
    heads, kv_heads, tokens = 4, 2, 21
    table = random(64, (heads + 2 * kv_heads) * size)
    bench, attended = attending(name, table, heads, kv_heads, size)
    write = bench.program.body[1]
    angles = torch.outer(torch.arange(LONGEST, dtype=torch.float32), random(rotated // 2, seed=3))
    write.cos, write.sin, write.rope_dim = angles.cos(), angles.sin(), rotated
    shapes = {NormOver.HEAD: (size,), NormOver.HEADS: (heads * size,), NormOver.ALL: (heads * size,)}
    write.norm, write.eps, write.norm_over = Norm.RMS, 1e-6, over
    write.norm_weight = 1 + 0.2 * random(*shapes[over], seed=4)
    write.second_weight = write.norm_weight[: kv_heads * size].contiguous()

    x = table[:tokens].bfloat16().float()
    q, k, v = torch.split(x, [heads * size, kv_heads * size, kv_heads * size], 1)

    def prepared(part: Tensor, weight: Tensor) -> Tensor:
        if over == NormOver.ALL:
            normed = F.rms_norm(part, (part.shape[1],), weight, 1e-6).view(tokens, -1, size)
        else:
            normed = F.rms_norm(part.view(tokens, -1, size), (size,), None, 1e-6) * weight.view(-1, size)
        cos, sin = angles[:tokens, None].cos(), angles[:tokens, None].sin()
        a, b, rest = torch.split(normed, [rotated // 2, rotated // 2, size - rotated], -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).flatten(1)

    turned = torch.cat((prepared(q, write.norm_weight), prepared(k, write.second_weight), v), 1)
    exact = attention_reference(turned, heads, kv_heads, size, size**-0.5, 0.0, 0, False)
    close(bench.run(list(range(tokens))).rows(attended, tokens), exact, ulps=2.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("values", "size"), [(Values.OWN, 64), (Values.KEYS, 64), (Values.KEYS, 24)])
def test_values_are_normed_and_scaled_and_may_be_keys(
    name: str, values: Values, size: int, normed: bool
) -> None:
    """Keys as they are read: neither normed as keys are, nor rotated."""
    heads, kv_heads, tokens = 4, 2, 21
    rows_of_key = 2 if values == Values.OWN else 1
    table = random(64, (heads + rows_of_key * kv_heads) * size)
    bench, attended = attending(name, table, heads, kv_heads, size)
    write = bench.program.body[1]
    write.values, write.value_scale = values, 0.75
    if normed:
        write.value_norm, write.value_eps = Norm.RMS, 1e-5
    write.norm, write.eps = Norm.RMS, 1e-6
    write.second_weight = 1 + 0.3 * random(size, seed=4)
    x = table[:tokens].bfloat16().float().view(tokens, -1, size)
    q, k, v = x[:, :heads], x[:, heads : heads + kv_heads], x[:, -kv_heads:]
    q = F.rms_norm(q, (size,), None, 1e-6)
    k = F.rms_norm(k, (size,), write.second_weight, 1e-6)
    v = 0.75 * (F.rms_norm(v, (size,), None, 1e-5) if normed else v)
    turned = torch.cat((q, k, v), 1).flatten(1)
    exact = attention_reference(turned, heads, kv_heads, size, size**-0.5, 0.0, 0, False)
    close(bench.run(list(range(tokens))).rows(attended, tokens), exact, ulps=2.0)


@pytest.mark.parametrize("name", SETS)
def test_layers_with_other_heads_have_pages_of_one_length_and_may_read_those_of_others(name: str) -> None:
    """Three layers of one token's numbers: two with heads of their own, and one with queries alone, for the keys of the second. The
    first two share an array, in which they never have the same page.
    """
    near, far = (4, 2, 64), (2, 1, 512)
    table = random(64, 4 * 512)
    bench = Bench(name, table)
    rows_NJ = empty_cache(1, 512)
    made = []
    for layer, (heads, kv_heads, size) in enumerate((near, far, far)):
        shape = {"layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        queries = bench.program.buffer(f"queries of {size}", Layout.QUERIES, heads * size)
        attended = bench.program.buffer(f"attended {layer}", Layout.BF16, heads * size)
        values = Values.NONE if layer == 2 else Values.OWN
        bench.add(Kind.WRITE_KV, bench.x, queries, **shape, values=values)
        bench.add(
            Kind.ATTENTION, queries, attended, **shape, scale=size**-0.5, window=24 if layer == 0 else 0
        )
        made.append(attended)
    # Pages of the first layer are those behind all that the others have.
    behind = len(rows_NJ) // 3 * 2
    bench.caches = {0: rows_NJ[behind:], 1: rows_NJ, 2: rows_NJ}
    x, done = table.bfloat16().float(), 0
    for count in (19, 1, 30, 1):
        ran = bench.run(list(range(done, done + count)), [count], [done])
        for attended, (heads, kv_heads, size) in zip(made, (near, far, far), strict=True):
            qkv = x[: done + count, : (heads + 2 * kv_heads) * size]
            window = 24 if size == 64 else 0
            exact = attention_reference(qkv, heads, kv_heads, size, size**-0.5, 0.0, window, False)
            close(ran.rows(attended, count), exact[done:], ulps=2.0)
        done += count


def test_pages_that_are_too_short_are_refused() -> None:
    bench, _ = attending("generic", random(64, 8 * 64), 4, 2, 64)
    bench.caches[0] = empty_cache(1, 64)
    with pytest.raises(RuntimeError, match="pages that are too short for a layer's heads"):
        bench.run([0])


def test_queries_of_several_sizes_in_one_buffer_are_refused() -> None:
    bench, _ = attending("generic", random(64, 8 * 64), 4, 2, 64)
    queries = bench.program.body[1].target
    shape = {"layer": 1, "heads": 4, "kv_heads": 1, "head_dim": 64}
    bench.add(Kind.WRITE_KV, bench.x, queries, **shape)
    with pytest.raises(ValueError, match="queries of heads of several sizes"):
        bench.run([0])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("width", [8, 32, 40, 336])
def test_tables_row_by_row(name: str, width: int) -> None:
    """An id beyond the table's own counts as 0."""
    table = random(64, width).bfloat16()
    bench = Bench(name, random(80, 16))
    found = bench.program.buffer("found", Layout.F32, width)
    choices = {"columns": width, "rows": 60, "scale": 3.0, "format": Format.ROWS, "weight": table}
    bench.add(Kind.EMBED, -1, found, **choices)
    for ids in ([7], [59, 60, 0, 79, 3], list(range(80))):
        exact = 3.0 * table[[0 if at >= 60 else at for at in ids]].float()
        assert torch.equal(bench.run(ids).rows(found, len(ids)), exact)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("groups", "width"), [(3, 8), (5, 32), (2, 50)])
def test_norms_of_groups(name: str, groups: int, width: int) -> None:
    table, weight = random(64, groups * width), random(width, seed=1)
    bench = Bench(name, table)
    short = bench.program.buffer("short", Layout.BF16, groups * width)
    added = bench.program.buffer("added", Layout.F32, groups * width)
    shape = {"columns": width, "heads": groups, "norm": Norm.RMS, "eps": 1e-5, "norm_weight": weight}
    bench.add(Kind.NORM, bench.x, short, **shape)
    bench.add(Kind.NORM, bench.x, added, columns=groups * width)
    bench.add(Kind.NORM, bench.x, added, **shape, accumulate=True, scale=0.5)
    for rows in (1, 6, 40):
        made, x = bench.run(list(range(rows))), table[:rows].bfloat16().float()
        exact = F.rms_norm(x.view(rows, groups, width), (width,), weight, 1e-5).flatten(1)
        torch.testing.assert_close(made.rows(added, rows), x + 0.5 * exact, atol=1e-5, rtol=1e-5)
        if rows > 4:  # fewer are computed by every thread for itself
            close(made.rows(short, rows), exact)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_gets_the_same_to_the_last_bit_however_it_is_computed(name: str, threads: int) -> None:
    """Alone or beside others, in one piece or several, by any number of threads, whether its keys are divided or not."""
    heads, kv_heads, size = 4, 2, 48
    width = (heads + 2 * kv_heads) * size
    table, weight = random(640, width), random(96, heads * size, scale=0.1, seed=1)

    def program(threads: int) -> tuple[Bench, int]:
        bench, attended = attending(name, table, heads, kv_heads, size)
        bench.threads = threads
        out = bench.program.buffer("out", Layout.F32, 96)
        bench.add(Kind.LINEAR, attended, out, rows=96, columns=heads * size, weight=packed(weight))
        return bench, out

    length, ids = 600, [(3 * i + 1) % 640 for i in range(600)]
    whole, out = program(1)
    wanted = whole.run(ids).rows(out, length).clone()
    bench, out = program(threads)
    done = 0
    for turn, count in enumerate((1, 2, 13, 16, 17, 200, 33, 256, *[1] * 62)):
        beside = [[(5 * i + row) % 640 for i in range(9)] for row in range(turn % 3)]
        counts = [count] + [len(other) for other in beside]
        fed = ids[done : done + count] + [token for other in beside for token in other]
        made = bench.run(fed, counts, [done] + [0] * len(beside))
        assert torch.equal(made.rows(out, count), wanted[done : done + count]), (done, count)
        done += count
    assert done == length


def test_what_is_no_number_reaches_its_own_row_only() -> None:
    table = random(64, 8 * 16)
    table[5] = torch.nan
    for name in SETS:
        bench, attended = attending(name, table, 4, 2, 16)
        got = bench.run([1, 2, 5, 1, 2, 3], [3, 3]).rows(attended, 6)
        assert got[3:].isfinite().all() and got[2].isnan().all(), name


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("columns", [1, 15, 199, 4096, 4100, 32003])
def test_summaries_of_logits(name: str, columns: int) -> None:
    """Against torch, and a row alone against the same among others, by one thread and by several."""
    bench = Bench(name, random(16, 32), threads=3)
    made = bench.run([0])
    logits = random(9, columns + 5, scale=4.0)[:, :columns]
    logits[1] = logits[1].round()  # many are equal
    logits[2] = 0.0
    logits[3] += 1000.0
    logits[4, columns // 2] = torch.nan
    logits[5, columns - 1] = torch.inf
    logits[6, 0] = -torch.inf
    summary, reference = made.summarize(logits), ops.summarize(logits.contiguous())
    unsound, sound = np.array([4, 5, 6]), np.array([0, 1, 2, 3, 7, 8])
    assert summary.sound_S.tolist() == reference.sound_S.tolist()
    assert not summary.sound_S[unsound].any() and summary.sound_S[sound].all()
    assert np.array_equal(summary.tokens_S[sound], reference.tokens_S[sound])
    assert np.array_equal(summary.largest_S[sound], reference.largest_S[sound])
    np.testing.assert_allclose(summary.totals_S[sound], reference.totals_S[sound], rtol=1e-5)
    exact = logits[sound].double().log_softmax(-1).float().numpy()
    got = summary.logprobs(logits[sound].numpy(), sound)
    np.testing.assert_allclose(got, exact, atol=2e-6, rtol=2e-6)
    made.set_threads(1)
    for row in sound.tolist():
        alone = made.summarize(logits[row : row + 1])
        assert np.array_equal(alone.totals_S, summary.totals_S[row : row + 1])
        assert np.array_equal(alone.tokens_S, summary.tokens_S[row : row + 1])


class Masked:
    """See RowMasks."""

    def __init__(self, rows: list[int], allowed: Tensor) -> None:
        self.rows = np.array(rows, np.int64)
        columns = allowed.shape[1]
        bits = np.zeros((len(rows), -(-columns // 32) * 32), np.uint8)
        bits[:, :columns] = allowed.numpy()
        self.words_MW = np.packbits(bits, axis=1, bitorder="little").view(np.int32)


@pytest.mark.parametrize("columns", [17, 32, 4096, 4500, 12289])
@pytest.mark.parametrize("name", SETS)
def test_a_mask_says_what_may_be_chosen(name: str, columns: int) -> None:
    """Against torch; what all logits give stays as it is."""
    made = Bench(name, random(16, 32), threads=3).run([0])
    logits = random(7, columns, scale=4.0)
    logits[1] = logits[1].round()  # many are equal
    logits[2] -= 1000.0  # numbers beyond the end would be larger
    logits[3] = -torch.inf
    logits[3, columns - 2 :] = 1.0
    rows = [0, 1, 2, 3, 5]
    allowed = torch.rand(len(rows), columns, generator=torch.Generator().manual_seed(5)) < 0.1
    allowed[0] = allowed[3] = False
    allowed[:, columns - 1] = True  # one token of the last part
    masks = Masked(rows, allowed)
    found, free = made.summarize(logits, masks), made.summarize(logits)
    assert np.array_equal(found.tokens_S, ops.summarize(logits, masks).tokens_S)
    assert found.tokens_S[0] == found.tokens_S[3] == columns - 1
    assert not np.array_equal(found.tokens_S, free.tokens_S)
    for row in (4, 6):
        assert found.tokens_S[row] == free.tokens_S[row]
    assert np.array_equal(found.largest_S, free.largest_S)
    assert np.array_equal(found.totals_S[[0, 1, 2, 4, 5, 6]], free.totals_S[[0, 1, 2, 4, 5, 6]])
    masks.words_MW = np.ascontiguousarray(masks.words_MW[:, :-1])
    with pytest.raises(RuntimeError, match="masks of fewer bits"):
        made.summarize(logits, masks)


def chosen(variable: str) -> str:
    """What a process chooses with the variable at this value, or why it does not."""
    program = (
        "from penstock_kernels import cpu_engine\n"
        "try: print(cpu_engine.instruction_set())\n"
        "except cpu_engine.NoCpuEngine as error: print('no:', error)"
    )
    environment = {**os.environ, "PENSTOCK_CPU_ISA": variable, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_environment_may_name_an_instruction_set() -> None:
    assert chosen("") == SETS[0]
    assert chosen("generic") == "generic"
    assert chosen("none") == "no: PENSTOCK_CPU_ISA is none"
    assert (
        chosen("sse9")
        == "no: PENSTOCK_CPU_ISA is 'sse9', not one of amx, avx512, avx512vnni, avx512bw, avxvnni, avx2, i8mm, neon, generic or none"
    )


def test_operations_that_contradict_each_other_are_refused_in_one_line() -> None:
    bench = Bench("generic", random(16, 32))
    bench.add(Kind.LINEAR, bench.rounded(), bench.x, rows=16, columns=64, weight=packed(random(16, 64)))
    with pytest.raises(ValueError, match="inputs are not its source's"):
        bench.run([0])
