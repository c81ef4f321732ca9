"""The kernels between matrix products, and the one that samples greedily, against their definitions: in Triton's interpreter or on a GPU."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

import penstock_kernels as ops  # isort: skip
from penstock_kernels import activation, cache, norm, rotary, sampling  # isort: skip
from penstock_kernels.gpu import elementwise  # isort: skip
from penstock_kernels.gpu import sampling as gpu_sampling  # isort: skip

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
ACTIVATIONS = sorted({one.__name__: name for name, one in ops.ACTIVATIONS.items()}.values())
MODULES = (activation, cache, norm, rotary, sampling)


@pytest.fixture(autouse=True)
def _defined_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called through `ops` is the definition, on a GPU as well."""
    for module in MODULES:
        monkeypatch.setattr(module, "usable", lambda _: False)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, _defined_in_torch: None) -> Iterator[None]:
    """What is called through `ops` is a kernel where there is one."""
    for module in MODULES:
        monkeypatch.setattr(module, "usable", lambda _: True)
    yield


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype)


def assert_close(ours: Tensor, wanted: Tensor) -> None:
    assert ours.dtype == wanted.dtype
    torch.testing.assert_close(ours, wanted, atol=TOLERANCE[ours.dtype], rtol=TOLERANCE[ours.dtype])


def angles(tokens: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin as tables have them."""
    angles_TP = random(tokens, size // 2, seed=9)
    cos, sin = angles_TP.cos(), angles_TP.sin()
    return (
        torch.cat((cos, cos), -1).unsqueeze(1).to(dtype),
        torch.cat((-sin, sin), -1).unsqueeze(1).to(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "size", "rotated"),
    [(1, 40, 128, 128), (5, 3, 64, 64), (7, 9, 80, 80), (3, 5, 128, 32), (4, 1, 576, 64), (2, 2, 8, 6)],
)
def test_rope_turns_heads_where_they_lie(
    tokens: int, heads: int, size: int, rotated: int, dtype: torch.dtype
) -> None:
    cos, sin = angles(tokens, rotated, dtype)
    x = random(tokens, heads + 2, size, dtype=dtype)
    for turned in (slice(None, rotated), slice(size - rotated, None)):
        wanted = x.clone()
        ops.rope(wanted[:, :heads, turned], cos, sin)
        ours = x.clone()
        elementwise.rope(ours[:, :heads, turned], cos, sin)
        assert_close(ours, wanted)
        # What lies beside them stays.
        assert torch.equal(ours[:, heads:], x[:, heads:])


def test_rope_takes_numbers_that_are_no_neighbours() -> None:
    cos, sin = angles(3, 16, torch.float32)
    x = random(16, 5, 3).permute(2, 1, 0)
    wanted, ours = x.clone(), random(16, 5, 3).permute(2, 1, 0)
    ops.rope(wanted, cos, sin)
    elementwise.rope(ours, cos, sin)
    assert_close(ours, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "half"), [(1, 2100), (5, 24), (3, 7)])
def test_gates_are_opened(rows: int, half: int, name: str, dtype: torch.dtype) -> None:
    function = ops.ACTIVATIONS[name]
    kind = activation._KINDS[function]
    x = 2 * random(rows, 2 * half, dtype=dtype)
    assert_close(elementwise.gated(x, kind), ops.gated(x, function))
    limited = elementwise.gated(x, kind, 1.5)
    assert_close(limited, ops.gated_limited(x, function, 1.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_clamped_gates_are_opened(dtype: torch.dtype) -> None:
    x = 4 * random(9, 66, dtype=dtype)
    limit, alpha = 3.0, 1.702
    gate, up = x[:, :33].double().clamp(max=limit), x[:, 33:].double().clamp(-limit, limit)
    wanted = ((up + 1) * gate * (alpha * gate).sigmoid()).to(dtype)
    assert_close(elementwise.gated_clamped(x, limit, alpha), wanted)


def test_rows_of_gates_may_lie_apart() -> None:
    x = random(5, 64)[:, :48]
    assert_close(elementwise.gated(x, "silu"), ops.gated(x, ops.ACTIVATIONS["silu"]))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu"])
def test_what_is_no_number_stays_so(kind: str) -> None:
    x = random(2, 20)
    x[0, 3] = x[1, 14] = torch.nan
    for limit in (None, 1.0):
        made = elementwise.gated(x, kind, limit)
        assert made.isnan().nonzero().tolist() == [[0, 3], [1, 4]]
    assert elementwise.gated_clamped(x, 1.0, 1.7).isnan().nonzero().tolist() == [[0, 3], [1, 4]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", ["none", "its own", "fp32"])
@pytest.mark.parametrize(
    "shape", [(1, 4096), (5, 48), (3, 2880), (3, 5, 128), (2, 20, 64), (2, 3, 100), (4, 1, 7)]
)
def test_rows_are_normalised(shape: tuple[int, ...], weights: str, dtype: torch.dtype) -> None:
    x = random(*shape[:-2], shape[-2] + 3, shape[-1] + 8, dtype=dtype)
    x = x[..., : shape[-2], : shape[-1]]  # rows and heads lie apart
    weight = None
    if weights != "none":
        weight = (1 + 0.1 * random(shape[-1], seed=1)).to(dtype if weights == "its own" else torch.float32)
    ours = elementwise.rms_norm(x, weight, 1e-5)
    assert ours.is_contiguous()
    assert_close(ours, ops.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_normalised_where_they_lie(dtype: torch.dtype) -> None:
    memory, weight = random(3, 9, 40, dtype=dtype), (1 + 0.1 * random(40, seed=1)).to(dtype)
    wanted, ours = memory.clone(), memory.clone()
    ops.rms_norm_in_place(wanted[:, 2:7], weight, 1e-5)
    elementwise.rms_norm_in_place(ours[:, 2:7], weight, 1e-5)
    assert_close(ours, wanted)
    assert torch.equal(ours[:, [0, 1, 7, 8]], memory[:, [0, 1, 7, 8]])
    wanted, ours, weight = memory.clone(), memory.clone(), 1 + 0.1 * random(200, seed=1).to(dtype)
    ops.rms_norm_in_place(wanted[:, 2:7].flatten(1), weight, 1e-5)
    elementwise.rms_norm_in_place(ours[:, 2:7].flatten(1), weight, 1e-5)
    assert_close(ours, wanted)
    assert torch.equal(ours[:, [0, 1, 7, 8]], memory[:, [0, 1, 7, 8]])
    assert not torch.equal(ours, memory)


def test_eps_keeps_zeros() -> None:
    assert not elementwise.rms_norm(torch.zeros(2, 40, device=DEVICE), None, 1e-6).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 4096), (6, 48), (3, 2880)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_a_sum_is_rounded_before_it_is_normalised(
    rows: int, size: int, has_weight: bool, dtype: torch.dtype
) -> None:
    given, residual = random(rows, size, dtype=dtype), 3 * random(rows, size + 5, dtype=dtype, seed=1)
    residual = residual[:, :size]
    weight = (1 + 0.1 * random(size, seed=2)).to(dtype) if has_weight else None
    wanted_sum = given + residual
    wanted = elementwise.rms_norm(wanted_sum, weight, 1e-5)
    memory = given.clone()
    ours_sum, ours = elementwise.add_rms_norm(memory, residual, weight, 1e-5)
    # The interpreter cuts what does not fit bf16, where a GPU rounds it.
    is_cut = dtype == torch.bfloat16 and DEVICE == "cpu"
    assert_close(ours_sum, wanted_sum)
    assert is_cut or torch.equal(ours_sum, wanted_sum)
    assert ours_sum.data_ptr() == memory.data_ptr()
    assert_close(ours, wanted)
    defined_sum, defined = ops.add_rms_norm(given, residual, weight, 1e-5)
    assert torch.equal(defined_sum, wanted_sum)
    assert_close(ours, defined)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 16, 128), (5, 4, 64), (3, 1, 576), (7, 10, 80)])
def test_keys_and_values_are_written(tokens: int, heads: int, size: int, dtype: torch.dtype) -> None:
    kv = random(tokens, heads + 5, size, dtype=dtype)[:, 3 : 3 + heads]
    rows = random(40, heads + 2, size + 8, dtype=dtype, seed=1)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(2))[:tokens].to(DEVICE)
    wanted = rows.clone()
    wanted[:, :heads, :size].index_copy_(0, slots, kv)
    elementwise.write_kv(kv, rows[:, :heads, :size], slots)
    assert torch.equal(rows, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "queries", "kv_heads", "size", "more"),
    [(1, 32, 8, 128, 0), (5, 3, 1, 64, 2), (3, 5, 2, 80, 0), (4, 2, 2, 8, 1)],
)
def test_heads_are_turned_and_written_at_once(
    tokens: int, queries: int, kv_heads: int, size: int, more: int, dtype: torch.dtype
) -> None:
    cos, sin = angles(tokens, size, dtype)
    heads = random(tokens, queries + 2 * kv_heads + more, size, dtype=dtype)
    heads[0, -1 - more, 3] = torch.inf  # of a value, which is written as it is
    rows = random(40, 2 * kv_heads + 2, size, dtype=dtype, seed=1)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(2))[:tokens].to(DEVICE)
    wanted_heads, wanted_rows, ours = heads.clone(), rows.clone(), heads.clone()
    ops.rope_and_write(wanted_heads, queries, cos, sin, wanted_rows[:, : 2 * kv_heads], slots)
    elementwise.rope_and_write(ours, queries, cos, sin, rows[:, : 2 * kv_heads], slots)
    assert_close(ours[:, :queries], wanted_heads[:, :queries])
    assert torch.equal(ours[:, queries + kv_heads :], heads[:, queries + kv_heads :])
    assert_close(rows, wanted_rows)
    assert torch.equal(rows[:, kv_heads:], wanted_rows[:, kv_heads:])


def odd_logits() -> dict[str, Tensor]:
    big = random(3, 128256)
    big[0, [70000, 9000, 5]] = 9.0
    big[1, 128255] = 10.0
    big[2] = 1.5  # all tie
    return {
        "few": random(5, 97),
        "one": random(1, 4096),
        "many": big,
        "wide": 100 * random(2, 5000),
        "a piece of nothing": torch.cat(
            (torch.full((1, 4096), -torch.inf, device=DEVICE), random(1, 100)), 1
        ),
    }


@pytest.mark.parametrize("name", odd_logits())
def test_greedy_rows_are_sampled_as_they_are_defined(name: str) -> None:
    logits = odd_logits()[name]
    tokens, logprobs, sound = gpu_sampling.greedy(logits)
    wanted_tokens, wanted_logprobs, wanted_sound = ops.greedy(logits, torch.empty_like(logits))
    assert torch.equal(tokens, wanted_tokens)
    assert torch.equal(sound, wanted_sound)
    torch.testing.assert_close(logprobs, wanted_logprobs, atol=2e-5, rtol=1e-5)


def test_greedy_rows_lie_apart() -> None:
    logits = random(3, 120)
    ours = gpu_sampling.greedy(logits[:, :97])
    assert torch.equal(ours[0], logits[:, :97].argmax(-1))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_are_told(odd: float) -> None:
    logits = random(3, 5000)
    logits[0, 4500] = logits[1, :] = odd
    tokens, _, sound = gpu_sampling.greedy(logits)
    assert sound.tolist() == [False, False, True]
    assert ((tokens >= 0) & (tokens < 5000)).all()
    assert tokens[2] == logits[2].argmax()


@pytest.mark.usefixtures("chosen")
def test_operations_come_to_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def told(name: str, kernel: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            called.append(name)
            return kernel(*arguments)

        return call

    for name in (
        "rope", "gated", "gated_clamped", "rms_norm", "rms_norm_in_place", "add_rms_norm", "write_kv", "rope_and_write",
    ):  # fmt: skip
        monkeypatch.setattr(elementwise, name, told(name, getattr(elementwise, name)))
    monkeypatch.setattr(gpu_sampling, "greedy", told("greedy", gpu_sampling.greedy))
    x, silu = random(3, 64), ops.ACTIVATIONS["silu"]
    ops.rope(x.view(3, 4, 16), *angles(3, 16, torch.float32))
    ops.gated(x, silu)
    ops.gated_limited(x, silu, 2.0)
    ops.gated_clamped(x, 2.0, 1.7)
    ops.rms_norm(x, None, 1e-5)
    ops.rms_norm_in_place(x, None, 1e-5)
    ops.add_rms_norm(x.clone(), x, None, 1e-5)
    heads, rows, slots = x.view(3, 4, 16), random(9, 4, 16), torch.tensor([3, 1, 2], device=DEVICE)
    ops.write_kv(heads, rows, slots)
    ops.rope_and_write(heads, 2, *angles(3, 16, torch.float32), rows[:, :2], slots)
    ops.greedy(x, x)
    kernels = [
        "rope", "gated", "gated", "gated_clamped", "rms_norm", "rms_norm_in_place", "add_rms_norm", "write_kv",
        "rope_and_write", "greedy",
    ]  # fmt: skip
    assert called == kernels
    # What there is no kernel for is computed as ever.
    assert_close(ops.gated(x, partial(silu)), ops.gated(x, silu))
    assert_close(ops.rms_norm(x.T, None, 1e-5), elementwise.rms_norm(x.T.contiguous(), None, 1e-5))
    long = random(1, norm.LONGEST_ROW + 1)
    assert_close(ops.rms_norm(long, None, 1e-5), long / long.square().mean().sqrt())
    assert called == [*kernels, "gated", "rms_norm"]
