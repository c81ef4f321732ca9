"""Every `general.architecture` that is read. Must not import torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.gguf.container import Header
from penstock.gguf.layout import Layout


@dataclass(frozen=True)
class Architecture:
    """What is read of the files of one architecture."""

    config: Callable[[Header], dict[str, Any]]
    """config.json, as transformers would save it. Raises UnusableModel, naming the field of the metadata."""
    layout: Callable[[Header, dict[str, Any]], Layout]
    """Of what each tensor is made that the recipe asks for, of the header and of that config.json. The file need not have them all: what is
    missing is found where it is asked for."""


ARCHITECTURES: dict[str, Architecture] = {}
"""By `general.architecture`."""
