"""Mixtures of experts in Triton against the loop over experts, in Triton's interpreter or on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import experts as reference  # isort: skip
from penstock_kernels.gpu import experts as on_gpu  # isort: skip
from penstock_kernels.gpu.experts import mix_experts  # isort: skip

# The interpreter multiplies fp16 as it should, and bf16 not.
SHORT = torch.bfloat16 if DEVICE == "cuda" else torch.float16
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gated(gate_up: Tensor) -> Tensor:
    return ops.gated(gate_up, ops.ACTIVATIONS["silu"])


@dataclass
class Case:
    """A mixture. `others`: experts that other ranks hold, half of them before ours."""

    name: str
    tokens: int
    experts: int
    per_token: int
    width: int = 40
    inner: int = 24
    others: int = 0
    only: tuple[int, ...] = ()  # experts that tokens go to; none: all
    dtype: torch.dtype = torch.float32
    activation: Callable[[Tensor], Tensor] = gated
    has_bias: bool = False
    weighs_input: bool = False
    transposed: bool = False


CASES = [
    Case("one token, one expert", 1, 4, 1),
    Case("one token, two experts", 1, 8, 2, dtype=SHORT),
    Case("one token, eight experts", 1, 60, 8),
    Case("few tokens", 7, 4, 2),
    Case("few tokens, short numbers", 7, 8, 2, dtype=SHORT),
    Case("a prompt, one expert of each token", 130, 4, 1),
    Case("a prompt, short numbers", 130, 4, 2, dtype=SHORT),
    Case("a long prompt", 130, 4, 4),
    Case("a prompt, many experts", 130, 60, 8),
    Case("several blocks of inputs and outputs", 7, 4, 2, width=296, inner=136),
    Case("several blocks of inputs and outputs, short numbers", 7, 4, 2, width=296, inner=136, dtype=SHORT),
    Case("whole blocks", 64, 4, 1, width=128, inner=64),
    Case("biases", 7, 8, 2, has_bias=True),
    Case("biases of a prompt", 130, 8, 2, has_bias=True, dtype=SHORT),
    Case("no gates", 7, 8, 2, activation=torch.relu),
    Case("weights of what is read", 7, 8, 2, weighs_input=True),
    Case("weights of what is read, short numbers", 7, 4, 1, weighs_input=True, dtype=SHORT),
    Case("experts of other ranks", 7, 8, 2, others=8),
    Case("experts of other ranks, few of ours", 70, 4, 8, others=56, has_bias=True),
    Case("all experts of other ranks", 7, 4, 2, others=8, only=(0, 1, 9, 11)),
    Case("all tokens to one expert", 130, 8, 1, only=(5,)),
    Case("all tokens to the last expert", 7, 60, 1, only=(59,)),
    Case("experts that nobody goes to", 130, 8, 2, only=(1, 2, 6)),
    Case("transposed matrices", 7, 4, 2, transposed=True, has_bias=True),
    Case("no tokens", 0, 4, 2),
]


@pytest.mark.few(10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernels_give_what_the_loop_over_experts_does(case: Case) -> None:
    arguments = made(case)
    wanted = ops.mix_experts(**arguments, tile=16, weighs_input=case.weighs_input)
    got = mix_experts(**arguments, weighs_input=case.weighs_input)
    assert got.dtype == case.dtype and got.shape == (case.tokens, case.width)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype])


def made(case: Case) -> dict[str, Any]:
    """What both are called with."""
    outputs = case.inner * (2 if case.activation is gated else 1)
    up = random(case.experts, outputs, case.width, seed=1) * case.width**-0.5
    down = random(case.experts, case.width, case.inner, seed=2) * case.inner**-0.5
    if case.transposed:
        up, down = (one.transpose(1, 2).contiguous().transpose(1, 2) for one in (up, down))
    biases = (random(case.experts, outputs, seed=3), random(case.experts, case.width, seed=4))
    x = random(case.tokens, case.width)
    weights = random(case.tokens, case.per_token, seed=5).softmax(-1)
    choices = torch.tensor(case.only or list(range(case.experts + case.others)))
    likely = torch.rand(case.tokens, len(choices), generator=torch.Generator().manual_seed(6))
    experts = choices[likely.topk(case.per_token).indices]
    return {
        "x_TE": x.to(DEVICE, case.dtype),
        "weights_TA": weights.to(DEVICE),
        "experts_TA": experts.to(DEVICE),
        "first": case.others // 2,
        "up_XGE": up.to(DEVICE, case.dtype),
        "up_bias_XG": biases[0].to(DEVICE, case.dtype) if case.has_bias else None,
        "down_XEF": down.to(DEVICE, case.dtype),
        "down_bias_XE": biases[1].to(DEVICE, case.dtype) if case.has_bias else None,
        "activation": case.activation,
    }


def test_a_long_prompt_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", 7, 8, 2, others=4, has_bias=True)
    arguments = made(case)
    whole = mix_experts(**arguments)
    monkeypatch.setattr(on_gpu, "MOST_ROWS", 6)
    monkeypatch.setattr(on_gpu, "MOST_ROWS_OF_EXPERT", 1)
    assert torch.equal(mix_experts(**arguments), whole)


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("tokens", [1, 3, 40, 300])
def test_every_row_of_an_expert_is_in_one_block_of_the_table(tokens: int, block: int) -> None:
    experts, first, per_token = 8, 2, 4
    chosen = torch.rand(tokens, 14, generator=torch.Generator().manual_seed(tokens)).topk(per_token).indices
    order, table = on_gpu.in_order(chosen.to(DEVICE), first, experts, block)
    assert len(table) <= min(tokens * per_token, tokens * per_token // block + experts)
    pairs = chosen.flatten().tolist()
    seen: list[int] = []
    for expert, begin, end in table.tolist():
        if expert >= 0:
            rows = order[begin : min(begin + block, end)].tolist()
            assert rows and all(pairs[row] == first + expert for row in rows)
            seen += rows
    assert sorted(seen) == [row for row, expert in enumerate(pairs) if first <= expert < first + experts]
    assert sorted(order.tolist()) == list(range(len(pairs)))


def test_a_mixture_goes_to_the_kernels_where_they_can_be_used_but_not_in_pieces_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = made(Case("", 3, 4, 2))
    monkeypatch.setattr(reference, "usable", lambda tensor: True)
    monkeypatch.setattr(on_gpu, "mix_experts", lambda *arguments: "kernels")
    assert ops.mix_experts(**arguments) == "kernels"
    assert isinstance(ops.mix_experts(**arguments, tile=16), Tensor)
