"""MiniMax-Text-01 and M1: most layers are lightning attention, the others attention with rotary positions; experts as in Mixtral.
What a branch gives is added to a multiple of what it read.

As transformers has it (minimax), and in the words of the first checkpoints (`MiniMaxText01ForCausalLM`, `MiniMaxM1ForCausalLM`), which transformers'
tests of MiniMax-VL-01 quote.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.layers.norm import RmsNorm, SharedRmsNorm
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Experts, Layer
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import mixtral
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent import LightningAttention
from penstock.models.recurrent_config import LightningConfig
from penstock.models.recurrent_loader import linear, scale

# transformers keeps its tables of decays in the checkpoint.
KEYS = replace(mixtral.KEYS, ignored=(r".*\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",))
NORM_EPS = 1e-6


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    size = fields.heads()[2]
    fields.refuse("postnorm", True)
    fields.refuse("shared_intermediate_size", 0, [0])
    named = {**config, "sliding_window": None}
    if "rotary_dim" in config and "partial_rotary_factor" not in config:
        named["partial_rotary_factor"] = fields.count("rotary_dim") / size
    read = mixtral.read_config(named)
    layers = range(read.num_layers)
    default = ["linear_attention" if i % 2 else "full_attention" for i in layers]
    given = config.get("attn_type_list")
    if given is not None:
        default = ["full_attention" if kind else "linear_attention" for kind in given]
    kinds = fields.layer_kinds(read.num_layers, default)
    if len(kinds) != read.num_layers or set(kinds) - {"full_attention", "linear_attention"}:
        raise UnusableModel(
            "config.json: layer_types or attn_type_list is not full or linear attention for each layer"
        )
    recurrent = [kind == "linear_attention" for kind in kinds]
    mixers = [LightningConfig(slopes(read.heads, i, len(kinds)), size, read.activation) for i in layers]
    # What the head reads is large: MiniMax, "MiniMax-M1", 2025, on precision; and vLLM.
    read = replace(read, residual_normed=True, residual_factors=factors(fields), long_head=True)
    return read.with_layers(
        attends=[not here for here in recurrent],
        recurrent=[mixer if here else None for here, mixer in zip(recurrent, mixers, strict=True)],
    )


def slopes(heads: int, layer: int, layers: int) -> tuple[float, ...]:
    """Of each head: as ALiBi's, and less in deeper layers."""
    depth = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(2 ** (-8 / heads * (head + 1)) * depth for head in range(heads))


def factors(fields: Fields) -> tuple[tuple[float, float], ...]:
    """(of the residual, of what the branch gives) of attention, lightning attention and experts. The names are those of
    transformers, and of the first checkpoints.
    """
    found = []
    for name, older in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")):
        alpha = fields.number(f"{name}_alpha_factor", f"layernorm_{older}_alpha", default=1.0)
        found.append((alpha, fields.number(f"{name}_beta_factor", f"layernorm_{older}_beta", default=1.0)))
    return tuple(found)


class MiniMaxLoader(Loader):
    """Reads lightning attention, and multiplies what branches give with their factors."""

    def layer(self, index: int) -> Layer:
        """One layer."""
        full, lightning, mlp = self.config.residual_factors
        made = super().layer(index)
        alpha, beta = full if self.config.layers[index].attends else lightning
        made.attention_residual, made.feed_forward_residual = alpha, mlp[0]
        assert made.attention is not None and isinstance(made.feed_forward, Experts)
        scale(made.attention.out, beta)
        if mlp[1] != 1.0:
            made.feed_forward.down_XEF.mul_(mlp[1])
        return made

    def recurrent(self, at: str, index: int) -> LightningAttention:
        """One rank's heads."""
        mixer = self.config.layers[index].recurrent
        assert isinstance(mixer, LightningConfig)
        at, heads, size = f"{at}self_attn.", self.config.heads, mixer.head_dim
        mine, total = self.heads, heads * size
        # Of each head its query, key and value.
        rows = [
            range((3 * head + part) * size, (3 * head + part + 1) * size)
            for part in range(3)
            for head in mine
        ]
        own = [range(mine.start * size, mine.stop * size)]
        weight = self.read(at + "norm", (total,), rows=own)
        norm = RmsNorm(weight, NORM_EPS)
        if self.group.size > 1:
            norm = SharedRmsNorm(weight, NORM_EPS, total, self.group)
        return LightningAttention(
            mixer,
            mine,
            linear(self, [(at + "qkv_proj", 3 * total, rows), (at + "output_gate", total, own)]),
            norm,
            self.row_parallel(at + "out_proj", size, mine, heads, self.config.width, False),
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, MiniMaxLoader)
