"""Which recipe serves which architecture, as `architectures` of config.json names it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from penstock.errors import UnusableModel
from penstock.models.decoder import Decoder, DecoderConfig
from penstock.models.recipes import llama
from penstock.weights import Checkpoint


@dataclass(frozen=True)
class Recipe:
    """What a family's file offers."""

    read_config: Callable[[dict[str, Any]], DecoderConfig]  # checks config.json and names its choices
    load: Callable[[DecoderConfig, Checkpoint], Decoder]  # takes the weights by the family's names
    ignored: re.Pattern[str]  # tensors that a checkpoint may hold and the model does not need


RECIPES = {"LlamaForCausalLM": Recipe(llama.read_config, llama.load, llama.IGNORED)}


def recipe_of(config: dict[str, Any]) -> str:
    """The architecture to serve, or an error that names it."""
    names = config.get("architectures")
    if isinstance(names, list):
        for name in names:
            if name in RECIPES:
                return str(name)
    shown = ", ".join(map(str, names)) if isinstance(names, list) and names else "none"
    raise UnusableModel(f"config.json: unsupported architecture {shown}; supported: {', '.join(RECIPES)}")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """The decoder that config.json describes; needs no weights."""
    return RECIPES[recipe_of(config)].read_config(config)


def load(config: dict[str, Any], folder: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Reads the model in `folder` with the recipe of its architecture."""
    recipe = RECIPES[recipe_of(config)]
    with Checkpoint(folder, dtype, device) as checkpoint:
        decoder = recipe.load(recipe.read_config(config), checkpoint)
        checkpoint.check_all_used(recipe.ignored)
    return decoder
