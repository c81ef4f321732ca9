"""Command R: both branches of a layer read one norm, planes are interleaved, logits are scaled."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = replace(llama.KEYS, feed_forward_norm="", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    norm = fields.norm("layer_norm_eps", 1e-5, layer=True)
    # Command R and R+ have in `model_max_length` what they were trained for, and 8192 in the usual place.
    positions = fields.count("model_max_length", "max_position_embeddings", default=8192)
    return replace(
        llama.read_config({**config, "max_position_embeddings": positions}),
        norm=norm,
        parallel=True,
        interleaved=True,
        qk_norm=norm if fields.flag("use_qk_norm") else None,
        qk_norm_over="heads",
        logit_scale=fields.number("logit_scale", default=0.0625),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
