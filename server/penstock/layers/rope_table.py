"""cos and sin of every position, for what torch runs."""

from __future__ import annotations

from penstock.layers.rope import RopeConfig
from penstock.layers.rope_frequencies import frequencies
from penstock_kernels.later import Tensor, torch


class RopeTable:
    """cos and sin of every position: (positions, 1, D) each, sin with its first half negated."""

    __slots__ = ("cos_N1D", "sin_N1D")

    def __init__(
        self, config: RopeConfig, longest: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        per_position, magnitude = frequencies(config, longest)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), torch.from_numpy(per_position))
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self.cos_N1D = torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype)
        self.sin_N1D = torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype)

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (T, 1, D) of each token's position."""
        return self.cos_N1D.index_select(0, positions_T), self.sin_N1D.index_select(0, positions_T)
