"""Qwen 3 with experts."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen2_moe, qwen3

KEYS = replace(qwen3.KEYS, experts=qwen2_moe.KEYS.experts)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return qwen2_moe.with_experts(config, qwen3.read_config(config))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
