"""Products with weight matrices.

In float32 on a CPU a token's result does not depend on how many others are in the step. By itself MKL sums up few
rows in another order than many. On Intel's processors it is told not to (MKL's "conditional numerical
reproducibility", which is read from the environment at its first call), and only a row alone takes another way; on
others, where it cannot be told, one, two or three rows do (how far that was seen: docs/decisions/006). So rows are
filled up to a multiple of ROWS. Sequences are then the same to the last bit alone, in a crowd and refilled after a crash
(attention does its part in `attention`). Weights are read once whether for one row or eight, so this costs little. In
bf16 nothing is filled up: speed is what it is for, and a near-tie may tip. Where a `tile` is asked for, every product
has `tile` rows, in any dtype on any device: then no library has a choice that depends on the number of tokens.
"""

import os
from pathlib import Path

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor, torch


def _make_mkl_strict() -> bool:
    """Whether MKL now sums up in one order. What the environment says already stays."""
    cpuinfo = Path("/proc/cpuinfo")
    said = cpuinfo.read_text() if cpuinfo.exists() else ""
    flags = set(said.partition("flags")[2].partition("\n")[0].split())
    branch = "AVX512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "AVX2"
    if "GenuineIntel" in said and "avx2" in flags:
        os.environ.setdefault("MKL_CBWR", f"{branch},STRICT")
        return os.environ["MKL_CBWR"].endswith(",STRICT")
    return False


ROWS = 2 if _make_mkl_strict() else 8
PIECE = 1024  # rows of a matrix that are made longer at once


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, tile: int = 0) -> Tensor:
    """x W^T + b: (T, I) by (O, I) to (T, O), all of one floating dtype. `tile`: rows of each product; 0: all."""
    if not tile and len(x_TI) == 1 and usable(x_TI):
        from penstock_kernels.gpu import matrix

        if matrix.takes(x_TI, weight_OI, bias_O):
            return matrix.linear(x_TI, weight_OI, bias_O)
    if not tile and not (x_TI.dtype == torch.float32 and _fills_up(x_TI)):
        return F.linear(x_TI, weight_OI, bias_O)
    tokens = x_TI.shape[0]
    x_TI = F.pad(x_TI, (0, 0, 0, -tokens % (tile or ROWS)))
    if not tile:
        return F.linear(x_TI, weight_OI, bias_O)[:tokens]
    return torch.cat([F.linear(part, weight_OI, bias_O) for part in torch.split(x_TI, tile)])[:tokens]


def long_linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, tile: int = 0) -> Tensor:
    """As `linear`, and the products are fp32 where the inputs are a shorter type: they are not rounded to it."""
    if x_TI.dtype == torch.float32:
        return linear(x_TI, weight_OI, bias_O, tile)
    if x_TI.device.type == "cuda":
        tokens = x_TI.shape[0]
        parts: tuple[Tensor, ...] = (x_TI,)
        if tile:
            parts = torch.split(F.pad(x_TI, (0, 0, 0, -tokens % tile)), tile)
        made_PO = [torch.mm(part, weight_OI.t(), out_dtype=torch.float32) for part in parts]
        made_TO = torch.cat(made_PO)[:tokens]
    else:
        # Elsewhere torch has no such product: a piece of the matrix at a time is made longer.
        x_TI = x_TI.float()
        pieces = [linear(x_TI, piece.float(), None, tile) for piece in torch.split(weight_OI, PIECE)]
        made_TO = torch.cat(pieces, 1)
    return made_TO if bias_O is None else made_TO.add_(bias_O)


def heads_linear(x_THI: Tensor, weight_HIO: Tensor, out_THO: Tensor, tile: int = 0) -> None:
    """Each head's row times a matrix of its own: (T, H, I) by (H, I, O) into (T, H, O), any strides."""
    tokens = x_THI.shape[0]
    x_HTI = x_THI.transpose(0, 1)
    if tile or (x_THI.dtype == torch.float32 and _fills_up(x_THI)):
        x_HTI = F.pad(x_HTI, (0, 0, 0, -tokens % (tile or ROWS)))
    parts = torch.split(x_HTI, tile, 1) if tile else (x_HTI,)
    made_HTO = torch.cat([torch.bmm(part.contiguous(), weight_HIO) for part in parts], 1)
    out_THO.copy_(made_HTO[:, :tokens].transpose(0, 1))


def _fills_up(x: Tensor) -> bool:
    """Whether rows of float32 have to be added."""
    return x.shape[0] % ROWS != 0 and x.device.type == "cpu"


def embedding(ids_T: Tensor, weight_VE: Tensor) -> Tensor:
    """Rows of the embedding: ids (T,) int64 to (T, E). The caller has checked that ids are below V."""
    return torch.index_select(weight_VE, 0, ids_T)
