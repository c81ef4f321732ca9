"""Angles of rotary positions, in every variant that `rope` reads. In numpy, for what the CPU engine runs and for torch's tables alike:
two libraries' powers differ in the last bit.
"""

import math

import numpy as np
import numpy.typing as npt

from penstock.layers.rope import RopeConfig

F32 = npt.NDArray[np.float32]


def frequencies(config: RopeConfig, longest: int) -> tuple[F32, float]:
    """Angle per position of each of the D/2 planes, fp32, and what cos and sin are multiplied with.

    `longest` is the longest sequence served. Sources: Chen et al. 2023 (linear), Peng et al. "YaRN" 2023
    (dynamic, yarn), Ding et al. "LongRoPE" 2024, the Llama 3.1 release (llama3).
    """
    size, one = config.head_dim, np.float32(1)
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)

    def powers_of(base: float) -> F32:
        # Rounded once, which is what torch gives but for a number in a hundred.
        return np.power(base, exponents.astype(np.float64)).astype(np.float32)

    if config.variant == "dynamic":
        ratio = max(longest, config.max_position_embeddings) / config.max_position_embeddings
        stretch = (config.factor * ratio - (config.factor - 1)) ** (size / (size - 2))
        return one / powers_of(config.theta * stretch), 1.0
    powers = powers_of(config.theta)
    plain = one / powers
    if config.variant == "linear":
        return plain / np.float32(config.factor), 1.0
    if config.variant == "yarn":
        return _yarn(config, powers), _yarn_magnitude(config)
    if config.variant == "longrope":
        long = longest > config.original_max_position_embeddings
        stretches = np.array(config.long_factor if long else config.short_factor, np.float32)
        scale = config.long_mscale if long else config.short_mscale
        magnitude = config.attention_factor if scale is None else scale
        if magnitude is None:
            logs = math.log(config.factor) / math.log(config.original_max_position_embeddings)
            magnitude = math.sqrt(1 + logs) if config.factor > 1 else 1.0
        return one / (stretches * powers), magnitude
    if config.variant == "llama3":
        return _llama3(config, plain), 1.0
    if config.variant == "proportional":
        turned = 2 * np.arange(size // 2) < config.rotated
        return np.where(turned, plain / np.float32(config.factor), np.float32(0)), 1.0
    return plain, 1.0


def _yarn(config: RopeConfig, powers: F32) -> F32:
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
    planes = np.arange(config.head_dim // 2, dtype=np.float32)
    slow = np.clip((planes - np.float32(low)) / np.float32(high - low), 0, 1)
    turned: F32 = slow / (np.float32(config.factor) * powers) + (1 - slow) / powers
    return turned


def _yarn_magnitude(config: RopeConfig) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    # As in YaRN's own code. transformers passes `attn_factor` by; DeepSeek-R1-0528-Qwen3-8B was published with one that makes this 1.
    if config.mscale and config.mscale_all_dim:
        return config.attn_factor * magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return config.attn_factor * magnitude(1.0)


def _llama3(config: RopeConfig, plain: F32) -> F32:
    """Waves longer than the original context are slowed by the factor, short ones kept, a ramp between."""
    turns = np.float32(config.original_max_position_embeddings) * plain / np.float32(2 * math.pi)
    span = np.float32(config.high_freq_factor - config.low_freq_factor)
    kept = (turns - np.float32(config.low_freq_factor)) / span
    kept = np.clip(kept, 0, 1)
    turned: F32 = (1 - kept) * plain / np.float32(config.factor) + kept * plain
    return turned
