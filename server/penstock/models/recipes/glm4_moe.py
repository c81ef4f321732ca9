"""GLM-4.5, 4.6 and 4.7, and the text of GLM-4.5V and 4.6V: DeepSeek's experts behind attention with grouped key heads,
half of each head rotated.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields

KEYS = replace(deepseek.KEYS, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Without the layers that predict several tokens ahead."""
    return replace(KEYS, ignored=deepseek.predicting_layers(config))


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({"max_position_embeddings": 131072, **config, "mlp_bias": False})
    experts = deepseek.sigmoid_experts(fields, default_shared=1)
    rope = fields.rope(read.head_dim, fields.count("max_position_embeddings", default=131072), share=0.5)
    read = replace(
        read,
        norm=fields.norm("rms_norm_eps", 1e-5),
        attention_out_bias=False,
        qk_norm=fields.norm("rms_norm_eps", 1e-5) if fields.flag("use_qk_norm") else None,
    )
    sparse = fields.sparse_layers(read.num_layers) if _says_which(config) else [True] * read.num_layers
    if not _says_which(config):
        sparse[0] = False
    return read.with_layers(
        rope=[rope] * read.num_layers, experts=[experts if here else None for here in sparse]
    )


def _says_which(config: dict[str, Any]) -> bool:
    """Whether config.json says which layers are dense; else the first is."""
    return any(config.get(name) is not None for name in ("mlp_layer_types", "first_k_dense_replace"))


RECIPE = DecoderRecipe(read_config, keys)
