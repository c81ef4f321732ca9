"""Mamba 2: every layer is one state space in heads, and nothing attends."""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mamba
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2_layers import rate_limits
from penstock.models.recurrent import Recurrent
from penstock.models.recurrent_config import Mamba2Config
from penstock.models.recurrent_loader import mamba2


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    groups = fields.count("n_groups", default=8)
    mixer = Mamba2Config(
        heads=fields.count("num_heads", default=128),
        head_dim=fields.count("head_dim", default=64),
        groups=groups,
        state=fields.count("state_size", default=128),
        kernel=fields.count("conv_kernel", default=4),
        eps=fields.number("layer_norm_epsilon", default=1e-5),
        norm_groups=groups,
        activation=fields.activation("hidden_act", default="silu"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
        out_bias=fields.flag("use_bias"),
        rate_limits=rate_limits(fields),
    )
    return mamba.without_attention(fields, mixer, tied=False)


class Mamba2Loader(mamba.BackboneLoader):
    """Reads Mamba 2 below `mixer`."""

    def recurrent(self, at: str, index: int) -> Recurrent:
        """One rank's heads."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, Mamba2Config)
        return mamba2(self, f"{at}mixer.", mixer)


RECIPE = DecoderRecipe(read_config, lambda _: mamba.KEYS, Mamba2Loader)
