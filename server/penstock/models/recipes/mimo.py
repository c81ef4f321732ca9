"""MiMo 7B: Qwen 2 with layers that predict further tokens, which are not used.

Source: the published config.json as tests of Megatron Bridge and of a C++ engine quote it; transformers has no such class.
"""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen2

KEYS = replace(qwen2.KEYS, ignored=(*qwen2.KEYS.ignored, r"model\.mtp_layers\..*"))


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices. `attention_bias` is of queries, keys and values alone."""
    return qwen2.read_config({**config, "attention_bias": False})


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
