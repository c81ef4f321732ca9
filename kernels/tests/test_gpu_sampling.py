"""Truncation and draws by the GPU's kernels against their definitions: in Triton's interpreter or on a GPU."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import sampling  # isort: skip
from penstock_kernels.gpu import sampling as gpu_sampling  # isort: skip

ON_GPU = DEVICE == "cuda"
ROWS = 128 if ON_GPU else 8  # the interpreter needs milliseconds for each program


@pytest.fixture(autouse=True)
def _defined_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called through `ops` is the definition, on a GPU as well."""
    monkeypatch.setattr(sampling, "usable", lambda _: False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def masked(logits_SV: Tensor, share: float) -> Tensor:
    """With that share of them, on the average, at -inf; not the first of a row."""
    is_out_SV = torch.rand(logits_SV.shape, generator=torch.Generator().manual_seed(1)) < share
    is_out_SV[:, 0] = False
    return logits_SV.masked_fill(is_out_SV.to(DEVICE), -math.inf)


LOGITS = {
    "five tokens": 2 * random(ROWS, 5),
    "99 tokens": 3 * random(ROWS, 99),
    "a piece": 3 * random(ROWS, 4096),
    "pieces and a rest": 2.5 * random(ROWS, 9001),
    "heavy ties": (2 * random(ROWS, 5000)).round(),
    "two values": random(ROWS, 5000).sign(),
    "all tie": torch.full((ROWS, 4100), 1.5, device=DEVICE),
    "both zeros": torch.where(random(ROWS, 300) > 0.3, 0.0, -0.0) - (random(ROWS, 300, seed=3) > 0).float(),
    "most are masked": masked(2 * random(ROWS, 5000), 0.99),
    "one is possible": masked(random(ROWS, 5000), 2.0),
    "far apart": 300 * random(ROWS, 5000),
    "all above zero": random(ROWS, 5000).abs() + 20,
}
TOP_KS = [1, 2, 4, 5, 40, 98, 99, 1000, 4999, 1 << 30]
TOP_PS = [0.0, 1e-6, 0.1, 0.5, 0.9, 0.99, 1 - 2**-24, 1.0]
MIN_PS = [0.0, 1e-4, 0.05, 0.5, 1.0]


def limits(logits_SV: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row any."""
    rows, vocabulary = logits_SV.shape
    rng = np.random.default_rng(seed)
    return (
        torch.tensor(rng.choice(TOP_KS, rows), device=DEVICE).clamp(max=vocabulary),
        torch.tensor(rng.choice(TOP_PS, rows), device=DEVICE, dtype=torch.float32),
        torch.tensor(rng.choice(MIN_PS, rows), device=DEVICE, dtype=torch.float32),
    )


def assert_kept(
    logits_SV: Tensor, kept_SV: Tensor, top_k_S: Tensor | None, top_p_S: Tensor | None, min_p_S: Tensor | None
) -> None:
    """As defined, where top-p is 1e-6 less or more: what lies between may be on either side."""
    if top_p_S is None:
        assert torch.equal(kept_SV, ops.keep_largest(logits_SV, top_k_S, top_p_S, min_p_S))
        return
    near_S = torch.where(top_p_S < 1, 1e-6, 0.0)
    fewest_SV = ops.keep_largest(logits_SV, top_k_S, (top_p_S - near_S).clamp(min=0), min_p_S)
    most_SV = ops.keep_largest(logits_SV, top_k_S, top_p_S + near_S, min_p_S)
    is_kept_SV = kept_SV > -math.inf
    assert torch.equal(kept_SV, logits_SV.masked_fill(~is_kept_SV, -math.inf))
    assert (is_kept_SV | (fewest_SV == -math.inf)).all(), "a token is missing"
    assert (~is_kept_SV | (most_SV > -math.inf)).all(), "a token should not be there"
    # A threshold on the logit: nothing that is out is as likely as something that is kept.
    least_S = torch.where(is_kept_SV, logits_SV, math.inf).amin(-1)
    assert (logits_SV.masked_fill(is_kept_SV, -math.inf).amax(-1) < least_S).all()
    assert is_kept_SV.gather(1, logits_SV.argmax(-1, keepdim=True)).all()


@pytest.mark.few(5)
@pytest.mark.parametrize("name", LOGITS)
def test_truncation_keeps_what_is_defined(name: str) -> None:
    logits = LOGITS[name]
    for seed in range(2):
        given = limits(logits, seed)
        assert_kept(logits, gpu_sampling.keep_largest(logits, *given), *given)


@pytest.mark.parametrize("wanted", range(8))
def test_what_no_row_wants_need_not_be_given(wanted: int) -> None:
    logits = LOGITS["pieces and a rest"][:, :5001]  # rows lie apart
    k, p, m = limits(logits, 7)
    given = (k if wanted & 1 else None, p if wanted & 2 else None, m if wanted & 4 else None)
    assert_kept(logits, gpu_sampling.keep_largest(logits, *given), *given)


def test_every_top_k_keeps_that_many() -> None:
    logits = torch.stack([torch.randperm(64) for _ in range(64)]).float().to(DEVICE) - 31
    top_k = torch.arange(1, 65, device=DEVICE)
    kept = gpu_sampling.keep_largest(logits, top_k, None, None)
    assert torch.equal((kept > -math.inf).sum(-1), top_k)


def test_logits_one_bit_apart_are_told_apart() -> None:
    """Of equal high bits, so that all levels of the search are needed; negative, zero and positive."""
    bits = torch.arange(-2000, 2000, dtype=torch.int32)
    near = torch.where(bits < 0, (-bits) | -(1 << 31), bits).view(torch.float32)
    one = torch.tensor(1.0).view(torch.int32)
    logits = torch.stack((near, (one + bits).view(torch.float32), -(one + bits).view(torch.float32)))
    logits = logits[:, torch.randperm(4000)].to(DEVICE)
    top_k = torch.tensor([1999, 2001, 3], device=DEVICE)
    top_p = torch.tensor([0.3, 0.7, 0.5], device=DEVICE)
    assert_kept(logits, gpu_sampling.keep_largest(logits, top_k, None, None), top_k, None, None)
    assert_kept(logits, gpu_sampling.keep_largest(logits, None, top_p, None), None, top_p, None)


def test_a_row_is_truncated_as_it_is_alone() -> None:
    logits = LOGITS["pieces and a rest"][:6]
    given = limits(logits, 11)
    together = gpu_sampling.keep_largest(logits, *given)
    for row in range(6):
        alone = gpu_sampling.keep_largest(logits[row : row + 1], *(limit[row : row + 1] for limit in given))
        assert torch.equal(alone[0], together[row])


def exact(logits_SV: Tensor) -> Tensor:
    """Cumulated distributions in float64."""
    cumulated_SV = logits_SV.double().softmax(-1).cumsum(-1)
    return cumulated_SV / cumulated_SV[:, -1:]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", LOGITS)
def test_what_is_drawn_is_where_the_cumulated_distribution_passes(name: str) -> None:
    logits = LOGITS[name]
    rng = np.random.default_rng(5)
    for uniform in (rng.random(ROWS), np.zeros(ROWS), np.full(ROWS, 1 - 2**-53), rng.random(ROWS) ** 9):
        uniform_S1 = torch.tensor(uniform, device=DEVICE).unsqueeze(1)
        tokens_S = gpu_sampling.choose(logits, uniform_S1.squeeze(1))
        tokens_S1 = tokens_S.unsqueeze(1)
        assert (logits.gather(1, tokens_S1) > -math.inf).all()
        cumulated_SV = exact(logits)
        through_S1 = cumulated_SV.gather(1, tokens_S1)
        before_S1 = through_S1 - logits.double().softmax(-1).gather(1, tokens_S1)
        assert ((before_S1 <= uniform_S1 + 1e-6) & (uniform_S1 <= through_S1 + 1e-6)).all()


def test_draws_have_the_distribution() -> None:
    """Chi-square of many draws."""
    draws = 40000 if ON_GPU else 300  # the interpreter takes 20 ms for each
    logits_V = masked(random(1, 23), 0.2)[0]
    wanted_V = logits_V.double().softmax(-1).cpu().numpy() * draws
    is_possible_V = wanted_V > 0
    uniform_S = torch.tensor(np.random.default_rng(2).random(draws), device=DEVICE)
    tokens_S = gpu_sampling.choose(logits_V.expand(draws, 23), uniform_S)
    counts_V = np.bincount(tokens_S.cpu().numpy(), minlength=23)
    assert not counts_V[~is_possible_V].any()
    squares = ((counts_V - wanted_V)[is_possible_V] ** 2 / wanted_V[is_possible_V]).sum()
    assert squares < is_possible_V.sum() - 1 + 4 * math.sqrt(2 * is_possible_V.sum())


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_numbers_do_no_harm(odd: float) -> None:
    logits = random(3, 5000)
    logits[0, 4500] = logits[1, :] = odd
    given = limits(logits, 3)
    kept = gpu_sampling.keep_largest(logits, *given)
    assert_kept(logits[2:], kept[2:], *(limit[2:] for limit in given))
    uniform = torch.tensor([0.3, 0.9, 0.5], dtype=torch.float64, device=DEVICE)
    tokens = gpu_sampling.choose(logits, uniform)
    assert ((tokens >= 0) & (tokens < 5000)).all()
    assert tokens[2] == ops.choose(logits[2:], uniform[2:])


def test_operations_come_to_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "usable", lambda _: True)
    monkeypatch.setattr(gpu_sampling, "keep_largest", lambda *given: ("kept", given[1:]))
    monkeypatch.setattr(gpu_sampling, "choose", lambda *_: "chosen")
    logits = random(2, 9)
    assert ops.keep_largest(logits, None, None, None) == ("kept", (None, None, None))
    assert ops.choose(logits, torch.zeros(2, dtype=torch.float64)) == "chosen"
