"""What can be said against a model's folder at once: from its JSON files and the headers of its weights.

Made by the worker before it imports torch, and by the doctor. What needs a recipe (names and shapes of tensors,
shards) is found by `checkpoint` when the recipe is rehearsed. Must not import torch.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.loading.contents import catalogue
from penstock.loading.model_files import (
    Contents,
    check_present,
    read_config,
    weight_files,
)


def check_folder(folder: Path, trusted: bool = False) -> dict[str, Any]:
    """config.json of a folder that nothing is wrong with so far, `quantization.with_what_is_beside` it. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights (--trust-remote-code).
    """
    config = read_config(folder)
    quantization.refuse(config, folder)
    held = check_weights(folder, trusted)
    check_numbers(config, None if held.files.pickled else len(held.stored))
    quantization.refuse(config, folder, held.stored)
    return quantization.with_what_is_beside(config, folder)


# Numbers of config.json that something is made of for each of, before it can be compared with the weights.
LAYERS = re.compile("n_layers?|num_(?:hidden_|decoder_)?layers|(?:en|de)coder_layers")
HEADS_AND_EXPERTS = re.compile(r".*(?:head|expert).*")
MOST = 65_536


def check_numbers(config: dict[str, Any], tensors: int | None) -> None:
    """Raises UnusableModel, naming the field, where a number is beyond any model, or there are more layers than
    `tensors` in the weights: every layer has one at least. None: it is not known how many there are.
    """
    for name, value in _numbers(config):
        if LAYERS.fullmatch(name) and tensors is not None and value > tensors:
            raise UnusableModel(f"config.json: {name} is {value}, and the weights hold {tensors} tensors")
        if (LAYERS.fullmatch(name) or HEADS_AND_EXPERTS.fullmatch(name)) and value > MOST:
            raise UnusableModel(f"config.json: {name} is {value}, and at most {MOST} are supported")


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers of config.json and of the objects in it, with their names."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def check_weights(folder: Path, trusted: bool = False) -> Contents:
    """What the weight files hold. Of pickled ones, nothing is known before they are loaded."""
    files = weight_files(folder, trusted)
    if files.pickled:
        check_present(folder, files)
        return Contents(files, {}, {})
    return catalogue(folder, files)
