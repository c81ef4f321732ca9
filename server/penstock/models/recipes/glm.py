"""GLM-4 in its first version: half of each head is rotated, planes are interleaved, gate and up are one matrix."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields

NAMES = replace(llama.NAMES, gate="", up="", gate_up="mlp.gate_up_proj")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    read = llama.read_config({**config, "mlp_bias": False})
    positions = fields.count("max_position_embeddings", default=131072)
    rope = fields.rope(read.head_dim, positions, share=0.5)
    return replace(
        read, ropes=(rope,), max_positions=rope.max_positions, interleaved=True, attention_out_bias=False
    )
