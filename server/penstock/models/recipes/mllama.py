"""The text of Llama 3.2 Vision: Llama's layers, without those that attend to an image, which a text passes by."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.text_of_vision_models import text_config, text_keys

# Behind the vocabulary, in the embedding alone: the token of an image and seven that stand for nothing.
FURTHER = 8
ACROSS = (3, 8, 13, 18, 23, 28, 33, 38)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = text_config(config, {"max_position_embeddings": 131072})
    if not text.get("rope_parameters"):
        text.setdefault("rope_theta", 500000.0)
    read = llama.read_config({**text, "num_hidden_layers": len(_own_layers(text))})
    return replace(read, further_embeddings=FURTHER)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Layers keep the numbers that they have among all."""
    text = text_config(config, {})
    found, own = text_keys(llama.KEYS), _own_layers(text)
    across = "|".join(str(at) for at in range(Fields(text).count("num_hidden_layers")) if at not in own)
    ignored = (*found.ignored, rf"(?:.*\.)?layers\.(?:{across})\..*") if across else found.ignored
    return replace(found, numbers=own, ignored=ignored)


def _own_layers(text: dict[str, Any]) -> tuple[int, ...]:
    """The numbers of the layers that attend to text."""
    count, across = Fields(text).count("num_hidden_layers"), text.get("cross_attention_layers")
    if across is None:
        across = [at for at in ACROSS if at < count]
    if not isinstance(across, list) or not all(type(at) is int and 0 <= at < count for at in across):
        raise UnusableModel(f"config.json: cross_attention_layers is not a list of numbers below {count}")
    own = tuple(at for at in range(count) if at not in across)
    if not own:
        raise UnusableModel("config.json: cross_attention_layers names every layer")
    return own


RECIPE = DecoderRecipe(read_config, keys)
