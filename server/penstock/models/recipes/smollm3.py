"""SmolLM3: Llama with layers that know no positions."""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, qwen2
from penstock.models.recipes.fields import Fields

KEYS = llama.KEYS


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"rope_theta": 2000000.0, **config})
    interval = fields.count("no_rope_layer_interval", default=4)
    rotated = config.get("no_rope_layers")  # in spite of its name: 1 where a layer is rotated
    if rotated is None:
        rotated = [int((i + 1) % interval != 0) for i in range(read.num_layers)]
    if not isinstance(rotated, list) or len(rotated) != read.num_layers or set(rotated) - {0, 1}:
        raise UnusableModel(f"config.json: no_rope_layers is not a list of {read.num_layers} times 0 or 1")
    read = replace(read, tied_head=fields.flag("tie_word_embeddings", True)).with_layers(
        rope=[layer.rope if here else None for layer, here in zip(read.layers, rotated, strict=True)]
    )
    # With windows, layers that know positions have none.
    kinds = ["full_attention" if here else "sliding_attention" for here in rotated]
    return qwen2.windowed({**config, "layer_types": fields.layer_kinds(read.num_layers, kinds)}, read)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS)
