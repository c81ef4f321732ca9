"""Rotary position tables in all variants of `rope_scaling` and `rope_parameters`.

Two variants depend on the length of the sequence (dynamic, longrope). Keys are cached and shared between
sequences, so all must be rotated alike: the length that counts is the longest that is served.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.errors import UnusableModel

VARIANTS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


@dataclass(frozen=True)
class RopeConfig:
    """How positions are turned into angles. Names as in Hugging Face configurations."""

    variant: str
    theta: float
    head_dim: int
    max_position_embeddings: int
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    rotated: int = 0  # of proportional: numbers of a head that turn
    # Of longrope, in place of attention_factor, by the longest sequence.
    short_mscale: float | None = None
    long_mscale: float | None = None

    @property
    def max_positions(self) -> int:
        """The longest sequence the model was made for."""
        if self.variant in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.factor)
        if self.variant == "yarn":
            return max(self.max_position_embeddings, int(self.original_max_position_embeddings * self.factor))
        return self.max_position_embeddings


def read_rope(
    config: dict[str, Any],
    head_dim: int,
    max_position_embeddings: int,
    *,
    share: float = 1.0,
    theta: float = 10000.0,
    kind: str | None = None,
) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (before it).

    `share` of head_dim is rotated unless `partial_rotary_factor` says otherwise; `theta` is the base where none is
    given; `kind` is the kind of layer where `rope_parameters` has an entry for each.
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise UnusableModel(f"config.json: {key} is not an object")
    if kind is not None and isinstance(given.get(kind), dict):
        given = given[kind]
    variant = str(given.get("rope_type") or given.get("type") or "default")
    variant = {"su": "longrope", "none": "default"}.get(variant, variant)
    if variant not in VARIANTS:
        raise UnusableModel(f"config.json: {key} has the type {variant!r}; served are {', '.join(VARIANTS)}")

    def number(name: str, default: float | None = None) -> float:
        value = given.get(name)
        if value is None:
            value = default
        if value is None:
            raise UnusableModel(f"config.json: {key} of type {variant} lacks {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UnusableModel(f"config.json: {name} in {key} is not a number")
        return float(value)

    def optional(name: str) -> float | None:
        return None if given.get(name) is None else number(name)

    portion = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    portion = share if portion is None else portion
    if isinstance(portion, bool) or not isinstance(portion, (int, float)) or not 0 < portion <= 1:
        raise UnusableModel(f"config.json: partial_rotary_factor is {portion!r}, not over 0 and at most 1")
    rotated = 0
    if variant == "proportional":  # the whole head is a plane's span, and a part of the planes turns
        rotated = 2 * int(portion * head_dim // 2)
    else:
        head_dim = int(head_dim * portion + 1e-6)

    def factors(name: str) -> tuple[float, ...]:
        value = given.get(name)
        if (
            not isinstance(value, list)
            or len(value) != head_dim // 2
            or not all(isinstance(x, (int, float)) and x > 0 for x in value)
        ):
            raise UnusableModel(
                f"config.json: {name} in {key} is not a list of {head_dim // 2} positive numbers, half of "
                "what is rotated of a head"
            )
        return tuple(float(x) for x in value)

    base = given.get("rope_theta", config.get("rope_theta"))
    base = theta if base is None else base
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not base > 0:
        raise UnusableModel("config.json: rope_theta is not a positive number")
    original = given.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = int(original or max_position_embeddings)
    factor = 1.0
    if variant in ("linear", "dynamic", "llama3"):
        factor = number("factor")
    elif variant == "proportional":
        factor = number("factor", 1.0)
    elif variant in ("yarn", "longrope"):
        factor = number("factor", max_position_embeddings / original)
    if factor <= 0:
        raise UnusableModel(f"config.json: factor in {key} is not positive")
    return RopeConfig(
        variant=variant,
        theta=float(base),
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        original_max_position_embeddings=original,
        factor=factor,
        attention_factor=optional("attention_factor"),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
        truncate=bool(given.get("truncate", True)),
        short_factor=factors("short_factor") if variant == "longrope" else (),
        long_factor=factors("long_factor") if variant == "longrope" else (),
        low_freq_factor=number("low_freq_factor", 1.0),
        high_freq_factor=number("high_freq_factor", 4.0),
        rotated=rotated,
        short_mscale=optional("short_mscale"),
        long_mscale=optional("long_mscale"),
    )


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
