"""The kernels of the short convolution against their definition: in Triton's interpreter or on a GPU."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import convolution  # isort: skip
from penstock_kernels.convolution import causal_conv_in_torch  # isort: skip
from penstock_kernels.gpu import convolution as kernels  # isort: skip
from penstock_kernels.gpu import first_use  # isort: skip

PLACES = 9


def drawn(
    tokens: int, channels: int, width: int, dilation: int = 1, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Inputs, a part of something wider, weights, biases and states."""
    torch.manual_seed(tokens + channels + width)
    x = torch.randn(tokens, channels + 9).to(dtype)[:, 5:-4]
    state = torch.randn(PLACES, dilation * (width - 1), channels)
    return [one.to(DEVICE) for one in (x, torch.randn(width, channels), torch.randn(channels), state)]


def places(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


def step(singles: list[int], *runs: tuple[int, int, int, int | None]) -> ops.StateMetadata:
    """Single tokens by their places, and runs."""
    return ops.StateMetadata(places(*singles), [ops.Run(*run) for run in runs])


def compare(inputs: list[Tensor], states: ops.StateMetadata, dilation: int = 1) -> Tensor:
    """Against the definition; states are the same to the last bit."""
    x, weight, bias, state = inputs
    for one in (bias, None):
        wanted_state, ours_state = state.clone(), state.clone()
        wanted = causal_conv_in_torch(x, weight, one, wanted_state, states, dilation)
        ours = kernels.causal_conv(x, weight, one, ours_state, states, dilation)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, wanted, atol=2e-6, rtol=2e-6)
        assert torch.equal(ours_state, wanted_state)
    return ours


@pytest.mark.few(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "width", "dilation"), [(6, 4, 1), (130, 4, 1), (300, 3, 1), (20, 4, 3), (5, 2, 1)]
)
def test_runs_and_single_tokens_are_convolved(
    channels: int, width: int, dilation: int, dtype: torch.dtype
) -> None:
    for tokens in (1, 2, 5, 64, 130):
        states = step([5, 1], (2, 2 + tokens, 3, 8))
        states.saved_C, states.saves_C = places(5), places(6)
        compare(drawn(2 + tokens, channels, width, dilation, dtype), states, dilation)


def test_runs_of_one_sequence_follow_one_another() -> None:
    """With copies, some of which still have numbers of the state before all of them."""
    runs = ((3, 4, 2, 6), (4, 5, 2, 7), (5, 40, 2, 8), (40, 42, 2, None), (42, 43, 4, None), (43, 80, 5, 0))
    whole = compare(drawn(80, 40, 4), step([3, 1, 0], *runs))
    joined = ((3, 42, 2, None), (42, 43, 4, None), (43, 80, 5, 0))
    assert torch.equal(whole, compare(drawn(80, 40, 4), step([3, 1, 0], *joined)))


def test_a_token_gives_the_same_alone() -> None:
    x, weight, bias, state = drawn(9, 40, 4)
    whole_state, cut_state = state.clone(), state.clone()
    whole = kernels.causal_conv(x, weight, bias, whole_state, step([], (0, 9, 2, None)))
    kernels.causal_conv(x[:8], weight, bias, cut_state, step([], (0, 8, 2, None)))
    assert torch.equal(whole[8:], kernels.causal_conv(x[8:], weight, bias, cut_state, step([2])))
    assert torch.equal(whole_state, cut_state)


def test_several_tokens_of_a_row_take_turns() -> None:
    states = step([3, 2, 2, 2, 3], (5, 50, 1, None))
    states.turns = [
        ops.Turn(places(0, 1), places(3, 2), places(3), places(6)),
        ops.Turn(places(2, 4), places(2, 3), places(2, 3), places(7, 8)),
        ops.Turn(places(3), places(2)),
    ]
    compare(drawn(50, 20, 4), states)


def test_the_operation_comes_to_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    called: list[int] = []
    run = kernels.causal_conv

    def told(*given: Any) -> Tensor:
        called.append(len(given[0]))
        return run(*given)

    monkeypatch.setattr(kernels, "causal_conv", told)
    x, weight, bias, state = drawn(10, 6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            ops.causal_conv(x, weight, bias, state, step([], (0, 10, 2, None)))
    # Once to look whether it is right.
    assert called == [78, 10, 10]
    exact, apart = step([], (0, 10, 2, None)), step([], (0, 4, 2, None), (4, 6, 3, None), (6, 10, 2, None))
    exact.exact = True
    for states in (exact, apart):
        ops.causal_conv(x, weight, bias, state, states)
    assert len(called) == 3
