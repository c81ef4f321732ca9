"""How hybrid families with Mamba 2 name its shape in config.json, and a loader for those that keep it below `mamba`."""

import math
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import Recurrent
from penstock.models.recurrent_config import Mamba2Config
from penstock.models.recurrent_loader import mamba2

# Of a layer, as transformers names it and as checkpoints did before.
RECURRENT = ("linear_attention", "mamba")
ATTENTION = ("full_attention", "attention")


def read_mamba2(fields: Fields, width: int, *, channels: int | None = None, **choices: Any) -> Mamba2Config:
    """The state space under the names `mamba_n_heads`, `mamba_d_head` and so on. `width`: E."""
    total = channels or fields.count("mamba_expand", default=2) * width
    heads = fields.count("mamba_n_heads", default=128)
    given = fields.config.get("mamba_d_head")
    size = total // heads if given in (None, "auto") else fields.count("mamba_d_head")
    groups = fields.count("mamba_n_groups", default=1)
    if size * heads != total or heads % groups:
        raise UnusableModel(
            f"config.json: {heads} heads (mamba_n_heads) of {size} in {groups} groups do not make {total} channels"
        )
    return Mamba2Config(
        heads=heads,
        head_dim=size,
        groups=groups,
        state=fields.count("mamba_d_state", default=256),
        kernel=fields.count("mamba_d_conv", default=4),
        eps=fields.number("rms_norm_eps", default=1e-5),
        norm_groups=choices.pop("norm_groups", groups),
        activation=fields.activation("hidden_act", default="silu"),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        out_bias=fields.flag("mamba_proj_bias"),
        rate_limits=rate_limits(fields),
        **choices,
    )


def rate_limits(fields: Fields) -> tuple[float, float]:
    """`time_step_limit`: JSON has no infinity; python's writer puts a word there, and transformers an object around one."""
    # transformers' class of Nemotron-H reads both, the first one first.
    names = ("mamba_dt_limit", "time_step_limit")
    name = next((name for name in names if fields.config.get(name) is not None), None)
    if name is None:
        return 0.0, math.inf
    given = fields.config[name]
    if isinstance(given, list):
        given = [math.inf if x == {"__float__": "Infinity"} else x for x in given]
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(x, (int, float)) for x in given):
        raise UnusableModel(f"config.json: {name} is not a list of two numbers")
    return float(given[0]), float(given[1])


def with_kinds(read: DecoderConfig, kinds: list[str], mixer: Mamba2Config) -> DecoderConfig:
    """With this mixer in the recurrent layers. Raises UnusableModel for a kind of layer that is unknown."""
    unknown = next((kind for kind in kinds if kind not in (*RECURRENT, *ATTENTION)), None)
    if unknown is not None:
        raise UnusableModel(
            f"config.json: a layer is a {unknown!r}; supported: {', '.join(RECURRENT + ATTENTION)}"
        )
    return read.with_layers(
        attends=[kind in ATTENTION for kind in kinds],
        recurrent=[mixer if kind in RECURRENT else None for kind in kinds],
    )


class Mamba2Loader(Loader):
    """Reads Mamba 2 below `mamba`."""

    def recurrent(self, at: str, index: int) -> Recurrent:
        """One rank's heads."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, Mamba2Config)
        return mamba2(self, f"{at}mamba.", mixer)
