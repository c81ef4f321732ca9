"""nanochat: norms without weights, one of them behind the embedding, heads that are rotated the other way round, and a
feed-forward layer without a gate.
"""

from dataclasses import replace
from typing import Any

from penstock.layers.linear import Linear
from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors

KEYS = replace(llama.KEYS, gate="", up="mlp.fc1", down="mlp.fc2")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"hidden_act": "relu2", **config, "mlp_bias": False})
    norm = fields.norm("rms_norm_eps", 1e-6, weight=False)
    return replace(
        read,
        norm=norm,
        # They are normalised behind the rotation, which is the same without a weight.
        qk_norm=norm,
        embedding_norm=True,
        gated=False,
        logit_softcap=fields.number("final_logit_softcapping", default=15.0),
    )


class NanoChatLoader(Loader):
    """Exchanges the halves of query and key heads: a plane whose coordinates are exchanged turns the usual way."""

    def qkv(self, at: str, index: int) -> Linear:
        """Queries, keys and values of this rank's heads."""
        made, size = super().qkv(at, index), self.config.head_dim
        turned = (len(self.heads) + len(self.kv_heads)) * size
        for rows in (made.weight_OI, made.bias_O):
            if rows is not None:
                heads = rows[:turned].view(-1, size, *rows.shape[1:])
                rows[:turned] = tensors.roll(heads, size // 2, 1).flatten(0, 1)
        return made


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, NanoChatLoader)
