"""Rotary position tables: from what a configuration says to angles, cos and sin.

Two variants depend on the length of the sequence (dynamic, longrope). Keys are cached and shared between
sequences, so all must be rotated alike: the length that counts is the longest that is served.
"""

import math

import torch
from torch import Tensor

from penstock.layers.rope import RopeConfig


def frequencies(config: RopeConfig, longest: int) -> tuple[Tensor, float]:
    """Angle per position of each of the D/2 planes, fp32, and what cos and sin are multiplied with.

    `longest` is the longest sequence served. Sources: Chen et al. 2023 (linear), Peng et al. "YaRN" 2023
    (dynamic, yarn), Ding et al. "LongRoPE" 2024, the Llama 3.1 release (llama3).
    """
    size = config.head_dim
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    if config.variant == "dynamic":
        ratio = max(longest, config.max_position_embeddings) / config.max_position_embeddings
        stretch = (config.factor * ratio - (config.factor - 1)) ** (size / (size - 2))
        return 1.0 / (config.theta * stretch) ** exponents, 1.0
    powers = config.theta**exponents
    plain = 1.0 / powers
    if config.variant == "linear":
        return plain / config.factor, 1.0
    if config.variant == "yarn":
        return _yarn(config, powers), _yarn_magnitude(config)
    if config.variant == "longrope":
        long = longest > config.original_max_position_embeddings
        stretches = torch.tensor(config.long_factor if long else config.short_factor)
        scale = config.long_mscale if long else config.short_mscale
        magnitude = config.attention_factor if scale is None else scale
        if magnitude is None:
            logs = math.log(config.factor) / math.log(config.original_max_position_embeddings)
            magnitude = math.sqrt(1 + logs) if config.factor > 1 else 1.0
        return 1.0 / (stretches * powers), magnitude
    if config.variant == "llama3":
        return _llama3(config, plain), 1.0
    if config.variant == "proportional":
        return torch.where(2 * torch.arange(size // 2) < config.rotated, plain / config.factor, 0.0), 1.0
    return plain, 1.0


def _yarn(config: RopeConfig, powers: Tensor) -> Tensor:
    """Fast planes keep their frequency, slow ones are interpolated, with a ramp between the two."""

    def plane(turns: float) -> float:
        """The plane that turns this often over the original context."""
        wavelength = config.original_max_position_embeddings / (turns * 2 * math.pi)
        return config.head_dim * math.log(wavelength) / (2 * math.log(config.theta))

    low, high = plane(config.beta_fast), plane(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    if low == high:
        high += 0.001
    slow = ((torch.arange(config.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return slow / (config.factor * powers) + (1 - slow) / powers


def _yarn_magnitude(config: RopeConfig) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Waves longer than the original context are slowed by the factor, short ones kept, a ramp between."""
    turns = config.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * plain / config.factor + kept * plain


class RopeTable:
    """cos and sin of every position: (positions, 1, D) each, sin with its first half negated."""

    __slots__ = ("cos_N1D", "sin_N1D")

    def __init__(
        self, config: RopeConfig, longest: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        per_position, magnitude = frequencies(config, longest)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), per_position)
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self.cos_N1D = torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype)
        self.sin_N1D = torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype)

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (T, 1, D) of each token's position."""
        return self.cos_N1D.index_select(0, positions_T), self.sin_N1D.index_select(0, positions_T)
