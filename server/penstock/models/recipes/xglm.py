"""XGLM: OPT's layers behind scaled embeddings, and positions that are sines and cosines of fixed frequencies."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import opt
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

KEYS = replace(
    opt.KEYS,
    prefixes=("model.", ""),
    positions="",
    norm="layer_norm",
    # Some checkpoints hold the positions, which are computed.
    ignored=(r"(model\.)?embed_positions\.weights",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("add_cross_attention", False)
    named = {
        "hidden_size": fields.count("d_model", "hidden_size", default=1024),
        "num_attention_heads": fields.count("attention_heads", "num_attention_heads", default=16),
        "num_hidden_layers": fields.count("num_layers", "num_hidden_layers", default=24),
        "activation_function": fields.activation("activation_function", default="gelu"),
    }
    read = opt.read_config({**config, **named})
    scaled = fields.flag("scale_embedding", True)
    return replace(read, embedding_scale=math.sqrt(read.width) if scaled else 1.0)


class XglmLoader(Loader):
    """Computes the positions."""

    def positions(self) -> Tensor:
        """Sines of the positions times each frequency, then cosines: transformers' table, rounded as there."""
        rows, width = self.config.learned_positions, self.config.width
        half = width // 2
        steps = np.arange(half, dtype=np.float64) * -(math.log(10000) / (half - 1))
        frequencies = np.exp(steps).astype(np.float32)
        angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
        found = self.checkpoint.new((rows, width))
        table = np.concatenate((np.sin(angles), np.cos(angles)), 1)
        found[:, : 2 * half] = tensors.of(table, tensors.float32)
        if width > 2 * half:
            found[:, -1] = 0
        return found


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, XglmLoader)
