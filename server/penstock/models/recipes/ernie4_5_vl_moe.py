"""The text of ERNIE 4.5 VL: ERNIE 4.5 with experts, of which tokens of text go to the first half; those of images, which
come after them in the same tensors' names, stay in the file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import ernie4_5_moe
from penstock.models.recipes.ernie4_5_moe import ErnieLoader
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

# Fields of which published configurations give a list: of text, then of images.
OF_BOTH = (
    "moe_intermediate_size",
    "moe_num_experts",
    "moe_layer_start_index",
    "moe_layer_end_index",
)


def of_text(config: dict[str, Any]) -> dict[str, Any]:
    """config.json with the first of each list."""
    lists = {name: config[name][0] for name in OF_BOTH if isinstance(config.get(name), list) and config[name]}
    return {**config, **lists, "rope_scaling": None}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(of_text(config))
    read = ernie4_5_moe.read_config(fields.config)
    if config.get("mlp_layer_types") is None:
        return read
    experts = ernie4_5_moe.experts_of(fields)
    return read.with_layers(
        experts=[experts if here else None for here in fields.sparse_layers(read.num_layers)]
    )


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Those of ERNIE 4.5; experts of images, and what chooses them, are not used."""
    read = read_config(config)
    count = max(layer.experts.count for layer in read.layers if layer.experts is not None)
    of_images = "|".join(str(count + at) for at in range(count))
    return replace(
        ernie4_5_moe.KEYS,
        ignored=(
            *ernie4_5_moe.KEYS.ignored,
            rf"(?:.*\.)?layers\.\d+\.mlp\.(?:experts\.(?:{of_images})\..*|gate\.weight_1)",
        ),
    )


class ErnieTextLoader(ErnieLoader):
    """Reads the router, (E, X), and the correction, which has a row for text and one for images."""

    router_transposed = True

    def correction(self, at: str, choice: ExpertsConfig) -> Tensor:
        """(X,) fp32."""
        assert self.keys.experts is not None
        name = at + self.keys.experts.correction
        return self.checkpoint.tensor(name, (2, choice.count), dtype=tensors.float32)[0]


RECIPE = DecoderRecipe(read_config, keys, ErnieTextLoader)
