"""What a family's module in `penstock.models.recipes` says: how its config.json is read, what its tensors are called,
and which loader knows how they are laid out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder
from penstock.models.decoder_loader import Loader
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.encoder_decoder import EncoderDecoder
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.encoder_decoder_loader import EncoderDecoderKeys, EncoderDecoderLoader
from penstock.models.packing import Quantizer
from penstock.parallel.group import TensorGroup

C = TypeVar("C", DecoderConfig, EncoderDecoderConfig)
K = TypeVar("K")


class ModelLoader(Protocol):
    """Reads one model for one rank."""

    def load(self) -> Decoder | EncoderDecoder:
        """This rank's part. Raises UnusableModel where checkpoint and config.json contradict each other."""


@dataclass(frozen=True)
class Recipe(Generic[C, K]):
    """Serves one family."""

    read: Callable[[dict[str, Any]], C]
    """config.json to the family's choices; needs no weights. Raises UnusableModel."""
    keys: Callable[[dict[str, Any]], K]
    """config.json to the keys of the checkpoint's tensors."""
    loader: Callable[[C, K, Checkpoint, TensorGroup], ModelLoader]

    def shape(self, config: dict[str, Any]) -> C:
        """What config.json describes. Raises UnusableModel."""
        return self.read(config)

    def loader_of(self, config: dict[str, Any]) -> Callable[[C, K, Checkpoint, TensorGroup], ModelLoader]:
        """What reads the checkpoint of this config.json."""
        return self.loader

    def load(
        self,
        config: dict[str, Any],
        checkpoint: Checkpoint,
        group: TensorGroup,
        quantizer: Quantizer | DeviceQuantizer | None = None,
    ) -> Decoder | EncoderDecoder:
        """Takes a rank's part of the model from a checkpoint. `quantizer`: how its matrices are held. Raises UnusableModel."""
        loader = self.loader_of(config)(self.shape(config), self.keys(config), checkpoint, group)
        if quantizer is not None:
            assert isinstance(loader, Loader | EncoderDecoderLoader), "there is no other"
            loader.quantizer = quantizer
        return loader.load()


@dataclass(frozen=True)
class DecoderRecipe(Recipe[DecoderConfig, CheckpointKeys]):
    """Of a family that the decoder serves. `loader` is one of its own where a part of the checkpoint has a layout of
    its own.
    """

    loader: Callable[[DecoderConfig, CheckpointKeys, Checkpoint, TensorGroup], ModelLoader] = Loader

    def shape(self, config: dict[str, Any]) -> DecoderConfig:
        """See Recipe."""
        read = self.read(config)
        widest = max(read.key_shape[1], read.head_dim)
        for rope in read.ropes:
            if rope.head_dim % 2 or not 0 < rope.head_dim <= widest:
                raise UnusableModel(
                    f"config.json: {rope.head_dim} of head_dim {read.head_dim} are rotated, not an even part"
                )
        return read


@dataclass(frozen=True)
class EncoderDecoderRecipe(Recipe[EncoderDecoderConfig, EncoderDecoderKeys]):
    """Of a family that the encoder-decoder serves."""

    loader: Callable[[EncoderDecoderConfig, EncoderDecoderKeys, Checkpoint, TensorGroup], ModelLoader] = (
        EncoderDecoderLoader
    )
