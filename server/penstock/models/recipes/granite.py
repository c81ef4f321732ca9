"""Granite 3: Llama with a factor at every place where numbers are added."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    scaling = fields.number("logits_scaling", default=1.0)
    if scaling == 0:
        raise UnusableModel("config.json: logits_scaling is 0")
    return replace(
        llama.read_config(config),
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        scale=fields.number("attention_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        logit_scale=1 / scaling,
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
