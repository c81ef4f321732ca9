"""Apertus: normalised queries and keys, and a feed-forward layer without a gate, whose activation has parameters."""

from dataclasses import replace
from typing import Any

from penstock.layers.activation import Xielu
from penstock.layers.linear import Linear
from penstock.models.config import DecoderConfig
from penstock.models.decoder import FeedForward
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

KEYS = replace(
    llama.KEYS,
    attention_norm="attention_layernorm",
    feed_forward_norm="feedforward_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)

ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    fields.refuse("hidden_act", "xielu")
    fields.refuse("post_norm", False)
    fields.refuse("qk_norm", True)
    defaults: dict[str, Any] = {"rope_theta": 12e6, "rms_norm_eps": 1e-5, "max_position_embeddings": 65536}
    if not config.get("rope_parameters"):
        defaults["rope_scaling"] = ROPE
    read = llama.read_config({**defaults, **config, "hidden_act": "silu", "mlp_bias": False})
    return replace(read, activation="xielu", gated=False, qk_norm=read.norm)


class ApertusLoader(Loader):
    """Reads the activation's parameters, which are the same for all ranks."""

    def feed_forward(self, at: str) -> FeedForward:
        """The feed-forward layer below `at`."""
        config, keys = self.config, self.keys
        mine = self.group.even_share(config.feed_forward, "the feed-forward width (intermediate_size)")
        alphas = [self.checkpoint.tensor(f"{at}mlp.act_fn.alpha_{sign}", (1,)) for sign in "pn"]
        scalars = [self.checkpoint.tensor(f"{at}mlp.act_fn.{name}", ()) for name in ("beta", "eps")]
        return FeedForward(
            Linear(self.stacked([(at + keys.up, config.feed_forward, [mine])], config.width)),
            self.row_parallel(at + keys.down, 1, mine, config.feed_forward, config.width, False),
            Xielu(*alphas, *scalars),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, ApertusLoader)
