"""VaultGemma: Gemma 2 without norms of what a branch gives."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma2, llama

KEYS = replace(llama.KEYS, feed_forward_norm="pre_feedforward_layernorm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return replace(gemma2.read_config(config), branch_norm=False)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
