"""Weights of 4 bits in groups: what becomes of published ones, and products with them, for every instruction set that this processor has."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from penstock_kernels import tiles
from penstock_kernels.program import (
    BYTE_INPUTS,
    GROUPED,
    TILE_OUTPUTS,
    Activation,
    Epilogue,
    Format,
    Kind,
    Layout,
    QuantizedMatrix,
    Rounding,
    rounded_up,
)
from penstock_kernels.tensors import in_torch
from published import held, of_format, published, published_fp4, published_offsets, worth
from test_cpu_engine import ROWS, SETS, Bench, close, in_bytes, random

# Of whole numbers with whole zero points.
WHOLE = [format for format in GROUPED if format not in (Format.FP4_32, Format.OFFSET_32)]


def regrouped(matrix_OI: Tensor, format: Format, name: str, threads: int = 1) -> QuantizedMatrix:
    """In torch's tensors."""
    made = tiles.in_tiles(matrix_OI, format, name, threads)
    assert made is not None and made.scales is None and made.sums is None
    return replace(made, tiles=in_torch(made.tiles))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", WHOLE)
@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (50, 384), (33, 192), (20, 64)])
def test_published_numbers_are_recognized(
    name: str, format: Format, scales: torch.dtype, rows: int, columns: int
) -> None:
    group = GROUPED[format]
    for symmetric in (False, True):
        numbers, scales_OG, matrix = published(rows, columns, group, symmetric=symmetric, scales=scales)
        matrix[3] = 0
        numbers[3] = 0
        made = regrouped(matrix, format, name, threads=2)
        own, own_scales = held(made)
        # Where all numbers of a group have a divisor, its scale is as much larger.
        stands_for = worth(own, own_scales, group)
        assert torch.equal(stands_for.bfloat16(), matrix), "the same in bf16, to the last bit"
        off = (stands_for / worth(numbers, scales_OG, group) - 1).nan_to_num().abs()
        assert off.max() < 2**-8, "which bf16 does not tell apart"
        if scales == torch.float16 and rows == 50:
            assert (off == 0).double().mean() > 0.4, "scales that are found to the last bit"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (50, 384), (33, 96)])
def test_numbers_of_fp4_are_what_they_were(name: str, rows: int, columns: int) -> None:
    numbers, scales_OG, matrix = published_fp4(rows, columns)
    matrix[3], numbers[3] = 0, 0
    own, own_scales = held(regrouped(matrix, Format.FP4_32, name, threads=2))
    assert torch.equal(worth(own, own_scales, 32), worth(numbers, scales_OG, 32))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("size", [1.0, 2.0**-9])  # of which scales have few bits in fp16
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (50, 384), (33, 96), (512, 2048)])
def test_numbers_with_offsets_are_what_they_were(name: str, size: float, rows: int, columns: int) -> None:
    exact = published_offsets(rows, columns, size=size)
    exact[3], exact[5] = 0, 0.0123 * size
    exact[6] += 0.01 * size - exact[6].min()
    exact[7, :32] = -0.25
    made = regrouped(exact.bfloat16(), Format.OFFSET_32, name, threads=2)
    off = (worth(*held(made), 32) - exact).view(rows, -1, 32)
    largest = exact.view(rows, -1, 32).abs().amax(-1, keepdim=True)
    assert (off.abs() <= largest * 3 * 2**-8).all()
    # Rounding to bf16 alone makes a third of this, and rounding to 4 bits is 20 times as much.
    assert off.square().mean().sqrt() < 0.3 * 2**-8 * largest.square().mean().sqrt()


@pytest.mark.parametrize("name", SETS)
def test_offsets_are_of_numbers_that_four_bits_have(name: str) -> None:
    def is_found(matrix: Tensor) -> bool:
        return tiles.in_tiles(matrix.bfloat16(), Format.OFFSET_32, name) is not None

    exact = published_offsets(16, 128)
    assert is_found(exact) and is_found(exact * 1e5)
    assert not is_found(exact * 1e8), "beyond fp16"
    for number in (torch.nan, torch.inf, -torch.inf, 1.0):
        other = exact.clone()
        other[15, 127] = number
        assert not is_found(other)
    assert not is_found(exact[:, :80]), "a group that is cut off"
    steps = torch.linspace(-0.1, 0.1, 17).repeat(16, 8)[:, :128]
    assert not is_found(steps), "17 numbers"


@pytest.mark.parametrize("name", SETS)
def test_groups_of_a_matrix_are_found_and_what_has_none_is_left(name: str) -> None:
    for format in GROUPED:
        matrix = of_format(format, 64, 256, seed=format)
        assert next(tiles.group_formats(matrix, format, name)) == format
        # Groups of 128 inputs are twice as many of 64, too; and zero points are offsets.
        finer = [one for one in WHOLE if format in WHOLE and GROUPED[one] < GROUPED[format]]
        offsets = [Format.OFFSET_32] if format in WHOLE else []
        assert list(tiles.group_formats(matrix, Format.FP4_32, name)) == [format, *finer, *offsets]
        rounded_twice = (matrix.float() * 1.1).bfloat16()
        if format != Format.OFFSET_32:
            assert set(tiles.group_formats(rounded_twice, format, name)) <= set(offsets)
        matrix[63, 255] = 1.0
        assert tiles.in_tiles(matrix, format, name) is None, "but for one number"
    assert not list(tiles.group_formats(random(64, 256).bfloat16(), Format.FP4_32, name))


def rounded(matrix_OI: Tensor, format: Format, name: str, rounding: Rounding) -> QuantizedMatrix:
    """In torch's tensors."""
    made = tiles.quantize(matrix_OI, format, name, 2, rounding=rounding)
    return replace(made, tiles=in_torch(made.tiles))


def nearest(matrix_OI: Tensor, group: int, rounding: Rounding) -> Tensor:
    """What the usual rounding makes of a matrix: a group's largest number is the largest that there is, or its numbers just fill what there is."""
    rows, columns = matrix_OI.shape
    padded = torch.zeros(rows, rounded_up(columns, group))
    padded[:, :columns] = matrix_OI.float()
    groups_OGI = padded.view(rows, -1, group)
    if rounding == Rounding.SYMMETRIC:
        step = (groups_OGI.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-30)
        made = (groups_OGI / step).round() * step
    else:
        lowest, highest = (
            groups_OGI.amin(-1, keepdim=True).clamp(max=0),
            groups_OGI.amax(-1, keepdim=True).clamp(min=0),
        )
        step = ((highest - lowest) / 15).clamp(min=1e-30)
        zero = (-lowest / step).round()
        made = (((groups_OGI / step).round() + zero).clamp(0, 15) - zero) * step
    return made.flatten(1)[:, :columns]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", WHOLE)
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (48, 64), (50, 40), (96, 544), (33, 2176)])
def test_weights_are_rounded_to_groups_with_little_error(
    name: str, format: Format, rows: int, columns: int
) -> None:
    group = GROUPED[format]
    # Of some groups no number is above 0, or most are far from it.
    weight = (random(rows, columns) + 1.5 * random(rows, 1, seed=3)).bfloat16()
    weight[3] = 0
    weight[5, 0] = 30.0
    weight[6] = -weight[6].abs()
    errors: dict[Rounding, float] = {}
    for rounding in (Rounding.SYMMETRIC, Rounding.WITH_ZERO_POINTS):
        made = rounded(weight, format, name, rounding)
        numbers, scales = held(made)
        error = worth(numbers, scales, group) - weight
        assert error[3].count_nonzero() == 0
        plain = nearest(weight, group, rounding) - weight.float()
        usual = torch.tensor([row for row in range(rows) if row != 5])
        assert error[usual].square().sum() < 0.95 * plain[usual].square().sum()
        assert error[5].square().sum() <= 1.001 * plain[5].square().sum()
        if rounding == Rounding.SYMMETRIC:
            assert numbers.min() == -8 and numbers.max() <= 7
        errors[rounding] = float(error.square().sum())
    assert errors[Rounding.WITH_ZERO_POINTS] < 0.9 * errors[Rounding.SYMMETRIC]


@pytest.mark.parametrize("name", SETS)
def test_what_is_no_number_is_none_in_its_group_alone(name: str) -> None:
    weight = random(16, 256).bfloat16()
    sound = held(rounded(weight, Format.GROUPS_64, name, Rounding.WITH_ZERO_POINTS))[1]
    weight[3, 70], weight[4, 7] = torch.nan, torch.inf
    scales = held(rounded(weight, Format.GROUPS_64, name, Rounding.WITH_ZERO_POINTS))[1]
    assert scales[3, 1].isnan() and scales[4, 0].isnan() and scales.isnan().sum() == 2
    assert torch.equal(scales[~scales.isnan()], sound[~scales.isnan()])


def test_only_whole_numbers_of_groups_have_a_rounding() -> None:
    for format in (Format.INT8, Format.INT4, Format.FP4_32, Format.OFFSET_32):
        with pytest.raises(RuntimeError, match="a rounding that this library does not know of the format"):
            tiles.quantize(random(16, 128).bfloat16(), format, "generic", rounding=Rounding.SYMMETRIC)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", GROUPED)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (128, 50), (192, 16), (1152, 96), (320, 1060)])
@pytest.mark.parametrize("rounding", Rounding)
def test_products_with_groups_are_exact_but_for_their_scales(
    name: str, format: Format, rounding: Rounding, inputs: int, outputs: int
) -> None:
    if format not in WHOLE and rounding != Rounding.NOTHING:
        pytest.skip("nothing is rounded to it")
    group = GROUPED[format]
    table, bias = random(512, inputs), torch.zeros(rounded_up(outputs, TILE_OUTPUTS))
    table[7] = 0
    bias[:outputs] = random(outputs, seed=2)
    if rounding == Rounding.NOTHING:
        made = regrouped(of_format(format, outputs, inputs), format, name)
    else:
        made = rounded(random(outputs, inputs, scale=inputs**-0.5, seed=4).bfloat16(), format, name, rounding)
    bench = Bench(name, table)
    source = bench.program.buffer("bytes", Layout.BYTES, inputs)
    bench.add(Kind.QUANTIZE, bench.rounded(), source)
    plain = bench.program.buffer("plain", Layout.F32, outputs)
    short = bench.program.buffer("short", Layout.BF16, outputs)
    shape = {
        "rows": outputs,
        "columns": rounded_up(inputs, BYTE_INPUTS),
        "weight": made.tiles,
        "bias": bias,
        "format": format,
    }
    bench.add(Kind.LINEAR, source, plain, **shape)
    bench.add(Kind.LINEAR, source, plain, **shape, epilogue=Epilogue.ADD, scale=0.5)
    bench.add(Kind.LINEAR, source, short, **shape, epilogue=Epilogue.ACTIVATE, activation=Activation.RELU)
    weight = worth(*held(made), group)
    every: list[Tensor] = []
    for rows in ROWS:
        ids = [(7 * i) % 512 for i in range(rows)]
        ran = bench.run(ids)
        q, scale = in_bytes(table[ids].bfloat16().float())
        exact = (q.double() @ weight.T * scale + bias[:outputs]).float()
        got = ran.rows(plain, rows).clone()
        torch.testing.assert_close(got, 1.5 * exact, atol=1e-5, rtol=1e-5)
        close(ran.rows(short, rows), exact.relu())
        every.append(got)
    for got in every:
        assert torch.equal(got, every[-1][: len(got)]), "whatever is computed beside it"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", GROUPED)
def test_gated_layers_with_groups(name: str, format: Format) -> None:
    group = GROUPED[format]
    table = random(64, 128)
    bench = Bench(name, table)
    source = bench.program.buffer("bytes", Layout.BYTES, 128)
    bench.add(Kind.QUANTIZE, bench.rounded(), source)
    hidden = bench.program.buffer("hidden", Layout.BF16, 80)
    made = regrouped(of_format(format, 160, 128), format, name)
    bench.add(
        Kind.LINEAR,
        source,
        hidden,
        rows=160,
        columns=128,
        weight=made.tiles,
        format=format,
        epilogue=Epilogue.GATE,
        activation=Activation.SILU,
    )
    weight = worth(*held(made), group)
    for rows in ROWS:
        ids = [(7 * i) % 64 for i in range(rows)]
        q, scale = in_bytes(table[ids].bfloat16().float())
        both = (q.double() @ weight.T * scale).float()
        exact = torch.nn.functional.silu(both[:, :80]) * both[:, 80:]
        close(bench.run(ids).rows(hidden, rows), exact)


def test_a_weight_in_groups_wants_no_scales_and_others_do() -> None:
    made = regrouped(published(16, 128, 128)[2], Format.GROUPS_128, "generic")
    bench = Bench("generic", random(8, 128))
    source = bench.program.buffer("bytes", Layout.BYTES, 128)
    bench.add(Kind.QUANTIZE, bench.rounded(), source)
    out = bench.program.buffer("out", Layout.F32, 16)
    bench.add(Kind.LINEAR, source, out, rows=16, columns=128, weight=made.tiles, format=Format.INT4)
    with pytest.raises(ValueError, match="quantized weights without scales"):
        bench.run([0])
