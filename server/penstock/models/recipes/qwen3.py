"""Qwen 3: Llama with normalised queries and keys."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2

KEYS = replace(llama.KEYS, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    read = llama.read_config({"head_dim": 128, **config})
    return qwen2.within_a_chunk(config, qwen2.windowed(config, replace(read, qk_norm=read.norm)))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
