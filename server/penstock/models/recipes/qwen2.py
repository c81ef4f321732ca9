"""Qwen 1.5 and 2: Llama with biases of queries, keys and values; the last layers may have a sliding window. Of Qwen 2.5 1M, and of
what else has dual chunk attention, sequences are as long as one chunk.
"""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, Window
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return within_a_chunk(config, windowed(config, replace(llama.read_config(config), qkv_bias=True)))


def windowed(config: dict[str, Any], read: DecoderConfig) -> DecoderConfig:
    """With the window that `use_sliding_window` gives to the layers from `max_window_layers` on."""
    fields = Fields(config)
    if not fields.flag("use_sliding_window") or config.get("sliding_window") is None:
        return read
    first = fields.whole("max_window_layers", 28)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(read.num_layers)]
    kinds = fields.layer_kinds(read.num_layers, default)
    window = Window(fields.count("sliding_window"))
    return read.with_layers(window=[window if kind == "sliding_attention" else None for kind in kinds])


def within_a_chunk(config: dict[str, Any], read: DecoderConfig) -> DecoderConfig:
    """For sequences in which dual chunk attention (An et al., "Training-Free Long-Context Scaling of Large Language Models", 2024) is
    attention as ever: in longer ones, which are not served, it clips distances and scales scores.
    """
    if config.get("dual_chunk_attention_config") is None:
        return read
    chunks = Fields(config).part("dual_chunk_attention_config")
    size = chunks.count("chunk_size", default=8192)
    original = chunks.whole("original_max_position_embeddings", 0) or size  # 0: scores are not scaled
    return replace(read, max_positions=min(read.max_positions, size, original))


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
