"""GPT-NeoX, Pythia, Dolly 2, RedPajama-INCITE and the first StableLM models: parallel branches with a norm each, a
quarter of each head rotated, query, key and value of a head side by side, and a head with two possible names.
"""

from dataclasses import replace
from typing import Any

from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields
from penstock.parallel.group import TensorGroup

KEYS = CheckpointKeys(
    prefixes=("gpt_neox.", ""),
    embedding="embed_in",
    layer="layers.{}.",
    norm="final_layer_norm",
    head="embed_out",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv="attention.query_key_value",
    qkv_order="heads",
    out="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=(r"(gpt_neox\.)?layers\.\d+\.attention\.bias",),  # causal masks
)


class GptNeoxLoader(Loader):
    """The head has two names."""

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        if checkpoint.has("lm_head.weight"):
            keys = replace(keys, head="lm_head")
        super().__init__(config, keys, checkpoint, group)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.head_dim(width, heads)
    rope = fields.rope(
        head_dim,
        fields.count("max_position_embeddings", default=2048),
        share=fields.number("rotary_pct", default=0.25),
        theta=fields.number("rotary_emb_base", default=10000.0),
    )
    bias = fields.flag("attention_bias", True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=fields.norm("layer_norm_eps", 1e-5, layer=True, bias=True),
        activation=fields.activation("hidden_act", default="gelu"),
        qkv_bias=bias,
        attention_out_bias=bias,
        gated=False,
        up_bias=True,
        down_bias=True,
        parallel=fields.flag("use_parallel_residual", True),
        tied_head=fields.flag("tie_word_embeddings"),
    )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, GptNeoxLoader)
