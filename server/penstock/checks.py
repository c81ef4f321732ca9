"""What can be said against a model's folder at once: from its JSON files and the headers of its weights.

Made by the worker before it imports torch, and by the doctor. What needs a recipe (names and shapes of tensors,
shards) is found by `penstock.weights` when the recipe is rehearsed. Must not import torch.
"""

from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.model_files import Stored, WeightFiles, catalogue, check_present, read_config, weight_files


def check_folder(folder: Path, trusted: bool = False) -> dict[str, Any]:
    """config.json of a folder that nothing is wrong with so far. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights (--trust-remote-code).
    """
    config = read_config(folder)
    quantization.refuse(config, folder)
    _, stored = check_weights(folder, trusted)
    quantization.refuse(config, folder, stored)
    return config


def check_weights(folder: Path, trusted: bool = False) -> tuple[WeightFiles, dict[str, Stored]]:
    """The weight files and what they hold. Of pickled ones, nothing is known before they are loaded."""
    files = weight_files(folder, trusted)
    if files.pickled:
        check_present(folder, files)
        return files, {}
    return files, catalogue(folder, files)
