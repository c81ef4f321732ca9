"""OLMo Hybrid: three layers of four are gated delta rules with norms before each branch, the others OLMo 2's attention with norms
behind them, mostly without positions.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Layer
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import olmo2
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.qwen3_next import DeltaLoader
from penstock.models.recurrent import Convolution
from penstock.models.recurrent_config import DeltaConfig
from penstock.models.recurrent_loader import Part, convolution, scaled

# Norms are read by the loader: each kind of layer has them elsewhere.
KEYS = replace(olmo2.KEYS, attention_out_norm="", feed_forward_out_norm="")
NORM_EPS = 1e-5


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = olmo2.read_config(config)
    layers = range(read.num_layers)
    default = ["full_attention" if i % 4 == 3 else "linear_attention" for i in layers]
    kinds = fields.layer_kinds(read.num_layers, default)
    if set(kinds) - {"full_attention", "linear_attention"}:
        raise UnusableModel("config.json: layer_types names others than full_attention and linear_attention")
    key_heads = fields.count("linear_num_key_heads", default=read.heads)
    value_heads = fields.count("linear_num_value_heads", default=read.heads)
    if value_heads % key_heads:
        raise UnusableModel(
            f"config.json: linear_num_value_heads {value_heads} is no multiple of linear_num_key_heads {key_heads}"
        )
    fields.refuse("hidden_act", "silu", "swish")
    key_dim = fields.count("linear_key_head_dim", default=int(0.75 * read.width / key_heads))
    mixer = DeltaConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=fields.count("linear_value_head_dim", default=2 * key_dim),
        kernel=fields.count("linear_conv_kernel_dim", default=4),
        eps=NORM_EPS,
        beta_scale=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
    )
    read = read.with_layers(
        attends=[kind == "full_attention" for kind in kinds],
        recurrent=[mixer if kind == "linear_attention" else None for kind in kinds],
    )
    rope = fields.part("rope_parameters").config
    # No base, or a table of null, says that nothing is rotated; where the file has neither, the usual one is meant.
    # transformers 5.23 fills a base in, though its own words are that the released models have null and rotate nothing.
    unsaid = None if "rope_parameters" in config else "the usual"
    rotates = (rope or config).get("rope_theta", unsaid) is not None
    return read if rotates else read.with_layers(rope=[None for _ in layers])


class OlmoHybridLoader(DeltaLoader):
    """Reads delta rules whose parts are matrices by themselves, and norms in front of their branches."""

    names = replace(DeltaLoader.names, norm="o_norm", out="o_proj")

    def layer(self, index: int) -> Layer:
        """One layer."""
        made, width = super().layer(index), self.config.width
        at = self.prefix + self.keys.layer.format(index)
        if self.config.layers[index].recurrent is None:
            # transformers saves one of the norms under the name that recurrent layers have for another one.
            names = ("post_attention_layernorm", "feedforward_layer_norm")
            name = next((name for name in names if self.checkpoint.has(f"{at}{name}.weight")), names[0])
            made.attention_out_norm = self.norm(at + name, width)
            made.feed_forward_out_norm = self.norm(at + "post_feedforward_layernorm", width)
            return made
        made.attention_norm = self.norm(at + "attention_layer_norm", width)
        made.feed_forward_norm = self.norm(at + "feedforward_layer_norm", width)
        return made

    def delta_convolution(self, at: str, mixer: DeltaConfig, mine: range) -> Convolution:
        """Of queries, keys and values each by itself."""
        shared = mixer.value_heads // mixer.key_heads
        keys, values = scaled([mine], mixer.key_dim), scaled([mine], shared * mixer.value_dim)
        all_keys, all_values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        parts = [(at + "q_conv1d", all_keys, keys), (at + "k_conv1d", all_keys, keys)]
        return convolution(self, [*parts, (at + "v_conv1d", all_values, values)], mixer.kernel)

    def delta_parts(self, at: str, mixer: DeltaConfig, mine: range) -> list[Part]:
        """Queries, keys, values, gates, b and a."""
        shared = mixer.value_heads // mixer.key_heads
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        key_rows, value_rows = scaled([mine], mixer.key_dim), scaled([mine], shared * mixer.value_dim)
        heads = scaled([mine], shared)
        return [
            (at + "q_proj", keys, key_rows),
            (at + "k_proj", keys, key_rows),
            (at + "v_proj", values, value_rows),
            (at + "g_proj", values, value_rows),
            (at + "b_proj", mixer.value_heads, heads),
            (at + "a_proj", mixer.value_heads, heads),
        ]


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, OlmoHybridLoader)
