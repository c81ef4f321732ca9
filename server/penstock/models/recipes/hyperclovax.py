"""HyperCLOVA X SEED: Granite 3, with norms of what each branch gives where config.json asks for them."""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import granite
from penstock.models.recipes.fields import Fields


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Those of Granite, and of the further norms."""
    if not Fields(config).flag("use_post_norm"):
        return granite.KEYS
    return replace(granite.KEYS, attention_out_norm="post_norm1", feed_forward_out_norm="post_norm2")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    _, _, head_dim = fields.heads()
    default = {"attention_multiplier": head_dim**-0.5}
    given = {name: value for name, value in config.items() if value is not None}
    # Granite divides logits; here they are multiplied.
    return replace(
        granite.read_config({**default, **given}),
        branch_norm=fields.flag("use_post_norm"),
        logit_scale=fields.number("logits_scaling", default=1.0),
    )


RECIPE = DecoderRecipe(read_config, keys)
