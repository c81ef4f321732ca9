"""Models that read images, too: their text is served with the recipe of the family that it comes from, and what reads
images stays in the file.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.recipes.fields import Fields

# The encoder of images, and what brings its numbers to the width of the text model.
IMAGES = (r"(vision_tower|multi_modal_projector)\..*",)


def text_keys(keys: CheckpointKeys) -> CheckpointKeys:
    """What the tensors of the text model are called within the whole."""
    head = f"language_model.{keys.head}"
    return replace(keys, prefixes=("language_model.",), head=head, ignored=(*keys.ignored, *IMAGES))


def text_config(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The text model's config.json. `defaults`: what published ones leave out."""
    return {**defaults, **Fields(config).part("text_config").config}
