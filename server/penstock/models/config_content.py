"""The shape of a model as JSON and back: of the packed cache, whose starts read no recipe. Must not import torch."""

from dataclasses import fields, is_dataclass
from typing import Any

from penstock.layers import rope
from penstock.models import config, encoder_decoder_config, recurrent_config
from penstock_kernels import routing

KIND = "kind"
KINDS: dict[str, Any] = {
    name: kind
    for module in (config, encoder_decoder_config, recurrent_config, rope, routing)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


def content_of(value: Any) -> Any:
    """Of a value in a shape: choices are frozen dataclasses and tuples of numbers, words and choices."""
    if is_dataclass(value):
        kind = type(value).__name__
        assert KINDS.get(kind) is type(value), f"{kind} is no part of a shape"
        return {KIND: kind, **{one.name: content_of(getattr(value, one.name)) for one in fields(value)}}
    if isinstance(value, tuple):
        return [content_of(one) for one in value]
    return value


def value_of(content: Any) -> Any:
    """The other way round. Raises KeyError, TypeError or ValueError."""
    if isinstance(content, dict):
        made = KINDS[content[KIND]]
        return made(**{name: value_of(one) for name, one in content.items() if name != KIND})
    if isinstance(content, list):
        return tuple(value_of(one) for one in content)
    return content
