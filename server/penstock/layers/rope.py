"""Rotary position tables as configurations describe them, in all variants of `rope_scaling` and `rope_parameters`.

Two variants depend on the length of the sequence (dynamic, longrope). Keys are cached and shared between
sequences, so all must be rotated alike: the length that counts is the longest that is served.
"""

import math
from dataclasses import dataclass
from typing import Any

from penstock.errors import UnusableModel

VARIANTS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
# What `rope_scaling` calls a table that it does not stretch; "mrope" is of images.
UNSTRETCHED = ("default", "none", "mrope")
# Kinds of layers, as `rope_parameters` calls them, that a `rope_scaling` beside it stretches.
STRETCHED = ("full_attention", "compress")


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
    # Of yarn: what its magnitude is multiplied with, unless attention_factor replaces it.
    attn_factor: float = 1.0
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
    model_max_length: int = 0  # of linear: what tokenizer_config.json says; 0: nothing
    # Of longrope, in place of attention_factor, by the longest sequence.
    short_mscale: float | None = None
    long_mscale: float | None = None

    @property
    def depends_on_length(self) -> bool:
        """Whether its frequencies depend on the longest sequence that is served."""
        return self.variant in ("dynamic", "longrope")

    @property
    def max_positions(self) -> int:
        """The longest sequence the model was made for. Dynamic tables are as they were trained up to there.

        Of linear ones `max_position_embeddings` is meant to be the length before the stretch (Vicuna 16k), and is the one behind it in
        some files (DeepSeek-Coder, which was trained that long): the tokenizer's length tells them apart.
        """
        if self.variant == "linear":
            stretched = self.most_positions
            return min(stretched, max(self.max_position_embeddings, self.model_max_length or stretched))
        if self.variant == "yarn":
            return max(self.max_position_embeddings, int(self.original_max_position_embeddings * self.factor))
        return self.max_position_embeddings

    @property
    def most_positions(self) -> int:
        """The longest that may be asked for: a dynamic table stretches, for every sequence, if longer ones are to be served, and a linear
        one is stretched for longer sequences than some models were trained with.
        """
        if self.variant == "linear":
            return int(self.max_position_embeddings * self.factor)
        if self.variant == "dynamic":
            return max(self.max_position_embeddings, int(self.max_position_embeddings * self.factor))
        return self.max_positions


def with_scaling(config: dict[str, Any], depth: int = 2) -> dict[str, Any]:
    """config.json with what `rope_scaling` stretches in `rope_parameters`, where both are there; and so objects in it, `depth` deep: a
    thinker has a text.

    A file that transformers 5 saved has `rope_parameters`; who stretches the context as a model's card says adds `rope_scaling`.
    As in transformers it goes first, and of kinds of layers it is of those with full attention, or, of DeepSeek V4, of those that compress
    keys; unlike there a base that only `rope_parameters` has is kept.
    """
    made = {
        name: with_scaling(value, depth - 1) if depth and isinstance(value, dict) else value
        for name, value in config.items()
    }
    given, scaling = made.get("rope_parameters"), made.get("rope_scaling")
    if not isinstance(given, dict) or not given or not isinstance(scaling, dict):
        return made
    if (scaling.get("rope_type") or scaling.get("type") or "default") in UNSTRETCHED:
        return made

    def stretched(table: dict[str, Any]) -> dict[str, Any]:
        return {**{name: x for name, x in table.items() if name not in ("rope_type", "type")}, **scaling}

    if not any(isinstance(entry, dict) for entry in given.values()):
        made["rope_parameters"] = stretched(given)
    else:
        kinds = [kind for kind in STRETCHED if isinstance(given.get(kind), dict)]
        made["rope_parameters"] = {**given, **{kind: stretched(given[kind]) for kind in kinds}}
    return made


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
    is_nested = kind is not None and isinstance(given.get(kind), dict)
    if is_nested:
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
    # What the whole configuration says goes first, as in transformers, which does not look there for a kind of layers.
    places = (given, config) if is_nested else (config, given)
    found = (place.get("original_max_position_embeddings") for place in places)
    original = int(next(filter(None, found), max_position_embeddings))
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
        attn_factor=number("attn_factor", 1.0),
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
        model_max_length=int(number("model_max_length", 0)),
        short_mscale=optional("short_mscale"),
        long_mscale=optional("long_mscale"),
    )
