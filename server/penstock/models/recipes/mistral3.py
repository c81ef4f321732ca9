"""The text of Mistral Small 3.1 and 3.2, which read images, too."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mistral
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.text_of_vision_models import text_config, text_keys

KEYS = text_keys(mistral.KEYS)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_config(config, {})
    # Ministral 3 has another text model, which scales queries by their position.
    Fields(text).refuse("model_type", "mistral")
    return mistral.read_config(text)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
