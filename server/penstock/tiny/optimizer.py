"""Muon for the matrices of the layers, AdamW for the rest. Called by `train` only.

Muon (Jordan et al., 2024, "Muon: an optimizer for hidden layers") replaces the momentum of a matrix by the
nearest semi-orthogonal matrix, found by a Newton-Schulz iteration; small models learn about twice as fast.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration, chosen by its authors for fast convergence into [0.7, 1.2].
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalized(batch: Tensor) -> Tensor:
    """(N, rows, columns), rows <= columns -> about the nearest semi-orthogonal matrices, in bf16."""
    a, b, c = _QUINTIC
    x: Tensor = batch.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon:
    """Matrices of one shape are updated together, as one batch of matrix products."""

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.buffers = [torch.zeros_like(matrix) for matrix in matrices]
        self.matrices = matrices

    @torch.no_grad()
    def step(self, rate: float) -> None:
        by_shape: dict[tuple[int, int], list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
        for matrix, buffer in zip(self.matrices, self.buffers, strict=True):
            assert matrix.grad is not None
            buffer.lerp_(matrix.grad, 1 - self.momentum)
            update = matrix.grad.lerp(buffer, self.momentum)
            wide = update if update.shape[0] <= update.shape[1] else update.mT
            by_shape[(wide.shape[0], wide.shape[1])].append((matrix, wide))
        for group in by_shape.values():
            updates = orthogonalized(torch.stack([update for _, update in group])).float()
            for (matrix, _), update in zip(group, updates, strict=True):
                rows, columns = matrix.shape
                turned = update if rows <= columns else update.mT
                matrix.mul_(1 - rate * self.decay)
                matrix.add_(turned, alpha=-rate * max(1.0, rows / columns) ** 0.5)
                matrix.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffers = state["buffers"]
