"""The text of Mistral Small 3.1 and 3.2 and of Ministral 3, which read images, too."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import ministral3, mistral
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.text_of_vision_models import text_config, text_keys

KEYS = text_keys(mistral.KEYS)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_config(config, {})
    Fields(text).refuse("model_type", "mistral", "ministral3")
    if text.get("model_type") == "ministral3":
        return ministral3.read_config(text)
    return mistral.read_config(text)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
