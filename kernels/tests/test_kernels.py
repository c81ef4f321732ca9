"""Each reference against the formula it stands for, written out with loops or in double precision."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels import attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours: Tensor, exact: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), exact.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_divides_by_the_root_of_the_mean_square(dtype: torch.dtype) -> None:
    x, weight = random(5, 48).to(dtype), (1 + 0.1 * random(48, seed=1)).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(ops.rms_norm(x, weight, 1e-5), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_turns_each_plane_by_its_angle(dtype: torch.dtype) -> None:
    tokens, heads, size = 3, 2, 8
    x = random(tokens, heads, size).to(dtype)
    angles = random(tokens, size // 2, seed=1)
    exact = torch.empty(tokens, heads, size, dtype=torch.float64)
    for t in range(tokens):
        for d in range(size // 2):
            a, (c, s) = x[t].double(), (math.cos(angles[t, d]), math.sin(angles[t, d]))
            exact[t, :, d] = a[:, d] * c - a[:, d + size // 2] * s
            exact[t, :, d + size // 2] = a[:, d + size // 2] * c + a[:, d] * s
    cos, sin = angles.cos(), angles.sin()
    ops.rope(
        x, torch.cat((cos, cos), -1).unsqueeze(1).to(dtype), torch.cat((-sin, sin), -1).unsqueeze(1).to(dtype)
    )
    assert_close(x, exact)


@pytest.mark.parametrize("name", ops.ACTIVATIONS)
def test_gated_activates_the_first_half_and_scales_by_the_second(name: str) -> None:
    x = random(4, 10)
    gate, up = x[:, :5].double(), x[:, 5:].double()
    erf = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
    tanh = 0.5 * gate * (1 + (math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)).tanh())
    curves = {
        "silu": gate / (1 + (-gate).exp()),
        "swish": gate / (1 + (-gate).exp()),
        "gelu": erf,
        "gelu_python": erf,
        "gelu_pytorch": erf,
        "relu": gate.clamp(min=0),
        "relu2": gate.clamp(min=0) ** 2,
        "quick_gelu": gate / (1 + (-1.702 * gate).exp()),
    }
    curve = curves.get(name, tanh)
    assert_close(ops.gated(x, ops.ACTIVATIONS[name]), curve * up)


def test_the_clamped_gate_lets_large_numbers_go_no_further() -> None:
    x = 4 * random(6, 10)
    gate, up = x[:, :5].double().clamp(max=3), x[:, 5:].double().clamp(-3, 3)
    wanted = gate / (1 + (-1.7 * gate).exp()) * (up + 1)
    assert_close(ops.gated_clamped(x, limit=3.0, alpha=1.7), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xielu_is_a_parabola_above_zero_and_an_exponential_below(dtype: torch.dtype) -> None:
    x = (2 * random(4, 9)).to(dtype)
    x[0, 0] = -1e-7
    alpha_p, alpha_n, beta, eps = (torch.tensor(value) for value in (0.3, -0.7, 0.5, -1e-6))
    exact = torch.empty(4, 9, dtype=torch.float64)
    p, n = math.log1p(math.exp(0.3)), 0.5 + math.log1p(math.exp(-0.7))
    for at, value in enumerate(x.double().flatten().tolist()):
        above = p * value**2
        below = n * (math.expm1(min(value, -1e-6)) - value)
        exact.view(-1)[at] = (above if value > 0 else below) + 0.5 * value
    made = ops.xielu(x, alpha_p, alpha_n, beta, eps)
    assert made.dtype == dtype
    assert_close(made, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1])
def test_queries_are_scaled_by_the_spans_before_their_position(dtype: torch.dtype, offset: int) -> None:
    positions = [0, 6, 7, 8, 15, 8191]
    q = random(len(positions), 3, 4).to(dtype)
    exact = q.double().clone()
    for at, position in enumerate(positions):
        exact[at] *= 1 + 0.3 * math.log(1 + (position + offset) // 8)
    ops.scale_by_position(q, torch.tensor(positions), 0.3, 8, offset)
    assert_close(q, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_are_scaled_by_the_logarithm_of_their_position(dtype: torch.dtype) -> None:
    positions = [0, 6, 7, 8, 15, 8191]
    q = random(len(positions), 3, 4).to(dtype)
    exact = q.double().clone()
    for at, position in enumerate(positions):
        exact[at] *= 1 + 0.3 * math.log(max(1.0, (position + 1) / 8))
    ops.scale_by_logarithm(q, torch.tensor(positions), 0.3, 8)
    assert_close(q, exact)


def test_experts_chosen_one_by_one_are_weighed_among_those_near_the_best_that_is_left() -> None:
    logits = torch.tensor([[1.0, 0.99, 0.5, -3.0], [2.0, 1.0, 0.999, 0.9985], [-1.0, -1.01, -5.0, -1.03]])
    weights, experts = ops.route(logits, None, ops.Routing(2, one_by_one=0.02))
    assert experts.tolist() == [[0, 1], [0, 1], [0, 1]]

    def share(best: float, *others: float) -> float:
        return 1 / sum(math.exp(other - best) for other in (best, *others))

    # Of the first token both are near the best; once it is chosen, nothing else is near the second.
    wanted = [
        [share(1.0, 0.99), 1.0],
        [1.0, share(1.0, 0.999, 0.9985)],
        [share(-1.0, -1.01), share(-1.01, -1.03)],
    ]
    torch.testing.assert_close(weights, torch.tensor(wanted))


def test_a_weight_may_be_of_what_an_expert_reads() -> None:
    x, up, down = random(5, 6), random(3, 8, 6, seed=1), random(3, 6, 4, seed=2)
    weights, experts = random(5, 1, seed=3).sigmoid(), torch.tensor([[0], [2], [1], [2], [0]])

    def activation(gate_up: Tensor) -> Tensor:
        return ops.gated(gate_up, ops.ACTIVATIONS["silu"])

    made = ops.mix_experts(x, weights, experts, 0, up, None, down, None, activation, weighs_input=True)
    for token in range(5):
        expert = int(experts[token])
        hidden = up[expert].double() @ (x[token] * weights[token]).double()
        gated = hidden[:4] / (1 + (-hidden[:4]).exp()) * hidden[4:]
        assert_close(made[token], down[expert].double() @ gated)


def test_layer_norm_has_mean_and_variance_and_a_long_weight_is_not_rounded() -> None:
    x, weight, bias = random(3, 8), random(8, seed=1), random(8, seed=2)
    exact = x.double()
    centred = exact - exact.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(ops.layer_norm(x, weight, bias, 1e-5), normed * weight.double() + bias.double())
    short = x.bfloat16()
    scaled = short.float() / (short.float().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.equal(ops.rms_norm(short, weight, 1e-5), scaled.bfloat16())


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "root_softplus"])
def test_route_chooses_the_best_experts_of_the_best_groups(groups: int, score: str) -> None:
    logits, correction = random(20, 16), random(16, seed=1)
    routing = ops.Routing(
        3,
        score == "sigmoid",
        root_softplus=score == "root_softplus",
        normalize=True,
        scale=2.5,
        groups=groups,
        top_groups=2,
        group_best=2,
    )
    weights, experts = ops.route(logits, correction, routing)
    for token in range(20):
        scores = logits[token].double()
        if score == "root_softplus":
            scores = (1 + scores.exp()).log().sqrt()
        else:
            scores = scores.sigmoid() if score == "sigmoid" else scores.softmax(-1)
        choice = scores + correction.double()
        allowed = list(range(16))
        if groups > 1:
            size = 16 // groups
            best = sorted(
                range(groups), key=lambda g: -float(choice[g * size : (g + 1) * size].topk(2).values.sum())
            )
            allowed = [x for x in allowed if x // size in best[:2]]
        chosen = sorted(allowed, key=lambda x: -float(choice[x]))[:3]
        assert sorted(experts[token].tolist()) == sorted(chosen)
        total = scores[chosen].sum()
        for weight, expert in zip(weights[token], experts[token], strict=True):
            assert_close(weight, 2.5 * scores[expert] / total)
    assert torch.equal(ops.weigh(logits, experts, routing), weights), "whoever has chosen them"


@pytest.mark.parametrize("first", [0, 2])
def test_mix_experts_adds_what_its_own_experts_make(first: int) -> None:
    x, up, down = random(9, 4), random(3, 6, 4, seed=1), random(3, 4, 6, seed=2)
    up_bias, down_bias = random(3, 6, seed=3), random(3, 4, seed=4)
    weights = random(9, 2, seed=5)
    experts = torch.stack([torch.arange(9) % 5, (torch.arange(9) + 2) % 5], 1)
    got = ops.mix_experts(x, weights, experts, first, up, up_bias, down, down_bias, torch.relu)
    wanted = torch.zeros(9, 4, dtype=torch.float64)
    for token, row in enumerate(experts.tolist()):
        for place, expert in enumerate(row):
            if first <= expert < first + 3:
                at = expert - first
                inner = (up[at].double() @ x[token].double() + up_bias[at]).relu()
                wanted[token] += weights[token, place] * (down[at].double() @ inner + down_bias[at])
    assert_close(got, wanted)


def test_linear_is_a_product_and_a_bias() -> None:
    x, weight, bias = random(3, 4), random(5, 4, seed=1), random(5, seed=2)
    assert_close(ops.linear(x, weight, bias), x.double() @ weight.double().T + bias.double())
    assert_close(ops.linear(x, weight, None), x.double() @ weight.double().T)
    assert_close(ops.embedding(torch.tensor([2, 0, 2]), x), x[[2, 0, 2]])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 256), (256, 199), (768, 688), (2048, 2048)])
def test_in_float32_a_row_does_not_depend_on_how_many_there_are(
    inputs: int, outputs: int, threads: int
) -> None:
    x, weight = random(100, inputs), random(outputs, inputs, seed=1)
    heads_x, heads_weight = random(100, 4, inputs), random(4, inputs, 64, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, heads_whole = ops.linear(x, weight, None), torch.empty(100, 4, 64)
        ops.heads_linear(heads_x, heads_weight, heads_whole)
        for rows in (*range(1, 36), 64, 99):
            assert torch.equal(ops.linear(x[:rows], weight, None), whole[:rows]), rows
            heads_some = torch.empty(rows, 4, 64)
            ops.heads_linear(heads_x[:rows], heads_weight, heads_some)
            assert torch.equal(heads_some, heads_whole[:rows]), rows
    finally:
        torch.set_num_threads(before)


def test_with_a_tile_a_row_does_not_depend_on_how_many_there_are() -> None:
    x, weight, bias = random(70, 256) / 16, random(96, 256, seed=1), random(96, seed=2)
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        whole = ops.linear(x, weight, bias, 16)
        assert_close(whole, x.double() @ weight.double().T + bias.double())
        for begin, end in ((0, 1), (3, 20), (5, 69), (16, 32)):
            assert torch.equal(ops.linear(x[begin:end], weight, bias, 16), whole[begin:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tile", [0, 16])
def test_a_long_product_is_not_rounded_to_what_it_is_made_of(dtype: torch.dtype, tile: int) -> None:
    # More rows of a matrix than are made longer at once.
    x, weight, bias = (
        random(20, 64).to(dtype),
        random(2100, 64, seed=1).to(dtype),
        random(2100, seed=2).to(dtype),
    )
    wanted = x.double() @ weight.double().T
    for given, bias_O in ((wanted, None), (wanted + bias.double(), bias)):
        found = ops.long_linear(x, weight, bias_O, tile)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), given, atol=1e-5, rtol=1e-5)
    whole = ops.long_linear(x, weight, None, 16)
    assert torch.equal(ops.long_linear(x[3:9], weight, None, 16), whole[3:9])


def test_heads_linear_gives_each_head_its_own_matrix() -> None:
    x, weight = random(3, 2, 4), random(2, 4, 5, seed=1)
    out = torch.empty(3, 2, 5)
    ops.heads_linear(x, weight, out)
    assert_close(out, torch.einsum("thi,hio->tho", x.double(), weight.double()))
    ops.heads_linear(x, weight, out, 2)
    assert_close(out, torch.einsum("thi,hio->tho", x.double(), weight.double()))


def test_write_kv_touches_only_the_places_named() -> None:
    cache = torch.zeros(32, 4, 6)
    kv = random(3, 4, 6)
    ops.write_kv(kv, cache, torch.tensor([31, 0, 17]))
    assert torch.equal(cache[[31, 0, 17]], kv)
    cache[[31, 0, 17]] = 0
    assert not cache.any()


def naive_attention(q_THD: Tensor, k_LKD: Tensor, v_LKD: Tensor, first: int, scale: float) -> Tensor:
    """Query i sees keys 0 .. first + i."""
    queries, heads, _ = q_THD.shape
    shared = heads // k_LKD.shape[1]
    out = torch.zeros(q_THD.shape, dtype=torch.float64)
    for i in range(queries):
        for h in range(heads):
            k, v = (t[: first + i + 1, h // shared].double() for t in (k_LKD, v_LKD))
            out[i, h] = (k @ q_THD[i, h].double() * scale).softmax(0) @ v
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("at_once", [1, 800, 1 << 20])
def test_paged_attention_sees_each_sequence_up_to_the_token(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    fused: bool,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decodes of 1, 9 and 40 keys in one rectangle; chunks of 5 after 7 and of 3 after 0 in another."""
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    size, scale = 8, 0.3
    shapes = [(1, 0), (1, 8), (1, 39), (5, 7), (3, 0)]  # (queries, tokens before)
    rows = sum(q + first for q, first in shapes)
    cache = torch.full((rows + 10, 2 * kv_heads, size), torch.nan, dtype=dtype)
    zero_row = rows + 9
    cache[zero_row] = 0
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(3)).tolist()
    mapping = [[order.pop() for _ in range(q + first)] for q, first in shapes]
    for number, own in enumerate(mapping):
        cache[own] = random(len(own), 2 * kv_heads, size, seed=number).to(dtype)
    q_THD = random(11, heads, size, seed=9).to(dtype)

    def padded(own: list[list[int]], keys: int) -> Tensor:
        return torch.tensor([row + [zero_row] * (keys - len(row)) for row in own])

    keys = 64
    decode_mapping = padded(mapping[:3], keys)
    mask = torch.where(torch.arange(keys) < torch.tensor([[1], [9], [40]]), 0.0, -torch.inf).to(dtype)
    decodes = ops.DecodeGroup(
        begin=0,
        end=3,
        keys=keys,
        slot_mapping_SL=decode_mapping.view(-1),
        mask_S1L=mask.unsqueeze(1),
    )
    if at_once >= 1 << 20:
        heads_J1 = torch.arange(2 * kv_heads).unsqueeze(1)
        decodes.heads_JSL = (decode_mapping.view(-1) * 2 * kv_heads + heads_J1).view(-1)
    last = torch.tensor([[7, 8, 9, 10, 11], [0, 1, 2, 2, 2]])
    chunk_mask = torch.where(torch.arange(12) <= last.unsqueeze(-1), 0.0, -torch.inf).to(dtype)
    chunks = ops.ChunkGroup(
        begin=3,
        end=11,
        sequences=2,
        queries=5,
        keys=12,
        slot_mapping_SL=padded(mapping[3:], 12).view(-1),
        mask_S1QL=chunk_mask.unsqueeze(1),
        causal=False,
        spread_SQ=torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 7, 7]),
        gather_T=torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]),
    )
    out = torch.full((11, heads, size), torch.nan, dtype=dtype)
    metadata = ops.AttentionMetadata(chunks=[chunks])
    if fused:
        metadata.few = [ops.FewGroup(0, 3, keys, decode_mapping.view(-1), mask.view(3, 1, 1, keys))]
    else:
        metadata.decodes = [decodes]
    ops.paged_attention(q_THD, cache, metadata, scale, out)
    begin = 0
    for (queries, first), own in zip(shapes, mapping, strict=True):
        k, v = cache[own][:, :kv_heads], cache[own][:, kv_heads:]
        exact = naive_attention(q_THD[begin : begin + queries], k, v, first, scale)
        assert_close(out[begin : begin + queries], exact)
        begin += queries


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attention_reads_the_first_rows_of_each_token_where_there_are_more(softcap: float) -> None:
    size, kv_heads, heads = 8, 2, 4
    wide = random(12, 3 * kv_heads, size)
    wide[11] = 0
    few = ops.FewGroup(0, 2, 4, torch.tensor([1, 5, 7, 2, 8, 0, 3, 6]), None)
    chunks = ops.ChunkGroup(
        begin=2,
        end=5,
        sequences=1,
        queries=3,
        keys=3,
        slot_mapping_SL=torch.tensor([9, 4, 10]),
        mask_S1QL=None,
        causal=True,
        spread_SQ=None,
        gather_T=None,
    )
    metadata = ops.AttentionMetadata(few=[few], chunks=[chunks])
    modifiers = ops.ScoreModifiers(softcap=softcap) if softcap else ops.PLAIN
    q = random(5, heads, size, seed=1)
    narrow = wide[:, : 2 * kv_heads]
    made, wanted = torch.empty(5, heads, size), torch.empty(5, heads, size)
    ops.paged_attention(q, narrow, metadata, 0.3, made, modifiers)
    ops.paged_attention(q, narrow.contiguous(), metadata, 0.3, wanted, modifiers)
    assert torch.equal(made, wanted)
    ops.write_kv(random(1, 2 * kv_heads, size, seed=2), narrow, torch.tensor([4]))
    assert torch.equal(wide[4, 2 * kv_heads :], random(12, 3 * kv_heads, size)[4, 2 * kv_heads :])
    assert torch.equal(wide[4, : 2 * kv_heads], random(1, 2 * kv_heads, size, seed=2)[0])


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    seeds = np.arange(1000, dtype=np.uint64).repeat(100)
    positions = np.tile(np.arange(100), 1000)
    u = ops.uniform(seeds, positions)
    assert (u >= 0).all() and (u < 1).all() and len(np.unique(u)) == len(u)
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - 1562.5) ** 2 / 1562.5).sum() < 63 + 6 * math.sqrt(126)
    table = u.reshape(1000, 100)
    for one, other in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


def test_uniform_numbers_never_change() -> None:
    """They are part of what a seed promises from one version to the next."""
    found = ops.uniform(np.array([0, 1, 2**64 - 1], np.uint64), np.array([0, 7, 2**31]))
    assert found.tolist() == UNIFORM


UNIFORM = [0.6524484863740322, 0.24696520214533768, 0.16108300974245593]


@pytest.mark.parametrize("vocabulary", [199, 256, 1000, 6000, 32000])
def test_argmax_finds_the_first_of_the_largest(vocabulary: int) -> None:
    logits = (random(20, vocabulary) * 3).round()
    assert torch.equal(ops.argmax(logits), torch.tensor([row.tolist().index(row.max()) for row in logits]))


def test_choose_never_takes_what_cannot_be() -> None:
    logits = torch.full((1, 50), -torch.inf)
    logits[0, [10, 30]] = torch.tensor([0.0, math.log(3.0)])
    for u, wanted in ((0.0, 10), (0.2499, 10), (0.2501, 30), (1 - 2**-53, 30)):
        assert ops.choose(logits, torch.tensor([u], dtype=torch.float64)).tolist() == [wanted]


def test_count_tokens_counts_repeats() -> None:
    counts = torch.zeros(3, 5, dtype=torch.int32)
    ops.count_tokens(counts, torch.tensor([0, 2, 2, 2]), torch.tensor([1, 4, 4, 0]))
    assert counts.tolist() == [[0, 1, 0, 0, 0], [0] * 5, [1, 0, 0, 0, 2]]


@pytest.mark.parametrize(("vocabulary", "greens"), [(97, 48), (32000, 16000), (4096, 1), (130, 129)])
def test_every_token_has_its_own_green_list_of_the_right_size(vocabulary: int, greens: int) -> None:
    previous = torch.arange(min(vocabulary, 200))
    green = ops.green_tokens(previous, vocabulary, greens)
    assert (green.sum(-1) == greens).all()
    assert (
        len({row.tobytes() for row in green.numpy()})
        > min(len(previous), vocabulary, math.comb(vocabulary, greens)) / 2
    )


@pytest.mark.parametrize(("vocabulary", "gamma"), [(97, 0.5), (32000, 0.25), (130, 0.999), (50, 0.001)])
def test_the_detector_of_the_examples_knows_the_same_tokens(vocabulary: int, gamma: float) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "watermark.py"))
    previous = torch.tensor([0, 1, 7, vocabulary - 1])
    green = ops.green_tokens(previous, vocabulary, max(int(gamma * vocabulary), 1))
    for row, token in zip(green.numpy(), previous.tolist(), strict=True):
        assert (example["green_tokens"](token, vocabulary, gamma) == row).all()
    # One that is always green and one that never is, behind the same token; a pair that comes again does not count again.
    often, never = (int(found[0]) for found in (green[1].nonzero(), (~green[1]).nonzero()))
    share = math.sqrt(gamma / (1 - gamma))
    assert example["z_score"]([[1, often]], vocabulary, gamma) == pytest.approx(1 / share)
    assert example["z_score"]([[1, never], [1, never]], vocabulary, gamma) == pytest.approx(-share)
    assert example["z_score"]([[1]], vocabulary, gamma) == 0


def test_green_lists_are_as_good_as_drawn_at_random() -> None:
    vocabulary, share = 2000, 0.3
    green = ops.green_tokens(torch.arange(vocabulary), vocabulary, int(share * vocabulary)).double()
    # How often a token is green, and how far two lists agree, deviate as binomial numbers do.
    deviation = math.sqrt(vocabulary * share * (1 - share))
    often = (green.sum(0) - share * vocabulary) / deviation
    assert 0.9 < float(often.std()) < 1.1 and float(often.abs().max()) < 5
    shared = (green @ green.T - share * share * vocabulary) / (share * (1 - share) * math.sqrt(vocabulary))
    shared = shared[~torch.eye(vocabulary, dtype=torch.bool)]
    assert abs(float(shared.mean())) < 0.05 and 0.9 < float(shared.std()) < 1.1
    assert float(shared.abs().max()) < 7
    # Neighbours of a green token are not greener than others.
    beside = (green[:, 1:] * green[:, :-1]).mean()
    assert float(beside) == pytest.approx(share * share, abs=2e-3)


def test_a_watermark_adds_delta_to_green_tokens_row_by_row() -> None:
    logits, previous = random(3, 50), torch.tensor([4, 4, 9])
    greens = np.array([10, 20, 10])
    marked = ops.add_watermark(logits, previous, greens, torch.tensor([[2.0], [3.0], [0.5]]))
    for row, (size, delta) in enumerate(zip(greens.tolist(), (2.0, 3.0, 0.5), strict=True)):
        green = ops.green_tokens(previous[row : row + 1], 50, size)[0]
        torch.testing.assert_close(marked[row], logits[row] + delta * green)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("term", ["softcap", "bias", "sinks", "latent", "all"])
@pytest.mark.parametrize("at_once", [1, 50, 1 << 23])
def test_paged_attention_with_terms(
    at_once: int, dtype: torch.dtype, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two decodes of 3 and 7 keys, and a whole prompt of 5."""
    monkeypatch.setitem(attention.GATHERED_AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    heads, kv_heads, size, scale = 4, 2, 8, 0.3
    latent = 6 if term in ("latent", "all") else 0
    if latent:
        kv_heads = 1
    rows = 1 if latent else 2 * kv_heads
    cache = random(20, rows, size).to(dtype)
    cache[19] = 0
    mapping = [[4, 9, 1], [0, 2, 3, 5, 6, 7, 8], [10, 11, 12, 13, 14]]
    seen = torch.tensor([[True] * 3 + [False] * 4, [True] * 7])
    few = ops.FewGroup(
        begin=0,
        end=2,
        keys=7,
        slot_mapping_SL=torch.tensor([*mapping[0], 19, 19, 19, 19, *mapping[1]]),
        mask_S11L=torch.where(seen, 0.0, -torch.inf).to(dtype).view(2, 1, 1, 7),
    )
    chunk = ops.ChunkGroup(2, 7, 1, 5, 5, torch.tensor(mapping[2]), None, True, None, None)
    modifiers = ops.ScoreModifiers(
        softcap=0.7 if term in ("softcap", "all") else 0.0,
        bias_HN=random(heads, 40, seed=3) if term in ("bias", "all") else None,
        sinks_H=random(heads, seed=4) if term in ("sinks", "all") else None,
        latent=latent,
    )
    q = random(7, heads, size, seed=5).to(dtype)
    out = torch.empty(7, heads, latent or size, dtype=dtype)
    metadata = ops.AttentionMetadata(few=[few], chunks=[chunk])
    ops.paged_attention(q, cache, metadata, scale, out, modifiers)

    whose = [mapping[0], mapping[1], *(mapping[2][: at + 1] for at in range(5))]
    for token, own in enumerate(whose):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            keys = cache[own, kv_head].double()
            values = keys[:, :latent] if latent else cache[own, kv_heads + kv_head].double()
            scores = scale * keys @ q[token, head].double()
            if modifiers.softcap:
                scores = modifiers.softcap * (scores / modifiers.softcap).tanh()
            if modifiers.bias_HN is not None:
                scores = scores + modifiers.bias_HN[head, : len(own)].double()
            weights = scores.exp()
            total = weights.sum() + (
                0 if modifiers.sinks_H is None else modifiers.sinks_H[head].double().exp()
            )
            assert_close(out[token, head], (weights / total) @ values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["decodes", "few", "chunks"])
@pytest.mark.parametrize("term", ["plain", "softcap", "sinks"])
def test_large_scores_keep_their_differences(dtype: torch.dtype, kind: str, term: str) -> None:
    """As of a model with large biases of queries and keys: all scores are 96 and a little more, where neighbours in
    bfloat16 are 0.5 apart. What all keys have in common must not cost what makes them different.
    """
    heads, kv_heads, size, keys, scale = 4, 2, 32, 48, 0.25
    cache = (random(keys + 1, 2 * kv_heads, size) / 2).to(dtype)
    q = random(1, heads, size, seed=1).to(dtype)
    q[:, :, :6], cache[:, :kv_heads, :6] = 8.0, 8.0
    cache[keys] = 0
    mapping = torch.arange(keys)
    metadata = ops.AttentionMetadata()
    if kind == "decodes" and term == "plain":
        metadata.decodes = [ops.DecodeGroup(0, 1, keys, mapping, None)]
    elif kind == "chunks":
        chunk = ops.ChunkGroup(0, 1, 1, 1, keys, mapping, torch.zeros(1, 1, 1, keys), False, None, None)
        metadata.chunks = [chunk]
    else:
        metadata.few = [ops.FewGroup(0, 1, keys, mapping, None)]
    softcap, sinks = 0.0, None
    if term == "softcap":
        softcap = 5000.0
    elif term == "sinks":
        sinks = torch.full((heads,), 96.0)
    modifiers = ops.PLAIN if term == "plain" else ops.ScoreModifiers(softcap=softcap, sinks_H=sinks)
    out = torch.empty(1, heads, size, dtype=dtype)
    ops.paged_attention(q, cache, metadata, scale, out, modifiers)
    for head in range(heads):
        k, v = (cache[:keys, rows + head // 2].double() for rows in (0, kv_heads))
        scores = k @ q[0, head].double() * scale
        assert 90 < float(scores.mean()) < 102 and 0.3 < float(scores.std()) < 1.5
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        weights = scores.exp()
        exact = weights @ v / (weights.sum() + (0 if sinks is None else sinks[head].double().exp()))
        error = float((out[0, head].double() - exact).norm() / exact.norm())
        assert error < (6e-3 if dtype != torch.float32 else 1e-5), error


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 199, 4096])
def test_a_mask_leaves_the_logits_of_its_tokens_alone(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    allowed_SV = torch.rand(5, vocabulary, generator=generator) < 0.4
    logits_SV = torch.randn(5, vocabulary, generator=generator)
    bits = torch.nn.functional.pad(allowed_SV, (0, -vocabulary % 32)).to(torch.uint8).numpy()
    words_SW = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    masked_SV = ops.mask_tokens(logits_SV, words_SW)
    assert torch.equal(masked_SV[allowed_SV], logits_SV[allowed_SV])
    assert bool((masked_SV[~allowed_SV] == -torch.inf).all())
