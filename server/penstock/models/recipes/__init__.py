"""Families of models: one module each, whose RECIPE maps config.json and checkpoint names to a model's choices."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import UnusableModel
from penstock.layers.rope import with_scaling
from penstock.loading import checkpoint as checkpoints
from penstock.loading.checkpoint import Checkpoint
from penstock.models.architectures import RECIPES, architecture_of, as_named, other_versions
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.encoder_decoder import EncoderDecoder
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.packing import Quantizer
from penstock.models.recipe import DecoderRecipe, EncoderDecoderRecipe
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels.later import torch


def served_architecture(config: dict[str, Any]) -> str:
    """The architecture to serve, or an error that names it."""
    name = architecture_of(config)
    if name is None:
        shown = as_named(config) or "none"
        raise UnusableModel(
            f"config.json: unsupported architecture {shown}; docs/models.md lists the {len(RECIPES)} that are supported{other_versions(config)}"
        )
    return name


def recipe_of(config: dict[str, Any]) -> DecoderRecipe | EncoderDecoderRecipe:
    """The recipe of the architecture. Raises UnusableModel."""
    module = import_module(f"{__name__}.{RECIPES[served_architecture(config)]}")
    recipe: DecoderRecipe | EncoderDecoderRecipe = module.RECIPE
    return recipe


def read_config(config: dict[str, Any]) -> DecoderConfig | EncoderDecoderConfig:
    """The model that config.json describes; needs no weights."""
    return recipe_of(config).shape(with_scaling(config))


def load_from(
    config: dict[str, Any],
    checkpoint: Checkpoint,
    group: TensorGroup = ALONE,
    quantizer: Quantizer | DeviceQuantizer | None = None,
) -> Decoder | EncoderDecoder:
    """Takes a rank's part of the model from a checkpoint."""
    return recipe_of(config).load(with_scaling(config), checkpoint, group, quantizer)


def load(
    config: dict[str, Any],
    folder: Path,
    dtype: Any,
    device: Any,
    group: TensorGroup = ALONE,
    trusted: bool = False,
    quantizer: Quantizer | DeviceQuantizer | None = None,
    in_torch: bool = True,
) -> Decoder | EncoderDecoder:
    """Reads a rank's part of the model in `folder` with the recipe of its architecture.

    `trusted`: the user has agreed to pickled weights. `quantizer`: how its matrices are held. `dtype` and
    `device` are torch's, or of `tensors` and `host`. `in_torch`: torch will run it; else its tensors stay numpy's.
    """

    def build(checkpoint: Checkpoint) -> Decoder | EncoderDecoder:
        model = load_from(config, checkpoint, group, quantizer)
        model.parameters = checkpoint.parameters
        if checkpoint.torch_device is not None:
            model.to_torch(checkpoint.torch_device)
        return model

    model = checkpoints.load(
        folder,
        dtype,
        device,
        build,
        trusted,
        tells=group.rank == 0,
        in_torch=in_torch and (quantizer is None or quantizer.in_torch),
        group=group,
    )
    if group.pipeline is not None:
        # Each stage has asked for its own tensors only.
        own = torch.tensor([model.parameters - model.repeated_parameters])
        model.parameters = int(group.everyone.all_reduce(own)) // group.size
    return model
