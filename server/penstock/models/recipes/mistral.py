"""Mistral: Llama with, in its first version, a sliding window in every layer."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

NAMES = llama.NAMES


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    window = Fields(config).whole("sliding_window", 0)
    return replace(llama.read_config(config), windows=(Window(window) if window else None,))
