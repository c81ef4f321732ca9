"""Falcon Mamba: Mamba whose rates, B and C are normalised, without weights."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mamba
from penstock.models.recipes.fields import Fields


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    eps = fields.number("mixer_rms_eps", default=1e-6)
    mixer = replace(mamba.state_space(fields), norms=(True, eps), weighted_norms=False)
    return mamba.without_attention(fields, mixer, tied=True)


RECIPE = DecoderRecipe(read_config, lambda _: mamba.KEYS, mamba.MambaLoader)
