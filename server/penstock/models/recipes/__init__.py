"""Families of models: one module each, which maps config.json and checkpoint names to the decoder's choices.

A recipe has `read_config`, its `NAMES` (or `names(config)` where they depend on it), and, where a part of the
checkpoint has a layout of its own, a `LOADER`.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from penstock import weights
from penstock.errors import UnusableModel
from penstock.models.architectures import RECIPES, architecture_of, architectures
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder
from penstock.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from penstock.models.loading import Loader
from penstock.parallel import ALONE, TensorGroup
from penstock.weights import Checkpoint


def recipe_of(config: dict[str, Any]) -> str:
    """The architecture to serve, or an error that names it."""
    name = architecture_of(config)
    if name is None:
        shown = ", ".join(architectures(config)) or "none"
        raise UnusableModel(
            f"config.json: unsupported architecture {shown}; supported: {', '.join(sorted(RECIPES))}"
        )
    return name


def read_config(config: dict[str, Any]) -> DecoderConfig | EncoderDecoderConfig:
    """The model that config.json describes; needs no weights."""
    read: DecoderConfig | EncoderDecoderConfig = _module(config).read_config(config)
    if isinstance(read, EncoderDecoderConfig):
        return read
    for rope in read.ropes:
        if rope.head_dim % 2 or not 0 < rope.head_dim <= max(
            read.head_dim, read.latent.rope_dim if read.latent else 0
        ):
            raise UnusableModel(
                f"config.json: {rope.head_dim} of head_dim {read.head_dim} are rotated, not an even part"
            )
    return read


def load_from(
    config: dict[str, Any], checkpoint: Checkpoint, group: TensorGroup = ALONE
) -> Decoder | EncoderDecoder:
    """Takes a rank's part of the model from a checkpoint."""
    module = _module(config)
    names = module.names(config) if hasattr(module, "names") else module.NAMES
    loader: Any = getattr(module, "LOADER", Loader)  # of the configuration that the recipe reads
    decoder: Decoder | EncoderDecoder = loader(read_config(config), names, checkpoint, group).decoder()
    return decoder


def load(
    config: dict[str, Any],
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorGroup = ALONE,
    trusted: bool = False,
) -> Decoder | EncoderDecoder:
    """Reads a rank's part of the model in `folder` with the recipe of its architecture.

    `trusted`: the user has agreed to pickled weights.
    """

    def build(checkpoint: Checkpoint) -> Decoder | EncoderDecoder:
        decoder = load_from(config, checkpoint, group)
        decoder.parameters = checkpoint.parameters
        return decoder

    decoder = weights.load(folder, dtype, device, build, trusted, tells=group.rank == 0)
    if group.pipeline is not None and isinstance(decoder, Decoder):
        # Each stage has asked for its own tensors only.
        own = torch.tensor([decoder.parameters - counted_before(decoder)])
        decoder.parameters = int(group.everyone.add_up(own)) // group.size
    return decoder


def counted_before(decoder: Decoder | EncoderDecoder) -> int:
    """Parameters of a stage that an earlier stage has, too: those of a tied head."""
    config = decoder.config
    if not isinstance(decoder, Decoder) or not isinstance(config, DecoderConfig):
        return 0
    again = config.tied_head and decoder.group.is_last_stage and not decoder.group.is_first_stage
    return config.vocab_size * (config.embedding_width or config.width) if again else 0


def _module(config: dict[str, Any]) -> ModuleType:
    return import_module(f"{__name__}.{RECIPES[recipe_of(config)]}")
