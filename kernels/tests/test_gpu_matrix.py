"""The kernel of one row's product against torch: in Triton's interpreter or on a GPU."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from interpreter import DEVICE

from penstock_kernels import matrix  # isort: skip
from penstock_kernels.gpu import first_use  # isort: skip
from penstock_kernels.gpu import matrix as kernels  # isort: skip


def drawn(outputs: int, inputs: int, dtype: torch.dtype, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(outputs + inputs)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    return normal(rows, inputs), normal(outputs, inputs), normal(outputs)


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(12, 1024), (8, 3072), (10, 2048), (5, 600), (1, 512), (16, 1500)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_multiplied(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x_1I, weight_OI, bias_O = drawn(outputs, inputs, dtype)
    for bias in (None, bias_O):
        wanted_1O = functional.linear(
            x_1I.double(), weight_OI.double(), None if bias is None else bias.double()
        )
        ours_1O = kernels.linear(x_1I, weight_OI, bias)
        assert ours_1O.dtype == dtype and ours_1O.shape == wanted_1O.shape
        scale = float(wanted_1O.abs().max())
        torch.testing.assert_close(
            ours_1O.double(), wanted_1O, rtol=torch.finfo(dtype).eps, atol=2e-6 * scale
        )


def test_a_matrix_is_part_of_another() -> None:
    """As one layer's of several that are stacked."""
    x_1I, weight_OI, _ = drawn(8, 2048, torch.float32)
    part_OI = weight_OI[2:7, 100:1124]
    wanted_1O = functional.linear(x_1I[:, :1024], part_OI)
    torch.testing.assert_close(kernels.linear(x_1I[:, :1024], part_OI, None), wanted_1O, rtol=1e-5, atol=1e-4)


def test_the_operation_comes_to_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one row of enough numbers, and where no order of sums is asked for."""
    monkeypatch.setattr(matrix, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    called: list[int] = []
    run = kernels.linear

    def told(*given: Tensor) -> Tensor:
        called.append(given[0].shape[1])
        return run(*given)

    monkeypatch.setattr(kernels, "linear", told)
    x_TI, weight_OI, bias_O = drawn(8, 1024, torch.float32, rows=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = matrix.linear(x_TI[:1], weight_OI, bias_O)
    torch.testing.assert_close(ours, functional.linear(x_TI[:1], weight_OI, bias_O), rtol=1e-5, atol=1e-4)
    assert called == [1024] * 3  # two are looked at first
    matrix.linear(x_TI, weight_OI, bias_O)
    matrix.linear(x_TI[:1], weight_OI, bias_O, tile=16)
    matrix.linear(x_TI[:1, :256], weight_OI[:, :256], None)
    matrix.linear(x_TI[:1, :512], weight_OI.T[:, :8].T[:, :512], None)
    assert called == [1024] * 3 + [512] * 3


@pytest.mark.parametrize("wrong_of", ["whole", "cut"])
def test_a_kernel_that_is_wrong_is_not_used(wrong_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that is only of whole blocks of outputs, or only of others."""
    monkeypatch.setattr(matrix, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    run = kernels.linear

    def wrong(x_1I: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        is_whole = len(weight_OI) % kernels.BLOCK_O == 0
        return run(x_1I, weight_OI, bias_O) + (is_whole == (wrong_of == "whole"))

    monkeypatch.setattr(kernels, "linear", wrong)
    x_1I, weight_OI, bias_O = drawn(8, 1024, torch.bfloat16)
    with pytest.warns(UserWarning, match="GPU kernel linear of .*; torch computes it"):
        ours = matrix.linear(x_1I, weight_OI, bias_O)
    assert torch.equal(ours, functional.linear(x_1I, weight_OI, bias_O))
