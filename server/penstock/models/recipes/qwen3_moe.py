"""Qwen 3 with experts."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipes import qwen2_moe, qwen3

NAMES = replace(qwen3.NAMES, experts=qwen2_moe.NAMES.experts)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return qwen2_moe.with_experts(config, qwen3.read_config(config))
