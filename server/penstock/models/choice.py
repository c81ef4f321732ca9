"""Which implementation runs a model: a recipe of ours where there is one, else the fallback."""

from pathlib import Path
from typing import Any

import torch

from penstock.models import fallback, native, recipes
from penstock.models.architectures import architecture_of
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder
from penstock.models.model import Model
from penstock.models.packed_cache import PackedCache
from penstock.models.recorder import record
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
    packed_cache: PackedCache | None = None,
) -> tuple[str, Model]:
    """The name of what serves the model, and a rank's part of it. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights and to code of the repository (--trust-remote-code). `quantize`: int8 or
    int4, of the weights of layers and, with `quantize_head`, of the head. `packed_cache`: where packed weights are kept, if they are.
    """
    shape = None if uses_fallback(config, implementation) else recipes.read_config(config)
    quantizer = None
    if quantize:
        quantizer = native.quantizer(shape, dtype, device, group, quantize, quantize_head)
    if shape is None:
        return fallback.RECIPE, fallback.load(config, folder, dtype, device, group, trusted)
    name = recipes.served_architecture(config)
    runs = native.instruction_set(shape, dtype, device, group)
    entry = None
    if runs is not None and packed_cache is not None:
        entry = packed_cache.entry(folder, config, trusted, quantizer, runs)
    found = None if entry is None else entry.find()
    if found is not None:
        assert isinstance(shape, DecoderConfig) and runs is not None, "the engine serves no other"
        return name, native.on_cpu_engine(shape, found.parameters, found.recording, runs)
    model = recipes.load(config, folder, dtype, device, group, trusted, quantizer)
    if runs is None:
        return name, model
    assert isinstance(model, Decoder), "the engine serves no other"
    recording = record(model)
    if entry is not None:
        entry.take(recording, model.parameters)
    return name, native.on_cpu_engine(model.config, model.parameters, recording, runs)
