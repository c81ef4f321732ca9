"""The kernels of the gated delta rule against their definitions: in Triton's interpreter or on a GPU."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import delta_rule  # isort: skip
from penstock_kernels.delta_rule import channel_delta_rule_in_torch, gated_delta_rule_in_torch  # isort: skip
from penstock_kernels.gpu import delta_rule as kernels  # isort: skip
from penstock_kernels.gpu import first_use  # isort: skip

PLACES = 9
# By whether decays are by channel.
OPERATIONS: list[Callable[..., Tensor]] = [ops.gated_delta_rule, ops.channel_delta_rule]
KERNEL: Callable[..., Tensor] = kernels.delta_rule
DEFINITIONS: list[Callable[..., Tensor]] = [gated_delta_rule_in_torch, channel_delta_rule_in_torch]


@pytest.fixture(autouse=True)
def _fewer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run one after another here."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "FEWEST_V", 32)


def drawn(
    tokens: int,
    heads: int,
    size: int,
    values: int,
    decays: str = "mixed",
    most: float = 1.0,
    by_channel: bool = False,
) -> list[Tensor]:
    """Inputs and states. Values are a part of something wider, as after a convolution."""
    torch.manual_seed(tokens + heads + size + values)
    q, k = (torch.nn.functional.normalize(torch.randn(tokens, heads, size), dim=-1) for _ in range(2))
    v = torch.unflatten(torch.randn(tokens, heads * values + 7)[:, 3:-4], 1, (heads, values))
    even = torch.rand(tokens, heads, *[size] * by_channel)
    decay = {
        "mixed": -even * torch.where(torch.rand_like(even) < 0.1, 30.0, 0.2),
        "none": -1e-6 * even,
        "strong": -30 * even,
        "all": torch.where(even < 0.1, -torch.inf, -0.1),
    }[decays]
    beta = most * torch.rand(tokens, heads)
    state = torch.randn(PLACES, heads, size, values)
    return [x.to(DEVICE) for x in (q, k, v, decay, beta, state)]


def step(singles: list[int], *runs: tuple[int, int, int, int | None]) -> ops.StateMetadata:
    """Single tokens by their places, and runs."""
    places_S = torch.tensor(singles, dtype=torch.int64, device=DEVICE)
    return ops.StateMetadata(places_S, [ops.Run(*run) for run in runs])


def compare(inputs: list[Tensor], states: ops.StateMetadata, tolerance: float = 2e-5) -> None:
    """Against the definition, token by token in float64; places that no token advances stay as they are."""
    *given, state = inputs
    exact = ops.StateMetadata(
        states.places_S, states.runs, states.saved_C, states.saves_C, exact=True, turns=states.turns
    )
    wanted_state = state.double()
    defined = DEFINITIONS[given[3].dim() == 3]
    wanted = defined(*(x.double() for x in given), wanted_state, exact)
    ours_state = state.clone()
    ours = KERNEL(*given, ours_state, states)
    assert ours.shape == wanted.shape and ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(ours_state.double(), wanted_state, atol=tolerance, rtol=tolerance)
    stays = (wanted_state == state.double()).flatten(1).all(1)
    assert torch.equal(ours_state[stays], state[stays])


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("heads", "size", "values"), [(1, 16, 16), (3, 32, 48), (2, 128, 128), (4, 16, 5), (1, 256, 16)]
)
@pytest.mark.parametrize("save", [None, 7])
@pytest.mark.parametrize("by_channel", [False, True])
def test_runs_are_advanced(heads: int, size: int, values: int, save: int | None, by_channel: bool) -> None:
    for tokens in (1, 5, 64, 130) if size < 32 else (33,):
        inputs = drawn(tokens, heads, size, values, by_channel=by_channel)
        compare(inputs, step([], (0, tokens, 2, save)))


@pytest.mark.few(4)
@pytest.mark.parametrize("decays", ["none", "strong", "all"])
@pytest.mark.parametrize("most", [1.0, 2.0])
@pytest.mark.parametrize("by_channel", [False, True])
def test_decays_are_weak_and_strong(decays: str, most: float, by_channel: bool) -> None:
    inputs = drawn(75, 2, 32, 16, decays, most, by_channel)
    compare(inputs, step([5, 1], (2, 70, 2, 3), (70, 75, 4, None)))


@pytest.mark.parametrize("programs", [600, 1])
def test_values_are_divided_over_programs(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of a value for each, or more where there are programs enough."""
    monkeypatch.setattr(kernels, "FEWEST_V", 8)
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    compare(drawn(9, 2, 16, 20), step([5, 1], (2, 7, 2, 3), (7, 9, 4, None)))


def test_a_step_has_single_tokens_and_several_runs() -> None:
    """Some runs are parts of one sequence, with a copy between them."""
    runs = ((3, 8, 2, 6), (8, 80, 2, 7), (80, 81, 2, None), (81, 120, 4, None), (120, 121, 5, 8))
    states = step([3, 1, 0], *runs)
    compare(drawn(121, 3, 16, 32), states)
    columns = states.run_columns(torch.device(DEVICE))
    assert columns.runs_3R.tolist() == [[3, 8, 80, 81, 120], [8, 80, 81, 120, 121], [6, 7, -1, -1, 8]]
    assert columns.sequences_3N.tolist() == [[2, 4, 5], [0, 3, 4], [3, 4, 5]]
    assert columns.longest == 78 and columns.is_whole
    assert states.run_columns(torch.device(DEVICE)) is columns


@pytest.mark.parametrize(("heads", "size", "values"), [(1, 16, 16), (4, 32, 48), (2, 128, 128)])
def test_single_tokens_are_advanced(heads: int, size: int, values: int) -> None:
    for places, by_channel in (([4], True), ([4], False), ([2, 0, 1, 8, 3], True), ([2, 0, 1, 8, 3], False)):
        inputs = drawn(len(places), heads, size, values, by_channel=by_channel)
        states = step(places)
        states.saved_C, states.saves_C = (torch.tensor([place], device=DEVICE) for place in (places[-1], 7))
        compare(inputs, states)


def test_several_tokens_of_a_row_take_turns() -> None:
    def places(*numbers: int) -> Tensor:
        return torch.tensor(numbers, device=DEVICE)

    states = step([3, 2, 2, 2, 3], (5, 50, 1, None))
    states.turns = [
        ops.Turn(places(0, 1), places(3, 2), places(3), places(6)),
        ops.Turn(places(2, 4), places(2, 3), places(2, 3), places(7, 8)),
        ops.Turn(places(3), places(2)),
    ]
    compare(drawn(50, 2, 32, 16), states)


@pytest.mark.parametrize("by_channel", [False, True])
def test_operations_come_to_their_kernels(by_channel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_rule, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    called: list[int] = []
    run = kernels.delta_rule

    def told(*given: Any) -> Tensor:
        called.append(len(given[0]))
        return run(*given)

    monkeypatch.setattr(kernels, "delta_rule", told)
    operation = OPERATIONS[by_channel]
    inputs, states = drawn(10, 2, 16, 16, by_channel=by_channel), step([], (0, 10, 2, None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            operation(*inputs, states)
    # Twice to look whether it is right.
    assert called == [78, 78, 10, 10]
    exact = step([], (0, 10, 2, None))
    exact.exact = True
    operation(*inputs, exact)
    operation(*drawn(10, 2, 24, 16, by_channel=by_channel), states)
    assert len(called) == 4


@pytest.mark.parametrize(
    "fault", ["wrong", "no number", "raises", "wrong of few programs", "wrong of many programs"]
)
def test_a_kernel_that_is_wrong_is_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_rule, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})

    run = kernels.delta_rule

    def wrong(*given: Any) -> Tensor:
        if fault == "raises":
            raise RuntimeError("out of resources")
        if " programs" in fault:
            is_many = given[7] > kernels.PROGRAMS
            made: Tensor = run(*given) + (is_many == ("many" in fault))
            return made
        return torch.full_like(given[2], torch.nan if fault == "no number" else 0.5)

    monkeypatch.setattr(kernels, "delta_rule", wrong)
    inputs, states = drawn(10, 2, 16, 16), step([], (0, 10, 2, None))
    wanted = DEFINITIONS[0](*inputs[:5], inputs[5].clone(), states)
    with pytest.warns(UserWarning, match="GPU kernel delta_rule of .*; torch computes it"):
        ours = OPERATIONS[0](*inputs[:5], inputs[5].clone(), states)
    assert torch.equal(ours, wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OPERATIONS[0](*inputs, states)
