"""The text of Qwen 3.5, alone or as published with a tower for images: Qwen3-Next with a matrix for each part of its
recurrent layers, and a dense feed-forward layer.
"""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen3_next
from penstock.models.recipes.text_of_vision_models import text_config
from penstock.models.recurrent_config import DeltaConfig
from penstock.models.recurrent_loader import Part, scaled

# Positions of images are in three parts; of text all are the same, and its rotary table is the usual one.
KEYS = replace(
    qwen3_next.KEYS,
    embedding="embed_tokens",
    layer="layers.{}.",
    norm="norm",
    prefixes=("model.language_model.", "model."),
    experts=None,
    ignored=(qwen3_next.FURTHER, r"model\.visual\..*"),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return qwen3_next.hybrid(text_of(config))


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The text model's config.json. Whether the head is tied is said of the whole model, too."""
    if "text_config" not in config:
        return config
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    return {**text_config(config, {}), **tied}


class PartsLoader(qwen3_next.DeltaLoader):
    """Reads gated delta rules whose parts are matrices by themselves, in the order of heads."""

    def delta_parts(self, at: str, mixer: DeltaConfig, mine: range) -> list[Part]:
        """Queries, keys and values, gates z, b and a."""
        shared = mixer.value_heads // mixer.key_heads
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        rows = [
            *scaled([mine], mixer.key_dim),
            *scaled([mine], mixer.key_dim, keys),
            *scaled([mine], shared * mixer.value_dim, 2 * keys),
        ]
        return [
            (at + "in_proj_qkv", 2 * keys + values, rows),
            (at + "in_proj_z", values, scaled([mine], shared * mixer.value_dim)),
            (at + "in_proj_b", mixer.value_heads, scaled([mine], shared)),
            (at + "in_proj_a", mixer.value_heads, scaled([mine], shared)),
        ]


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, PartsLoader)
