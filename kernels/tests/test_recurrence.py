"""The operations of recurrent layers: chunks and batches against the definition, token by token in float64, wherever a
sequence is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import penstock_kernels as ops

PLACES, LENGTH = 7, 150
# Rows of several lengths: singles, and runs around the sizes of chunks.
CUTS: tuple[tuple[int, ...], ...] = ((150,), (64, 86), (1, 63, 65, 21), (17, 1, 1, 15, 16, 100), (149, 1))

# From a sequence's inputs and the step's metadata to what the tokens give; the states are changed.
Apply = Callable[[list[Tensor], Tensor, ops.StateMetadata], Tensor]


@dataclass
class Operation:
    """One operation: how it is called, its inputs for so many tokens, and the shape of its state."""

    apply: Apply
    inputs: Callable[[int], list[Tensor]]
    state: tuple[int, ...]
    same_bits: bool  # wherever a prompt is cut


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape), dim=-1)


def decay(*shape: int) -> Tensor:
    """Logarithms, some of them steep."""
    return -torch.rand(shape) * torch.where(torch.rand(shape) < 0.1, 20.0, 0.2)


WEIGHTS = torch.randn((4, 6), generator=torch.Generator().manual_seed(5))
A = -torch.rand((6, 5), generator=torch.Generator().manual_seed(6)) - 0.05

OPERATIONS = {
    "causal_conv": Operation(
        lambda x, state, step: ops.causal_conv(x[0], WEIGHTS.to(x[0].dtype), WEIGHTS[0], state, step),
        lambda t: [normal(t, 6)],
        (3, 6),
        True,
    ),
    "gated_delta_rule": Operation(
        lambda x, state, step: ops.gated_delta_rule(x[0], x[1], x[2], x[3], x[4], state, step),
        lambda t: [unit(t, 2, 8), unit(t, 2, 8), normal(t, 2, 5), decay(t, 2), torch.rand(t, 2)],
        (2, 8, 5),
        False,
    ),
    "channel_delta_rule": Operation(
        lambda x, state, step: ops.channel_delta_rule(x[0], x[1], x[2], x[3], x[4], state, step),
        lambda t: [unit(t, 2, 8), unit(t, 2, 8), normal(t, 2, 5), decay(t, 2, 8), torch.rand(t, 2)],
        (2, 8, 5),
        False,
    ),
    "decayed_attention": Operation(
        lambda x, state, step: ops.decayed_attention(x[0], x[1], x[2], x[3], state, step),
        lambda t: [normal(t, 2, 8), normal(t, 2, 8), normal(t, 4, 5), decay(t, 4)],
        (4, 8, 5),
        False,
    ),
    "selective_scan": Operation(
        lambda x, state, step: ops.selective_scan(x[0], x[1], A.to(x[0].dtype), x[2], x[3], state, step),
        lambda t: [normal(t, 6), torch.rand(t, 6), normal(t, 5), normal(t, 5)],
        (6, 5),
        True,
    ),
    "previous_tokens": Operation(
        lambda x, state, step: ops.previous_tokens(x[0], state, step), lambda t: [normal(t, 6)], (1, 6), True
    ),
    "weighted_key_values": Operation(
        lambda x, state, step: ops.weighted_key_values(
            x[0], x[1], A[:, 0].to(x[0].dtype), WEIGHTS[0].to(x[0].dtype), state, step
        ),
        lambda t: [4 * normal(t, 6), normal(t, 6)],
        (3, 6),
        True,
    ),
    "linear_recurrence": Operation(
        lambda x, state, step: ops.linear_recurrence(x[0], x[1], state, step),
        lambda t: [torch.rand(t, 6), normal(t, 6)],
        (6,),
        True,
    ),
}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    torch.manual_seed(3)
    return OPERATIONS[request.param]


def runs(*of: tuple[int, int, int, int | None], exact: bool = False) -> ops.StateMetadata:
    """Metadata of a step without single tokens."""
    return ops.StateMetadata(torch.zeros(0, dtype=torch.int64), [ops.Run(*run) for run in of], exact=exact)


def defined(operation: Operation, inputs: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """What a sequence gives token by token, in float64, and its state."""
    tokens = len(inputs[0])
    state_P = state.double().unsqueeze(0)
    if operation is OPERATIONS["causal_conv"]:  # gives fp32 whatever it reads
        window = torch.cat((state_P[0], inputs[0].double()))
        parts = [window[at : at + tokens] * WEIGHTS[at].double() for at in range(4)]
        return sum(parts, WEIGHTS[0].double()), window[-3:]
    step = runs((0, tokens, 0, None), exact=True)
    return operation.apply([x.double() for x in inputs], state_P, step), state_P[0]


def test_a_prompt_is_the_same_wherever_it_is_cut(operation: Operation) -> None:
    inputs, begin = operation.inputs(LENGTH), torch.randn(operation.state)
    wanted, last = defined(operation, inputs, begin)
    found = []
    for cuts in CUTS:
        state_P = torch.randn((PLACES, *operation.state))
        state_P[2] = begin
        others, at, parts = state_P.clone(), 0, []
        for count in cuts:
            some = [x[at : at + count] for x in inputs]
            parts.append(operation.apply(some, state_P, runs((0, count, 2, None))))
            at += count
        found.append(torch.cat(parts))
        torch.testing.assert_close(found[-1].double(), wanted.double(), atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(state_P[2].double(), last, atol=2e-5, rtol=2e-5)
        others[2] = state_P[2]
        assert torch.equal(state_P, others), "another place was written"
    if operation.same_bits:
        assert all(torch.equal(one, found[0]) for one in found)


def test_exact_results_are_the_same_to_the_last_bit(operation: Operation) -> None:
    """However a prompt is cut, and beside whichever other sequences its last token is fed."""
    inputs, begin = operation.inputs(40), torch.randn(operation.state)
    found, states = [], []
    for cuts in ((40,), (13, 27), (39, 1)):
        state_P = begin.repeat(PLACES, *[1] * begin.ndim)
        at, parts = 0, []
        for count in cuts:
            some = [x[at : at + count] for x in inputs]
            parts.append(operation.apply(some, state_P, runs((0, count, 1, None), exact=True)))
            at += count
        found.append(torch.cat(parts))
        states.append(state_P[1])
    state_P = torch.randn((PLACES, *operation.state))
    state_P[1] = begin
    first = operation.apply([x[:39] for x in inputs], state_P, runs((0, 39, 1, None), exact=True))
    crowd = [torch.cat((torch.flip(x[:4], (0,)), x[39:])) for x in inputs]
    step = ops.StateMetadata(torch.tensor([4, 5, 0, 6, 1]), [], exact=True)
    found.append(torch.cat((first, operation.apply(crowd, state_P, step)[-1:])))
    states.append(state_P[1])
    assert all(torch.equal(one, found[0]) for one in found)
    assert all(torch.equal(one, states[0]) for one in states)


def test_decodes_and_prompts_of_one_step_do_not_meet(operation: Operation) -> None:
    """Single tokens in one batch, then runs; each state advances by its own tokens, and copies are kept on the way."""
    begin = torch.randn((PLACES, *operation.state))
    inputs = operation.inputs(3 + 70 + 20)
    state_P = begin.clone()
    step = ops.StateMetadata(
        torch.tensor([3, 0, 2]),
        [ops.Run(3, 53, 1, 5), ops.Run(53, 73, 1), ops.Run(73, 93, 4)],
        saved_C=torch.tensor([0]),
        saves_C=torch.tensor([6]),
    )
    given = operation.apply(inputs, state_P, step)
    for tokens, place in (((0, 1), 3), ((1, 2), 0), ((2, 3), 2), ((3, 73), 1), ((73, 93), 4)):
        some = [x[slice(*tokens)] for x in inputs]
        wanted, last = defined(operation, some, begin[place])
        torch.testing.assert_close(given[slice(*tokens)].double(), wanted.double(), atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(state_P[place].double(), last, atol=2e-5, rtol=2e-5)
    assert torch.equal(state_P[6], state_P[0])
    _, middle = defined(operation, [x[3:53] for x in inputs], begin[1])
    torch.testing.assert_close(state_P[5].double(), middle, atol=2e-5, rtol=2e-5)


def test_single_tokens_of_one_sequence_take_turns(operation: Operation) -> None:
    """Two sequences with three and two of them, which are not beside each other in the step; copies are of their turns."""
    begin = torch.randn((PLACES, *operation.state))
    inputs = operation.inputs(5)
    state_P = begin.clone()
    turns = [
        ops.Turn(torch.tensor([0, 1]), torch.tensor([3, 2]), torch.tensor([3]), torch.tensor([6])),
        ops.Turn(torch.tensor([2, 4]), torch.tensor([2, 3])),
        ops.Turn(torch.tensor([3]), torch.tensor([2]), torch.tensor([2]), torch.tensor([0])),
    ]
    step = ops.StateMetadata(torch.tensor([3, 2, 2, 2, 3]), [], turns=turns)
    given = operation.apply(inputs, state_P, step)
    for tokens, place in (([0, 4], 3), ([1, 2, 3], 2)):
        wanted, last = defined(operation, [x[tokens] for x in inputs], begin[place])
        torch.testing.assert_close(given[tokens].double(), wanted.double(), atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(state_P[place].double(), last, atol=2e-5, rtol=2e-5)
    assert torch.equal(state_P[0], state_P[2])
    _, first = defined(operation, [x[:1] for x in inputs], begin[3])
    torch.testing.assert_close(state_P[6].double(), first, atol=2e-5, rtol=2e-5)
    for place in (1, 4, 5):
        assert torch.equal(state_P[place], begin[place])


def test_the_delta_rule_forgets_what_it_learnt_anew() -> None:
    """By hand: a key that is written twice answers with its last value, and another one with its own."""
    state_P = torch.zeros((1, 1, 2, 1))
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).unsqueeze(1)
    values = torch.tensor([3.0, 5.0, 7.0]).view(3, 1, 1)
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]).unsqueeze(1)
    given = ops.gated_delta_rule(
        queries, keys, values, torch.zeros(3, 1), torch.ones(3, 1), state_P, runs((0, 3, 0, None))
    )
    assert given.flatten().tolist() == [3.0, 3.0, 12.0]
    assert state_P.flatten().tolist() == [7.0, 5.0]


def test_steep_decays_are_as_exact_as_gentle_ones() -> None:
    """Sums of logarithms of a chunk reach thousands; the differences that count are small."""
    torch.manual_seed(1)
    tokens = 64
    inputs = [unit(tokens, 1, 8), unit(tokens, 1, 8), normal(tokens, 1, 4)]
    steep = torch.full((tokens, 1), -1e-4)
    steep[:32] = -100.0
    operation = OPERATIONS["gated_delta_rule"]
    whole = [*inputs, steep, torch.full((tokens, 1), 0.1)]
    wanted, _ = defined(operation, whole, torch.zeros(operation.state)[:1, :, :4])
    state_P = torch.zeros((1, 1, 8, 4))
    given = operation.apply(whole, state_P, runs((0, tokens, 0, None)))
    torch.testing.assert_close(given.double(), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("largest", [1.0, 80.0, 1000.0, -1000.0])
def test_weights_of_keys_are_exact_however_large_their_exponents_are(largest: float) -> None:
    """Against softmax in float64, from a sequence's first token on, with keys that no exponential holds."""
    torch.manual_seed(4)
    k, v = largest + 3 * torch.randn(LENGTH, 6), torch.randn(LENGTH, 6)
    decay, first = A[:, 0], WEIGHTS[0]
    found = []
    for cuts in CUTS:
        state_P, at, parts = torch.zeros(2, 3, 6), 0, []
        for count in cuts:
            some = slice(at, at + count)
            step = runs((0, count, 1, None))
            parts.append(ops.weighted_key_values(k[some], v[some], decay, first, state_P, step))
            at += count
        found.append(torch.cat(parts))
        assert torch.equal(found[-1], found[0])
    for token in (0, 1, 2, 50, LENGTH - 1):
        ages = torch.arange(token - 1, -1, -1, dtype=torch.float64).unsqueeze(1)
        exponents = torch.cat((k[:token].double() + ages * decay.double(), k[token : token + 1] + first))
        wanted = (exponents.softmax(0) * v[: token + 1].double()).sum(0)
        torch.testing.assert_close(found[0][token].double(), wanted, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("cuts", CUTS)
def test_a_dilated_convolution_is_one_with_zeros_between_its_weights(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    spread = torch.zeros(10, 6)
    spread[::3] = WEIGHTS
    x, begin, at = torch.randn(LENGTH, 6), torch.randn(9, 6), 0
    dilated_P, plain_P = begin.expand(2, 9, 6).clone(), begin.expand(2, 9, 6).clone()
    for count in cuts:
        some, step = x[at : at + count], runs((0, count, 1, None))
        found = ops.causal_conv(some, WEIGHTS, WEIGHTS[0], dilated_P, step, dilation=3)
        assert torch.equal(found, ops.causal_conv(some, spread, WEIGHTS[0], plain_P, step))
        at += count
    assert torch.equal(dilated_P, plain_P) and torch.equal(dilated_P[0], begin)


@pytest.mark.parametrize("cuts", CUTS)
def test_the_ids_before_a_token_are_found_wherever_a_prompt_is_cut(cuts: tuple[int, ...]) -> None:
    ids = torch.arange((1 << 24) - LENGTH, 1 << 24)
    state_P, found, at = torch.zeros(4, 3), [], 0
    for count in cuts:
        step = runs((0, count, 2, 3))
        found.append(ops.previous_ids(ids[at : at + count], state_P, step))
        at += count
    wanted = [[int(ids[at - place]) if at >= place else 0 for place in (1, 2, 3)] for at in range(LENGTH)]
    assert torch.cat(found).tolist() == wanted
    assert torch.equal(state_P[2], ids[-3:].float()) and torch.equal(state_P[3], state_P[2])
    # Single tokens of two sequences, one of which is copied behind it.
    places = torch.tensor([3, 1])
    step = ops.StateMetadata(places, [], saved_C=torch.tensor([1]), saves_C=torch.tensor([0]))
    last = ids[-3:].flip(0).tolist()
    assert ops.previous_ids(torch.tensor([8, 9]), state_P, step).tolist() == [last, [0, 0, 0]]
    assert state_P[1].tolist() == state_P[0].tolist() == [0, 0, 9]
