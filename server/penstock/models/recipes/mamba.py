"""Mamba: every layer is one state space, and nothing attends."""

from dataclasses import replace
from typing import Any

from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import Recurrent
from penstock.models.recurrent_config import Mamba1Config, RecurrentConfig
from penstock.models.recurrent_loader import mamba1
from penstock.parallel.group import TensorGroup

# Configurations name none, and a state has no end: where nothing else is asked for.
POSITIONS = 8192

KEYS = CheckpointKeys(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}.",
    norm="backbone.norm_f",
    attention_norm="norm",
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    return without_attention(fields, state_space(fields), tied=True)


def state_space(fields: Fields) -> Mamba1Config:
    """The layer."""
    width = fields.count("hidden_size", default=768)
    rank = fields.config.get("time_step_rank", "auto")
    return Mamba1Config(
        channels=fields.count("intermediate_size", default=fields.count("expand", default=2) * width),
        state=fields.count("state_size", default=16),
        rate_rank=-(-width // 16) if rank == "auto" else fields.count("time_step_rank"),
        kernel=fields.count("conv_kernel", default=4),
        activation=fields.activation("hidden_act", default="silu"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
    )


def without_attention(fields: Fields, mixer: RecurrentConfig, *, tied: bool) -> DecoderConfig:
    """A decoder whose layers are all this one and nothing else. `tied`: the family's default."""
    layer = LayerConfig(attends=False, recurrent=mixer, feeds_forward=False)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        feed_forward=0,
        layers=(layer,) * fields.count("num_hidden_layers", "n_layer"),
        heads=0,
        kv_heads=0,
        head_dim=0,
        max_positions=fields.count("max_position_embeddings", default=POSITIONS),
        norm=fields.norm("layer_norm_epsilon", 1e-5),
        activation="silu",
        tied_head=fields.flag("tie_word_embeddings", tied),
    )


class BackboneLoader(Loader):
    """Reads the table of embeddings, too, where it has the name of state-spaces' own code, which transformers takes for the other."""

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        if keys.embedding == KEYS.embedding and checkpoint.has("backbone.embedding.weight"):
            keys = replace(keys, embedding="backbone.embedding")
        super().__init__(config, keys, checkpoint, group)


class MambaLoader(BackboneLoader):
    """Reads Mamba below `mixer`."""

    def recurrent(self, at: str, index: int) -> Recurrent:
        """One rank's channels."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, Mamba1Config)
        return mamba1(self, f"{at}mixer.", mixer)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, MambaLoader)
