"""The text of PaddleOCR-VL: ERNIE 4.5 whose rotary planes are halves."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import ernie4_5

KEYS = ernie4_5.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(ernie4_5.read_config(config), interleaved=False)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
