"""The text of Mistral Small 3.1 and 3.2, which read images, too."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipes import mistral
from penstock.models.recipes.beside_images import text_config, text_names
from penstock.models.recipes.fields import Fields

NAMES = text_names(mistral.NAMES)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_config(config, {})
    # Ministral 3 has another text model, which scales queries by their position.
    Fields(text).refuse("model_type", "mistral")
    return mistral.read_config(text)
