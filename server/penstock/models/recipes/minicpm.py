"""MiniCPM 1, 2, 4 and 4.1: Llama with a factor wherever numbers are added, under other names than Granite's.

Source: the model's code as vLLM and SGLang (minicpm.py) cite it; transformers has no such class. MiniCPM 4.1 chooses keys in sequences longer than
`dense_len`, which is not served: with `sparse_config` that is the longest sequence.
"""

import math
from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    for name in ("num_experts", "mixer_types"):
        if config.get(name):
            raise UnusableModel(
                f"config.json: {name} is {config[name]!r}; of MiniCPM only Llama's kind of layers is served"
            )
    positions = fields.count("max_position_embeddings", default=2048)
    if config.get("sparse_config") is not None:
        positions = min(positions, fields.part("sparse_config").count("dense_len", default=8192))
    read = llama.read_config({"rms_norm_eps": 1e-6, **config})
    return replace(
        read,
        max_positions=min(read.max_positions, positions),
        embedding_scale=fields.number("scale_emb", default=1.0),
        residual_scale=fields.number("scale_depth", default=1.0) / math.sqrt(read.num_layers),
        logit_scale=fields.number("dim_model_base", default=float(read.width)) / read.width,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


RECIPE = DecoderRecipe(read_config, lambda _: llama.KEYS)
