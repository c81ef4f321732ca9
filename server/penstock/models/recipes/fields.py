"""Reads fields of config.json, and says in one line what is wrong with one."""

import math
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.rope import RopeConfig, read_rope
from penstock.models.config import NormConfig

# Positions, vocabularies and widths are 32-bit numbers on the way to the router.
MOST = 2**31 - 1


class Fields:
    """A config.json. Every method raises UnusableModel, naming the field, when it does not hold what is wanted."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under the first of these names that is there."""
        name, value = self._first(names)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnusableModel(f"config.json: {name} is {_shown(value)}, not a positive whole number")
        if value > MOST:
            raise UnusableModel(f"config.json: {name} is {_shown(value)}, more than {MOST}")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number, 0 or more."""
        value = self.config.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UnusableModel(f"config.json: {name} is {_shown(value)}, not a whole number of 0 or more")
        if value > MOST:
            raise UnusableModel(f"config.json: {name} is {_shown(value)}, more than {MOST}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UnusableModel(f"config.json: {name} is {value!r}, not true or false")
        return value

    def number(self, *names: str, default: float) -> float:
        """A finite number under the first of these names that is there."""
        name, value = self._first(names)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UnusableModel(f"config.json: {name} is {value!r}, not a number")
        return float(value)

    def activation(self, *names: str, default: str) -> str:
        """The name of an activation function."""
        name, value = self._first(names)
        if value is None:
            value = default
        if not isinstance(value, str) or value not in ops.ACTIVATIONS:
            supported = ", ".join(ops.ACTIVATIONS)
            raise UnusableModel(f"config.json: unsupported {name} {_shown(value)}; supported: {supported}")
        return str(value)

    def refuse(self, name: str, *served: object) -> None:
        """Raises where the field is there and none of `served`: a choice that the recipe does not know."""
        value = self.config.get(name)
        if value is not None and value not in served:
            shown = " or ".join(map(repr, served))
            raise UnusableModel(f"config.json: {name} is {value!r}, and only {shown} is supported")

    def heads(self, kv_default: int | None = None) -> tuple[int, int, int]:
        """(query heads, key heads, head size) under the usual names."""
        width, heads = self.count("hidden_size"), self.count("num_attention_heads")
        kv_heads = self.count("num_key_value_heads", default=kv_default or heads)
        if heads % kv_heads:
            raise UnusableModel(
                f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        return heads, kv_heads, self.count("head_dim", default=max(width // heads, 1))

    def part(self, name: str) -> "Fields":
        """The fields of an object in it; none where it is not there."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, dict):
            raise UnusableModel(f"config.json: {name} is not an object")
        return Fields(value or {})

    def of_layers(self, layers: int, *known: str) -> list[dict[str, Any]]:
        """What each layer has otherwise than the whole (`per_layer_config`), of fields that are `known`. transformers writes the numbers of
        layers with as many digits as the last has.
        """
        found: list[dict[str, Any]] = [{} for _ in range(layers)]
        given = self.part("per_layer_config")
        for key in given.config:
            if not key.isdecimal() or len(key) > 9 or int(key) >= layers:
                raise UnusableModel(
                    f"config.json: per_layer_config has {_shown(key)}, which is none of {layers} layers"
                )
            found[int(key)] = given.part(key).config
        unknown = {name for own in found for name in own} - set(known)
        if unknown:
            raise UnusableModel(
                f"config.json: per_layer_config has {', '.join(sorted(unknown))}, which no recipe knows"
            )
        return found

    def head_dim(self, width: int, heads: int) -> int:
        """The size of a head, where the heads together are as wide as the model."""
        if width % heads:
            raise UnusableModel(f"config.json: {heads} attention heads do not divide the width {width}")
        return width // heads

    def norm(self, name: str, default: float, **choices: Any) -> NormConfig:
        """A norm whose eps is the field `name`."""
        eps = self.number(name, default=default)
        if eps < 0:
            raise UnusableModel(f"config.json: {name} is {eps!r}, not a small number")
        return NormConfig(eps, **choices)

    def rope(
        self,
        head_dim: int,
        max_positions: int,
        *,
        share: float = 1.0,
        theta: float = 10000.0,
        kind: str | None = None,
    ) -> RopeConfig:
        """The rotary table. `share` and `theta`: the family's defaults; `kind`: of layer, where they differ."""
        return read_rope(self.config, head_dim, max_positions, share=share, theta=theta, kind=kind)

    def attention_kinds(self, layers: int, default: list[str], local: str = "sliding_attention") -> list[str]:
        """`layer_types` of a family whose layers attend to all earlier tokens or, as `local` says, to near ones."""
        kinds = self.layer_kinds(layers, default)
        for kind in kinds:
            if kind not in ("full_attention", local):
                raise UnusableModel(
                    f"config.json: layer_types has {_shown(kind)}; served are 'full_attention' and {local!r}"
                )
        return kinds

    def sparse_layers(self, layers: int) -> list[bool]:
        """Which layers have experts: `mlp_layer_types`, or all from `first_k_dense_replace` on."""
        kinds = self.config.get("mlp_layer_types")
        if kinds is None:
            first = self.whole("first_k_dense_replace", 0)
            return [at >= first for at in range(layers)]
        if not isinstance(kinds, list) or len(kinds) != layers or set(map(str, kinds)) - {"dense", "sparse"}:
            raise UnusableModel(
                f"config.json: mlp_layer_types is not a list of {layers} times 'dense' or 'sparse'"
            )
        return [kind == "sparse" for kind in kinds]

    def layer_kinds(self, layers: int, default: list[str]) -> list[str]:
        """`layer_types`: what each layer attends to."""
        kinds = self.config.get("layer_types")
        if kinds is None:
            return default
        if not isinstance(kinds, list) or len(kinds) != layers or not all(isinstance(k, str) for k in kinds):
            raise UnusableModel(f"config.json: layer_types is not a list of {layers} names")
        return kinds

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        return next(((n, self.config[n]) for n in names if self.config.get(n) is not None), (names[0], None))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
