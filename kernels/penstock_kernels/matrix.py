"""Products with weight matrices."""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """x W^T + b: (T, I) by (O, I) to (T, O), all of one floating dtype."""
    return F.linear(x_TI, weight_OI, bias_O)


def linear_add(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, residual_TO: Tensor) -> Tensor:
    """residual + x W^T + b, in the residual's memory: (T, I) by (O, I) onto (T, O)."""
    return residual_TO.add_(F.linear(x_TI, weight_OI, bias_O))


def embedding(ids_T: Tensor, weight_VE: Tensor) -> Tensor:
    """Rows of the embedding: ids (T,) int64 to (T, E). The caller has checked that ids are below V."""
    return torch.index_select(weight_VE, 0, ids_T)
