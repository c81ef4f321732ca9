"""Products with weight matrices.

In float32 on a CPU a token's result does not depend on how many others are in the step: MKL sums up one, two
or three rows in another order than more, so the rows are filled up to a multiple of ROWS. Sequences are then
the same to the last bit alone, in a crowd and refilled after a crash (attention does its part in `attention`).
Weights are read once whether for one row or eight, so this costs little. In bf16 nothing is filled up: speed
is what it is for, and a near-tie may tip.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 8


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """x W^T + b: (T, I) by (O, I) to (T, O), all of one floating dtype."""
    tokens = x_TI.shape[0]
    if tokens % ROWS and x_TI.dtype == torch.float32 and x_TI.device.type == "cpu":
        return F.linear(F.pad(x_TI, (0, 0, 0, -tokens % ROWS)), weight_OI, bias_O)[:tokens]
    return F.linear(x_TI, weight_OI, bias_O)


def heads_linear(x_THI: Tensor, weight_HIO: Tensor, out_THO: Tensor) -> None:
    """Each head's row times a matrix of its own: (T, H, I) by (H, I, O) into (T, H, O), any strides."""
    tokens = x_THI.shape[0]
    x_HTI = x_THI.transpose(0, 1)
    if tokens % ROWS and x_THI.dtype == torch.float32 and x_THI.device.type == "cpu":
        x_HTI = F.pad(x_HTI, (0, 0, 0, -tokens % ROWS))
    out_THO.copy_(torch.bmm(x_HTI, weight_HIO)[:, :tokens].transpose(0, 1))


def embedding(ids_T: Tensor, weight_VE: Tensor) -> Tensor:
    """Rows of the embedding: ids (T,) int64 to (T, E). The caller has checked that ids are below V."""
    return torch.index_select(weight_VE, 0, ids_T)
