"""The text of Gemma 3 4B, 12B and 27B, which read images, too."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import gemma3
from penstock.models.recipes.text_of_vision_models import text_config, text_keys

KEYS = text_keys(gemma3.KEYS)

# Of transformers' Gemma3TextConfig, where it is not what the recipe takes by itself.
DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return gemma3.read_config(text_config(config, DEFAULTS))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
