"""The Triton kernel of paged attention against its definition written out densely, in Triton's interpreter or on a GPU."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE

from penstock_kernels.score_modifiers import ScoreModifiers  # isort: skip
from penstock_kernels.gpu import attention  # isort: skip
from penstock_kernels.gpu.attention import attend  # isort: skip
from penstock_kernels.gpu.pieces import Pieces  # isort: skip

BLOCK = 16
PAGES = 300
SHORT = torch.bfloat16 if DEVICE == "cuda" else torch.float16


@dataclass
class Case:
    """A step: (position, queries) of each piece, those with one query first."""

    name: str
    pieces: list[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    size: int = 32
    dtype: torch.dtype = torch.float32
    window: int = 0
    chunked: bool = False
    softcap: float = 0.0
    latent: int = 0
    has_bias: bool = False
    has_sinks: bool = False
    held: int = 0  # numbers of a cache row beside those that are read
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("decodes", [(0, 1), (5, 1), (100, 1), (17, 1)]),
    Case("many decodes", [(3 + 5 * i, 1) for i in range(36)], kv_heads=4, heads=8, size=16),
    Case("one decode, split", [(300, 1)], heads=8, kv_heads=1, size=64),
    Case("a prompt", [(0, 37)]),
    Case("pieces of prompts and decodes", [(33, 1), (150, 1), (0, 70), (40, 30), (3, 2)]),
    # The interpreter multiplies fp16 as it should, and bf16 not.
    Case("short numbers", [(33, 1), (150, 1), (0, 70), (40, 30)], dtype=SHORT, size=128, heads=8),
    Case("three heads share one", [(60, 1), (0, 45)], heads=6, kv_heads=2),
    Case("heads of 96", [(60, 1), (10, 40)], size=96),
    Case("heads of 80", [(60, 1), (10, 40)], size=80),
    Case("heads of 8", [(60, 1), (10, 40)], size=8),
    Case("a window", [(5, 1), (120, 1), (90, 33), (0, 50)], window=20),
    Case("a chunked window", [(5, 1), (120, 1), (90, 33), (0, 50)], window=24, chunked=True),
    Case("soft caps", [(120, 1), (20, 33)], softcap=5.0),
    Case("position biases", [(120, 1), (20, 33)], has_bias=True),
    Case("sinks", [(0, 1), (200, 1), (20, 33)], has_sinks=True),
    Case("sinks and a window", [(200, 1), (20, 33)], has_sinks=True, window=16),
    Case("latents", [(0, 1), (90, 1), (20, 33)], heads=20, kv_heads=1, size=80, latent=64),
    Case("small latents", [(90, 1), (20, 33)], heads=4, kv_heads=1, size=12, latent=8, held=4),
    Case("rows of other layers", [(90, 1), (20, 33)], held=24),
]


def dense(
    case: Case, q_THD: Tensor, rows_NJD: Tensor, pages_SW: Tensor, scale: float, extra: dict[str, Any]
) -> Tensor:
    """One query after another, in float64."""
    out, token = [], 0
    shared = case.heads // case.kv_heads
    for slot, (position, count) in enumerate(case.pieces):
        for query in range(count):
            at = position + query
            first = 0
            if case.window:
                first = at // case.window * case.window if case.chunked else max(at + 1 - case.window, 0)
            keys = torch.arange(first, at + 1, device=DEVICE)
            places = pages_SW[slot, keys // BLOCK].long() * BLOCK + keys % BLOCK
            read = rows_NJD[places].double()
            heads = []
            for head in range(case.heads):
                kv = head // shared
                k_LD = read[:, kv, : case.size]
                v_LD = read[:, kv, : case.latent] if case.latent else read[:, case.kv_heads + kv]
                scores = (k_LD @ q_THD[token, head].double()) * scale
                if case.softcap:
                    scores = case.softcap * torch.tanh(scores / case.softcap)
                if case.has_bias:
                    scores = scores + extra["bias_HN"][head, keys].double()
                if case.has_sinks:
                    scores = torch.cat((scores, extra["sinks_H"][head : head + 1].double()))
                weights = scores.softmax(0)[: len(keys)]
                heads.append(weights @ v_LD)
            out.append(torch.stack(heads))
            token += 1
    return torch.stack(out)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_computes_the_definition(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    held_heads = 1 if case.latent else 2 * case.kv_heads
    if case.latent:
        memory = torch.randn(PAGES * BLOCK, 1, case.size + case.held)
        rows_NJD = memory[..., : case.size]
    else:
        memory = torch.randn(PAGES * BLOCK, held_heads + 2, case.size)
        rows_NJD = memory[:, :held_heads] if case.held else memory[:, :held_heads].clone()
    memory, rows_NJD = memory.to(DEVICE, case.dtype), rows_NJD.to(DEVICE, case.dtype)
    if case.held:
        rows_NJD = memory[..., : case.size] if case.latent else memory[:, :held_heads]
    tokens = sum(count for _, count in case.pieces)
    # With what lies between the heads of other tokens, as queries lie beside keys.
    q_THD = torch.randn(tokens, case.heads + 3, case.size).to(DEVICE, case.dtype)[:, : case.heads]
    slots = len(case.pieces)
    pages_SW = torch.full((slots, 24), -1, dtype=torch.int32)
    free = torch.randperm(PAGES).tolist()
    for slot, (position, count) in enumerate(case.pieces):
        for block in range(-(-(position + count) // BLOCK)):
            pages_SW[slot, block] = free.pop()
    pages_SW = pages_SW.to(DEVICE)
    counts = torch.tensor([count for _, count in case.pieces], dtype=torch.int32)
    decodes = int((counts == 1).cumprod(0).sum())
    firsts = counts.cumsum(0).int() - counts
    others = counts[decodes:]
    pieces = Pieces(
        pages_SW,
        BLOCK,
        torch.stack(
            (
                torch.arange(slots, dtype=torch.int32),
                torch.tensor([position for position, _ in case.pieces], dtype=torch.int32),
                firsts,
                counts,
                torch.cat((others.cumsum(0).int() - others, counts[:decodes])),
            )
        ).to(DEVICE),
        decodes,
        int(others.sum()),
        case.window,
        case.chunked,
    )
    if DEVICE == "cpu":
        monkeypatch.setattr(attention, "PROGRAMS", 32)  # which run one after another here
    # What no query of a piece sees is no number.
    seen = torch.zeros(PAGES * BLOCK, dtype=torch.bool)
    for slot, (position, count) in enumerate(case.pieces):
        first = 0
        if case.window:
            first = (
                position // case.window * case.window if case.chunked else max(position + 1 - case.window, 0)
            )
        keys = torch.arange(first, position + count)
        seen[pages_SW.cpu()[slot, keys // BLOCK].long() * BLOCK + keys % BLOCK] = True
    memory[~seen.to(DEVICE)] = torch.nan
    rows_NJD[~seen.to(DEVICE)] = torch.nan
    extra: dict[str, Any] = {}
    if case.has_bias:
        extra["bias_HN"] = torch.randn(case.heads, 400, device=DEVICE)
    if case.has_sinks:
        extra["sinks_H"] = torch.randn(case.heads, device=DEVICE)
    scale = case.size**-0.5
    out_THV = torch.full(
        (tokens, case.heads, case.latent or case.size), torch.nan, dtype=case.dtype, device=DEVICE
    )
    modifiers = ScoreModifiers(softcap=case.softcap, latent=case.latent, **extra)
    parts, new_empty = [], Tensor.new_empty

    def told(like: Tensor, *size: Any, **more: Any) -> Tensor:
        if isinstance(size[0], tuple):
            parts.append(size[0][0])
        return new_empty(like, *size, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "new_empty", told)
        attend(q_THD, rows_NJD, pieces, scale, out_THV, modifiers)
    # Only keys of decodes are divided.
    assert set(parts) <= {decodes}
    expected = dense(case, q_THD, rows_NJD, pages_SW, scale, extra)
    error = (out_THV.double() - expected).norm() / expected.norm()
    assert error < (1e-2 if case.dtype == SHORT else 1e-5)
