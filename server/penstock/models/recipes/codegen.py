"""CodeGen 1: GPT-J with one matrix for queries, keys and values, in four parts as on the hardware it was trained on."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gptj

KEYS = replace(
    gptj.KEYS,
    q="",
    k="",
    v="",
    qkv="attn.qkv_proj",
    qkv_order="quarters",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.causal_mask",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    read = gptj.read_config(config)
    if read.heads % 4:
        raise UnusableModel(f"config.json: n_head is {read.heads}, no multiple of 4")
    return read


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
