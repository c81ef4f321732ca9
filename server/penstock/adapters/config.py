"""adapter_config.json of PEFT: the rank and scale of each pair, and which fields change more than pairs. Must not import torch.

Fields and their meaning are PEFT's, as of 0.21 (peft/tuners/lora/config.py). Numbers that are not given have its defaults.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.adapters.patterns import NamePattern
from penstock.errors import UnusableModel
from penstock.loading.model_files import ADAPTER, ALONE, MERGE

N = TypeVar("N", int, float)

LARGEST_RANK = 512
MOST_PATTERNS = 4096

# Initializations that replace the base model's weights, in training and whenever PEFT loads such an adapter, and their names by the start.
CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")
# Those that do not. `lora_ga` does in training alone: what PEFT loads it adds to the base model as that is.
KEEP_THE_BASE = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")

# Those of `REFUSED` that an adapter may have which is merged into its base model.
MERGED = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices")
# Fields that stand for a layer that computes something else, or for other layers, where they are set.
REFUSED = {
    "use_dora": "DoRA divides by norms of the changed weights",
    "lora_bias": "biases are not changed",
    "modules_to_save": "whole modules are not replaced",
    "trainable_token_indices": "embeddings are not changed",
    "target_parameters": "experts' stacked weights are not changed",
    "alora_invocation_tokens": "an adapter holds for a whole text, not from a token on",
    "layer_replication": "the model's layers are what they are",
    "use_qalora": "inputs are not pooled",
    "use_bdlora": "block-diagonal matrices are not read",
    "arrow_config": "adapters are not mixed by a router",
    "kasa_config": "it truncates the base model's weights",
    "monteclora_config": "weights are not sampled",
    "enable_lora": "it is of PEFT before 0.3, whose merged matrices are not read",
}


@dataclass(frozen=True)
class AdapterConfig:
    """What adapter_config.json says of pairs."""

    rank: int
    alpha: float
    has_rank_stabilized_scale: bool
    ranks: list[tuple[NamePattern, int]]
    alphas: list[tuple[NamePattern, float]]
    base: str | None
    has_inputs_first: bool = False
    """fan_in_fan_out: the base model's matrices are stored with a row for each input."""
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Of embeddings, by the end of their names, the rows that are replaced."""

    def rank_of(self, module: str) -> int:
        """Rows of A."""
        return next((rank for pattern, rank in self.ranks if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """What B @ A is multiplied by."""
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.matches(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.has_rank_stabilized_scale else rank)

    def tokens_of(self, module: str) -> list[int] | None:
        """The rows of an embedding that are replaced; None: it is not said which."""
        ends = (tokens for end, tokens in self.tokens.items() if f".{module}".endswith(f".{end}"))
        return next(ends, None)


def parse(fields: dict[str, Any], *, is_merged: bool = False) -> AdapterConfig:
    """`is_merged`: of an adapter that is merged into its base model. Raises UnusableModel, which names the field."""
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise _unusable("peft_type", fields, "only LORA is served")
    for name, why in REFUSED.items():
        if fields.get(name) and not (is_merged and name in MERGED):
            raise _unusable(name, fields, f"{why}{_way_out(name)}")
    if fields.get("bias", "none") != "none" and not is_merged:
        raise _unusable("bias", fields, f"biases are not changed: {ALONE}")
    _check_initialization(fields)
    is_stabilized = fields.get("use_rslora", False)
    if not isinstance(is_stabilized, bool):
        raise _unusable("use_rslora", fields, "it has to be true or false")
    base = fields.get("base_model_name_or_path")
    return AdapterConfig(
        _rank(fields.get("r", 8), "r"),
        _alpha(fields.get("lora_alpha", 8), "lora_alpha"),
        is_stabilized,
        _patterns(fields, "rank_pattern", _rank),
        _patterns(fields, "alpha_pattern", _alpha),
        base if isinstance(base, str) and base else None,
        bool(fields.get("fan_in_fan_out")),
        _tokens(fields),
    )


def _tokens(fields: dict[str, Any]) -> dict[str, list[int]]:
    """Of trainable_token_indices; a list alone is of the embedding."""
    given = fields.get("trainable_token_indices") or {}
    by_name = given if isinstance(given, dict) else {"embed_tokens": given}
    for tokens in by_name.values():
        is_list = isinstance(tokens, list)
        if not is_list or not all(type(one) is int and 0 <= one < 1 << 31 for one in tokens):
            raise _unusable(
                "trainable_token_indices",
                fields,
                "it has to be a list of token ids, or of each embedding one",
            )
    return by_name


def _way_out(field: str) -> str:
    # What begins with a token is in no weights.
    return "" if field == "alora_invocation_tokens" else f": {ALONE if field in MERGED else MERGE}"


def _check_initialization(fields: dict[str, Any]) -> None:
    """Refuses what was trained beside other weights than those that are served."""
    how = fields.get("init_lora_weights", True)
    if isinstance(how, bool) or how is None:
        return
    if isinstance(how, str):
        how = how.lower()
        if how in KEEP_THE_BASE:
            return
        if how.startswith(CHANGE_THE_BASE):
            save = "or save it by peft with path_initial_model_for_weight_conversion, which makes a plain adapter of it"
            ways = MERGE if how == "loftq" else f"{MERGE}, {save}"
            raise _unusable("init_lora_weights", fields, f"it changes the base model's weights: {ways}")
    raise _unusable(
        "init_lora_weights", fields, "it is not known whether that changes the base model's weights"
    )


def _patterns(
    fields: dict[str, Any], name: str, number: Callable[[Any, str], N]
) -> list[tuple[NamePattern, N]]:
    """Of rank_pattern or alpha_pattern, in their order: the first that matches counts."""
    given = fields.get(name) or {}
    if not isinstance(given, dict):
        raise _unusable(name, fields, "it has to be an object of patterns and numbers")
    if len(given) > MOST_PATTERNS:
        raise UnusableModel(
            f"{ADAPTER}: {name} has {len(given)} patterns, and at most {MOST_PATTERNS} are read"
        )
    found = []
    for pattern, value in given.items():
        place = f"{name}[{_shown(pattern)}]"
        try:
            found.append((NamePattern(pattern), number(value, place)))
        except ValueError as error:
            raise UnusableModel(f"{ADAPTER}: {place}: {error}") from error
    return found


def _rank(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_RANK:
        raise UnusableModel(
            f"{ADAPTER}: {place} is {_shown(value)}, and ranks are whole numbers from 1 to {LARGEST_RANK}"
        )
    return value


def _alpha(value: Any, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e30:
        return float(value)
    raise UnusableModel(f"{ADAPTER}: {place} is {_shown(value)}, and it has to be a number up to 1e30")


def _unusable(name: str, fields: dict[str, Any], why: str) -> UnusableModel:
    said = f"{name} is {_shown(fields[name])}" if name in fields else f"no {name}"
    return UnusableModel(f"{ADAPTER}: {said}, and {why}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
