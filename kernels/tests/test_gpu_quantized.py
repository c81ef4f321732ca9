"""Matrices of 8 and 4 bits for GPUs: what words mean, how numbers are rounded, and, on a GPU, the kernels against that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import emulated
from interpreter import DEVICE

from penstock_kernels import packed_matrix, quantized  # isort: skip
from penstock_kernels.gpu import cuda  # isort: skip
from penstock_kernels.gpu import quantized as kernels  # isort: skip

SMALL = kernels.Shape(1, 1, 2, 2, 8)
FORMATS = [(8, 0, False), (4, 32, False), (4, 32, True), (4, 64, False), (4, 128, True)]
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="CUDA kernels have no interpreter")


def drawn(
    outputs: int, inputs: int, bits: int, group: int, has_zeros: bool
) -> tuple[packed_matrix.PackedMatrix, Tensor]:
    """A matrix, and what it stands for in fp64."""
    generator = torch.Generator().manual_seed(outputs + inputs + bits + group)
    codes = torch.randint(1 if bits == 8 else 0, 1 << bits, (outputs, inputs), generator=generator)
    scales = 0.5 + torch.rand((outputs, inputs // (group or inputs)), generator=generator)
    zeros = torch.full_like(scales, float(1 << (bits - 1)))
    if has_zeros:
        zeros = torch.randint(0, 32, scales.shape, generator=generator).float()
    if bits == 4:
        scales = scales.bfloat16().float()
    each = codes.view(outputs, scales.shape[1], -1)
    numbers = ((each - zeros[..., None]) * scales.double()[..., None]).view(outputs, inputs)
    made = packed_matrix.packed(
        codes.to(DEVICE, torch.uint8),
        (scales.squeeze(1) if bits == 8 else scales.bfloat16()).to(DEVICE),
        zeros.to(DEVICE, torch.uint8) if has_zeros else None,
        bits,
    )
    return made, numbers.to(DEVICE)


@pytest.mark.parametrize(("bits", "group", "has_zeros"), FORMATS)
def test_packed_numbers_are_found_again(bits: int, group: int, has_zeros: bool) -> None:
    for outputs, inputs in ((16, 128), (40, 256), (1, 1024)):
        matrix, numbers = drawn(outputs, inputs, bits, group, has_zeros)
        found = packed_matrix.unpacked(matrix)
        assert torch.equal(found, numbers.float().bfloat16())
        held = sum(part.nbytes for part in matrix.parts)
        assert held == packed_matrix.packed_bytes(outputs, inputs, bits, group, has_zeros)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_lane_has_its_share_of_a_product(bits: int) -> None:
    """As `mma.m16n8k16` wants it: number by number, from what quantized.cu says."""
    outputs, inputs = 32, 512 // bits
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=torch.Generator().manual_seed(0))
    scales = torch.ones(outputs) if bits == 8 else torch.ones((outputs, inputs // 32)).bfloat16()
    words = packed_matrix.packed(codes.to(torch.uint8), scales, None, bits).words.view(2, -1, 32, 4)
    chunk = 256 // bits
    assert words.shape[1] == inputs // chunk
    for tile in range(2):
        for at in range(inputs // chunk):
            for lane in range(32):
                g, t = divmod(lane, 4)
                held = [int(word) & 0xFFFFFFFF for word in words[tile, at, lane]]
                for product in range(chunk // 16):
                    for register in range(4):
                        for number in range(2):
                            row = 16 * tile + g + 8 * (register % 2)
                            first = chunk * at + 32 * (product // 2) + 8 * t + 4 * (product % 2)
                            input_ = first + 2 * (register // 2) + number
                            if bits == 4:
                                code = held[product] >> (4 * register + 16 * number) & 15
                            else:
                                word = held[2 * product + register // 2]
                                code = word >> (16 * (register % 2) + 8 * number) & 255
                            assert code == codes[row, input_]


@pytest.mark.parametrize(("bits", "group", "has_zeros"), FORMATS)
def test_numbers_are_rounded(bits: int, group: int, has_zeros: bool) -> None:
    """No worse than to the nearest of the whole range, and what is of such numbers already hardly changes."""
    weight_OI = torch.randn((24, 512), generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)
    weight_OI[3] = 0.0
    weight_OI[5] += 0.5
    made = quantized.quantized(weight_OI, bits, group, with_zeros=has_zeros)
    numbers = weight_OI.double().view(24, -1, group or 512)
    low, high = numbers.amin(2, keepdim=True).clamp(max=0), numbers.amax(2, keepdim=True).clamp(min=0)
    step = (high - low) / 15 if has_zeros else torch.maximum(high, -low) / (127 if bits == 8 else 7.5)
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = (-low / step).round() if has_zeros else 0.0
    top = 15 if has_zeros else 127 if bits == 8 else 7
    bottom = 0 if has_zeros else -127 if bits == 8 else -8
    plain = (((numbers / step).round() + zero).clamp(bottom, top) - zero) * step
    plain = plain.float().bfloat16().double()
    found = packed_matrix.unpacked(made).double().view_as(numbers)
    assert (found - numbers).norm() <= 1.01 * (plain - numbers).norm()
    assert not found[3].any()
    again = quantized.quantized(packed_matrix.unpacked(made), bits, group, with_zeros=has_zeros)
    error = (packed_matrix.unpacked(again).double() - found.view(24, 512)).norm() / found.norm()
    assert error < 2e-2


def test_without_a_gpu_torch_computes_the_product() -> None:
    matrix, numbers = drawn(40, 256, 4, 64, True)
    x_TI = torch.randn((5, 256), generator=torch.Generator().manual_seed(2)).bfloat16().to(DEVICE)
    bias_O = torch.randn(40).bfloat16().to(DEVICE)
    wanted_TO = x_TI.double() @ numbers.T + bias_O.double()
    for tile in (0, 2):
        found_TO = quantized.quantized_linear(x_TI, matrix, bias_O, tile)
        assert found_TO.dtype == torch.bfloat16
        torch.testing.assert_close(
            found_TO.double(), wanted_TO, rtol=1e-2, atol=0.02 * float(wanted_TO.abs().max())
        )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the kernels run thread by thread."""
    if DEVICE == "cpu":
        if emulated.COMPILER is None:
            pytest.skip("no g++")
        monkeypatch.setattr(cuda, "kernel", emulated.kernel)
        monkeypatch.setattr(kernels, "_multiprocessors", lambda device: 3)


# Each is compiled by itself where there is no GPU.
@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("bits", "group", "has_zeros", "tokens", "shape"),
    [
        (8, 0, False, 3, None),
        (8, 0, False, 11, None),
        (4, 32, False, 1, None),
        (4, 32, True, 25, None),
        (4, 64, False, 16, SMALL),
        (4, 128, True, 60, None),
        *(
            pytest.param(*one, tokens, shape, marks=pytest.mark.tail)
            for one in FORMATS
            for tokens in (1, 8, 9, 32, 64)
            for shape in (None, SMALL)
        ),
    ],
)
@pytest.mark.usefixtures("here")
def test_every_thread_does_its_part(
    bits: int, group: int, has_zeros: bool, tokens: int, shape: kernels.Shape | None
) -> None:
    """Rows that are no whole tiles, inputs that are no whole slabs, and inputs that several blocks share."""
    for outputs, inputs in ((40, 384), (17, 3200)):
        matrix, _ = drawn(outputs, inputs, bits, group, has_zeros)
        weight_OI = packed_matrix.unpacked(matrix).double()
        generator = torch.Generator().manual_seed(tokens)
        x_TI = torch.randn((tokens, inputs), generator=generator).to(DEVICE, torch.bfloat16)
        bias_O = torch.randn(outputs, generator=generator).to(DEVICE, torch.bfloat16)
        for bias in (bias_O, None):
            wanted_TO = x_TI.double() @ weight_OI.T + (0 if bias is None else bias.double())
            found_TO = kernels.rows_product(x_TI, matrix, bias, shape)
            # Of 8 bits scales are applied to sums, and not to numbers, which `unpacked` rounds.
            atol = (2e-6 if bits == 4 else 6e-3) * float(wanted_TO.abs().max())
            torch.testing.assert_close(found_TO.double(), wanted_TO, rtol=2**-8, atol=atol)
    assert not kernels._arrivals(matrix.words.device).any()


@pytest.mark.few(2)
@pytest.mark.parametrize(("bits", "group", "has_zeros"), [FORMATS[0], FORMATS[2], FORMATS[4]])
@pytest.mark.usefixtures("here")
def test_a_matrix_is_written_out(bits: int, group: int, has_zeros: bool) -> None:
    matrix, _ = drawn(40, 384, bits, group, has_zeros)
    assert torch.equal(kernels.written_out(matrix), packed_matrix.unpacked(matrix))


@on_a_gpu
@pytest.mark.parametrize(("bits", "group", "has_zeros"), FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 256), (16, 128), (1000, 4096), (2048, 8192)])
def test_kernels_give_what_torch_gives(
    bits: int, group: int, has_zeros: bool, outputs: int, inputs: int
) -> None:
    matrix, _ = drawn(outputs, inputs, bits, group, has_zeros)
    weight_OI = packed_matrix.unpacked(matrix)
    assert torch.equal(kernels.written_out(matrix), weight_OI)
    assert kernels.takes(matrix)
    generator = torch.Generator().manual_seed(3)
    bias_O = torch.randn(outputs, generator=generator).to(DEVICE, torch.bfloat16)
    for tokens in (1, 2, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 300):
        x_TI = torch.randn((tokens, inputs), generator=generator).to(DEVICE, torch.bfloat16)
        for bias in (None, bias_O):
            wanted_TO = x_TI.double() @ weight_OI.double().T + (0 if bias is None else bias.double())
            found_TO = kernels.linear(x_TI, matrix, bias)
            # Of many rows torch adds parts up in bf16. Of 8 bits scales are applied to sums, and not to numbers.
            atol = (2e-6 if bits == 4 and tokens <= kernels.MOST_ROWS else 6e-3) * float(
                wanted_TO.abs().max()
            )
            torch.testing.assert_close(found_TO.double(), wanted_TO, rtol=2**-8, atol=atol)
            assert torch.equal(found_TO, kernels.linear(x_TI, matrix, bias))


@on_a_gpu
def test_products_are_recorded() -> None:
    matrix, _ = drawn(512, 8192, 4, 32, False)
    kernels.takes(matrix)
    x_TI = torch.randn((3, 8192)).to(DEVICE, torch.bfloat16)
    wanted_TO = kernels.linear(x_TI, matrix, None)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found_TO = kernels.linear(x_TI, matrix, None)
    for _ in range(3):
        found_TO.zero_()
        graph.replay()
        assert torch.equal(found_TO, wanted_TO)


@pytest.mark.parametrize(
    "architecture", [90, *(pytest.param(one, marks=pytest.mark.tail) for one in (80, 89, 120))]
)
@pytest.mark.parametrize(("bits", "group", "has_zeros"), [FORMATS[0], FORMATS[2]])
def test_every_shape_compiles_and_fits(architecture: int, bits: int, group: int, has_zeros: bool) -> None:
    """NVRTC, which comes with torch for GPUs, compiles for those that are not here as well."""
    try:
        cuda.nvrtc()
    except cuda.CudaError as error:
        pytest.skip(f"no NVRTC: {error}")
    for eights, shape in kernels.SHAPES[bits].items():
        if architecture != 90 and eights not in (1, 8):
            continue
        constants = kernels.constants(bits, group, has_zeros, eights, shape)
        assert cuda.compiled(kernels.FILE, constants, architecture)
        assert kernels.shared_bytes(bits, eights, shape) <= 99 << 10  # of an RTX 40's block
    with pytest.raises(cuda.CudaError, match=r"quantized\.cu"):
        cuda.compiled(kernels.FILE, (("BITS", 5), ("NT", 0)), architecture)
