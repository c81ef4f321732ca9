"""Names of modules: an adapter has those of the classes that it was trained with, a checkpoint those of its files. Must not import torch."""

import re

# In front of a layer's number a module's path has these names alone, or what it leads to is no part of the text's layers.
TEXT = frozenset(
    [
        "model",
        "language_model",
        "text_model",
        "transformer",
        "decoder",
        "backbone",
        "gpt_neox",
        "layers",
        "h",
        "blocks",
        "thinker",
        "llm",
    ]
)


def tail_of(module: str) -> str:
    """What is left of a module's path without the names that differ between files and classes: from the layer's number on. Of what is no
    part of the text, or has no number, all of it.
    """
    found = re.match(r"([^0-9]*)\.(\d+\..+)", module)
    if found is None or not TEXT.issuperset(found[1].split(".")):
        return module
    return found[2]


def without_text(name: str) -> str:
    """A module's path, or a tensor's, without the names in front that differ between files and classes."""
    parts = name.split(".")
    begin = next((at for at, part in enumerate(parts) if part not in TEXT), 0)
    return ".".join(parts[begin:])
