"""Which implementation runs a model: a recipe of ours where there is one, else the fallback."""

from pathlib import Path
from typing import Any

import torch

from penstock.models import fallback, native, recipes
from penstock.models.architectures import architecture_of
from penstock.models.model import Model
from penstock.parallel.group import TensorGroup


def uses_fallback(config: dict[str, Any], implementation: str) -> bool:
    """Whether a model runs through transformers, by its config.json and --model-impl."""
    if implementation == "auto":
        return architecture_of(config) is None
    return implementation == "transformers"


def load(
    config: dict[str, Any],
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorGroup,
    trusted: bool,
    implementation: str,
    quantize: str = "",
    quantize_head: bool = False,
) -> tuple[str, Model]:
    """The name of what serves the model, and a rank's part of it. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights and to code of the repository (--trust-remote-code). `quantize`: int8 or
    int4, of the weights of layers and, with `quantize_head`, of the head.
    """
    quantizer = None
    if quantize:
        shape = None if uses_fallback(config, implementation) else recipes.read_config(config)
        quantizer = native.quantizer(shape, dtype, device, group, quantize, quantize_head)
    if uses_fallback(config, implementation):
        return fallback.RECIPE, fallback.load(config, folder, dtype, device, group, trusted)
    model = recipes.load(config, folder, dtype, device, group, trusted, quantizer)
    return recipes.served_architecture(config), native.on_cpu_engine(model, dtype, device, group)
