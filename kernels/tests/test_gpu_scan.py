"""The kernels of recurrences of single numbers against their definitions: in Triton's interpreter or on a GPU."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import scan  # isort: skip
from penstock_kernels.gpu import first_use  # isort: skip
from penstock_kernels.gpu import scan as kernels  # isort: skip

PLACES = 9


@dataclass
class Operation:
    """One operation: its name, the shape of a state, and how its inputs are drawn for so many tokens."""

    name: str
    state: tuple[int, ...]
    inputs: Callable[[int], list[Tensor]]

    @property
    def kernel(self) -> Callable[..., Tensor]:
        made: Callable[..., Tensor] = getattr(kernels, self.name)
        return made

    @property
    def defined(self) -> Callable[..., Tensor]:
        made: Callable[..., Tensor] = getattr(scan, f"{self.name}_in_torch")
        return made

    def drawn(self, tokens: int) -> list[Tensor]:
        """Inputs, and states behind them."""
        torch.manual_seed(tokens + sum(self.state))
        state = torch.randn(PLACES, *self.state)
        if self.name == "weighted_key_values":
            state[:, 1].abs_()
            state[:, 2] *= 4
        return [x.to(DEVICE) for x in (*self.inputs(tokens), state)]


def part(tokens: int, count: int) -> Tensor:
    """Columns of something wider, as what is left of a product that was split."""
    return torch.randn(tokens, count + 7)[:, 3:-4]


def selective(channels: int, numbers: int) -> Operation:
    def inputs(tokens: int) -> list[Tensor]:
        a = -torch.rand(channels, numbers) * torch.where(torch.rand(channels, numbers) < 0.1, 50.0, 0.5)
        return [
            part(tokens, channels),
            torch.rand(tokens, channels),
            a,
            part(tokens, numbers),
            part(tokens, numbers),
        ]

    return Operation("selective_scan", (channels, numbers), inputs)


def linear(channels: int) -> Operation:
    return Operation(
        "linear_recurrence",
        (channels,),
        lambda tokens: [torch.rand(tokens, channels), part(tokens, channels)],
    )


def weighted(channels: int, largest: float = 0.0) -> Operation:
    def inputs(tokens: int) -> list[Tensor]:
        k = largest + 4 * part(tokens, channels)
        return [k, part(tokens, channels), -torch.rand(channels), torch.randn(channels)]

    return Operation("weighted_key_values", (3, channels), inputs)


OPERATIONS = {
    "selective_scan": selective(20, 16),
    "selective_scan of few": selective(6, 5),
    "selective_scan of one": selective(3, 1),
    "linear_recurrence": linear(37),
    "weighted_key_values": weighted(37),
}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


def step(singles: list[int], *runs: tuple[int, int, int, int | None]) -> ops.StateMetadata:
    """Single tokens by their places, and runs."""
    places_S = torch.tensor(singles, dtype=torch.int64, device=DEVICE)
    return ops.StateMetadata(places_S, [ops.Run(*run) for run in runs])


def compare(
    operation: Operation, inputs: list[Tensor], states: ops.StateMetadata, dtype: torch.dtype = torch.float64
) -> None:
    """Against the definition, token by token in this dtype; places that no token advances stay as they are."""
    *given, state = inputs
    exact = ops.StateMetadata(
        states.places_S, states.runs, states.saved_C, states.saves_C, exact=True, turns=states.turns
    )
    wanted_state = state.to(dtype, copy=True)
    wanted = operation.defined(*(x.to(dtype) for x in given), wanted_state, exact)
    ours_state = state.clone()
    ours = operation.kernel(*given, ours_state, states)
    assert ours.shape == wanted.shape and ours.dtype == torch.float32
    torch.testing.assert_close(ours.to(dtype), wanted, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours_state.to(dtype), wanted_state, atol=2e-5, rtol=2e-5)
    stays = (wanted_state == state).flatten(1).all(1)
    assert torch.equal(ours_state[stays], state[stays])


@pytest.mark.parametrize("save", [None, 7])
def test_runs_are_advanced(operation: Operation, save: int | None) -> None:
    for tokens in (1, 2, 5, 40):
        compare(operation, operation.drawn(tokens), step([], (0, tokens, 2, save)))


@pytest.mark.parametrize("shape", [(16, 16), (70, 24), (1, 256), (2, 100)])
def test_states_have_any_number_of_numbers(shape: tuple[int, int]) -> None:
    operation = selective(*shape)
    compare(operation, operation.drawn(9), step([5, 1], (2, 7, 2, 3), (7, 9, 4, None)))


def test_a_step_has_single_tokens_and_several_runs(operation: Operation) -> None:
    """Some runs are parts of one sequence, with a copy between them."""
    runs = ((3, 8, 2, 6), (8, 40, 2, 7), (40, 41, 2, None), (41, 60, 4, None), (60, 61, 5, 8))
    compare(operation, operation.drawn(61), step([3, 1, 0], *runs))


def test_runs_of_a_sequence_need_not_be_neighbours(operation: Operation) -> None:
    compare(operation, operation.drawn(20), step([], (0, 5, 2, 6), (5, 12, 4, None), (12, 20, 2, 7)))


def test_single_tokens_are_advanced(operation: Operation) -> None:
    for places in ([4], [2, 0, 1, 8, 3]):
        states = step(places)
        states.saved_C, states.saves_C = (torch.tensor([place], device=DEVICE) for place in (places[-1], 7))
        compare(operation, operation.drawn(len(places)), states)


def test_several_tokens_of_a_row_take_turns(operation: Operation) -> None:
    def places(*numbers: int) -> Tensor:
        return torch.tensor(numbers, device=DEVICE)

    states = step([3, 2, 2, 2, 3], (5, 30, 1, None))
    states.turns = [
        ops.Turn(places(0, 1), places(3, 2), places(3), places(6)),
        ops.Turn(places(2, 4), places(2, 3), places(2, 3), places(7, 8)),
        ops.Turn(places(3), places(2)),
    ]
    compare(operation, operation.drawn(30), states)


def test_rows_that_fill_up_a_graph_share_a_place_that_is_nobodys(operation: Operation) -> None:
    """What is written there is anybody's; everything else is as it is without them."""
    *inputs, state = operation.drawn(8)
    spare = PLACES - 1
    filled, alone = state.clone(), state.clone()
    of_tokens = [x[:3] if len(x) == 8 and x.dim() == 2 else x for x in inputs]
    wanted = operation.kernel(*of_tokens, alone, step([4, 0, 2]))
    ours = operation.kernel(*inputs, filled, step([4, 0, 2, *[spare] * 5]))
    assert torch.equal(ours[:3], wanted)
    assert torch.equal(filled[:spare], alone[:spare])


def test_results_depend_neither_on_cuts_nor_on_the_batch(operation: Operation) -> None:
    """To the last bit: in one run, in several, in single tokens, and beside other sequences."""
    tokens = 24
    *inputs, state = operation.drawn(tokens)
    *others, _ = operation.drawn(tokens + 1)

    def some(of: list[Tensor], first: int, end: int, length: int) -> list[Tensor]:
        return [x[first:end] if len(x) == length and x.dim() == 2 else x for x in of]

    found, states = [], []
    for cuts in ((24,), (7, 17), (23, 1), (1, 1, 1, 21), (1,) * 24):
        ours, at, parts = state.clone(), 0, []
        for count in cuts:
            one = step([2]) if len(cuts) == tokens else step([], (0, count, 2, None))
            parts.append(operation.kernel(*some(inputs, at, at + count, tokens), ours, one))
            at += count
        found.append(torch.cat(parts))
        states.append(ours[2])
    ours = state.clone()
    of_model = [mine for mine, other in zip(inputs, others, strict=True) if len(mine) == len(other)]
    beside = [
        mine if len(mine) == len(other) else torch.cat((other[:5], mine, other[5:]))
        for mine, other in zip(inputs, others, strict=True)
    ]
    assert len(of_model) < len(inputs)
    made = operation.kernel(*beside, ours, step([3, 4], (2, 5, 1, None), (5, 29, 2, None), (29, 49, 0, None)))
    found.append(made[5:29])
    states.append(ours[2])
    assert all(torch.equal(one, found[0]) for one in found)
    assert all(torch.equal(one, states[0]) for one in states)


def test_products_and_sums_are_apart_as_the_definition_has_them() -> None:
    """So that what uses nothing else is the same to the last bit."""
    operation = linear(37)
    *given, state = operation.drawn(30)
    ours, wanted = state.clone(), state.clone()
    runs = step([1], (1, 21, 2, 6), (21, 30, 2, None))
    assert torch.equal(operation.kernel(*given, ours, runs), operation.defined(*given, wanted, runs))
    assert torch.equal(ours, wanted)


@pytest.mark.parametrize("largest", [0.0, 80.0, 1000.0, -1000.0])
def test_a_sequence_begins_without_weights(largest: float) -> None:
    """Whatever exponent its state has, and whatever exponents its keys have: its first token gives its own value."""
    operation = weighted(37, largest)
    *given, state = operation.drawn(20)
    state[2:5, :2] = 0
    state[2] = 0
    state[4, 2] = 5000
    states = step([2, 0], (2, 12, 3, 6), (12, 20, 4, None))
    ours = operation.kernel(*given, state.clone(), states)
    for first in (0, 2, 12):
        torch.testing.assert_close(ours[first], given[1][first], atol=1e-6, rtol=1e-6)
    # What fp32 leaves of such exponents is more than what is compared.
    compare(operation, [*given, state], states, torch.float64 if largest == 0 else torch.float32)


def test_offsets_are_of_64_bits(operation: Operation, tmp_path: Path) -> None:
    """A place of so many numbers times its number is more than 32 bits hold."""
    *inputs, state = operation.drawn(6)
    far = (1 << 30) + 8
    size = 2 * far + state[0].numel()
    if DEVICE == "cuda":
        space = torch.empty(size, device=DEVICE)
    else:  # takes no more of the disk than what is written
        space = torch.from_file(str(tmp_path / "states"), shared=True, size=size)
    wide = space.as_strided((3, *state.shape[1:]), (far, *state.stride()[1:]))
    wide.copy_(state[:3])
    states = step([2], (1, 6, 2, 1))
    ours = operation.kernel(*inputs, wide, states)
    assert torch.equal(ours, operation.kernel(*inputs, state, states))
    assert torch.equal(wide, state[:3])


@pytest.mark.parametrize("name", ["selective_scan", "linear_recurrence", "weighted_key_values"])
def test_operations_come_to_their_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    called: list[int] = []
    run = getattr(kernels, name)

    def told(*given: Any) -> Tensor:
        called.append(len(given[0]))
        made: Tensor = run(*given)
        return made

    monkeypatch.setattr(kernels, name, told)
    operation, states = OPERATIONS[name], step([], (0, 10, 2, None))
    inputs = operation.drawn(10)
    apply = getattr(ops, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            apply(*inputs, states)
    # First to look whether it is right.
    assert called == [78, 10, 10]
    exact = step([], (0, 10, 2, None))
    exact.exact = True
    apply(*inputs, exact)
    apply(*(x.double() for x in inputs), states)
    state = inputs[-1].unsqueeze(-1).expand(*inputs[-1].shape, 2).clone()[..., 0]
    apply(*inputs[:-1], state, states)
    if name == "selective_scan":
        large = selective(2, 300)
        apply(*large.drawn(10), states)
    assert len(called) == 3


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["selective_scan", "linear_recurrence", "weighted_key_values"])
@pytest.mark.parametrize("fault", ["wrong", "wrong copies", "no number", "raises"])
def test_a_kernel_that_is_wrong_is_not_used(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "usable", lambda _: True)
    monkeypatch.setattr(first_use, "_agree", {})
    run = getattr(kernels, name)

    def wrong(*given: Any) -> Tensor:
        made: Tensor = run(*given)
        if fault == "raises":
            raise RuntimeError("out of resources")
        if fault == "wrong copies":
            given[-2][5] += 1
            return made
        return torch.full_like(made, torch.nan if fault == "no number" else 0.5)

    monkeypatch.setattr(kernels, name, wrong)
    operation, states = OPERATIONS[name], step([], (0, 10, 2, None))
    *inputs, state = operation.drawn(10)
    wanted = operation.defined(*inputs, state.clone(), states)
    with pytest.warns(UserWarning, match=f"GPU kernel {name} of .*; torch computes it"):
        ours = getattr(ops, name)(*inputs, state.clone(), states)
    assert torch.equal(ours, wanted)
