"""A.X K2 (SK Telecom): DeepSeek V3.2 with norms that have a gate of low rank, and with gates on what heads attend to.

Source: transformers 5.23 (axk2), whose defaults are those of skt/A.X-K2; of the fields that say whether there are gates, vLLM's class.
"""

from dataclasses import replace
from typing import Any

from penstock.layers.gated_norm import GatedNorm
from penstock.layers.linear import Linear
from penstock.layers.norm import Norm, RmsNorm
from penstock.models.config import DecoderConfig, NormConfig, OutputGate
from penstock.models.decoder import Layer
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek
from penstock.models.recipes.deepseek import DeepseekLoader
from penstock.models.recipes.fields import Fields

DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 128,
    "q_lora_rank": 384,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "qk_nope_head_dim": 64,
    "n_shared_experts": 1,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "index_n_heads": 16,
    "rms_norm_eps": 1e-6,
}
RANK = 16  # of the norms' gates


class Axk2Loader(DeepseekLoader):
    """Reads gates beside norms and queries."""

    gates_second = False  # of the layer that is read: the norm before its feed-forward layer has one, too

    def layer(self, index: int) -> Layer:
        """See Loader."""
        self.gates_second = self.config.layers[index].experts is not None
        return super().layer(index)

    def norm(self, name: str, width: int, choice: NormConfig | None = None) -> Norm:
        """See Loader."""
        second = name.endswith("post_attention_layernorm") and self.gates_second
        if not (second or name.endswith("input_layernorm")):
            return super().norm(name, width, choice)
        norm = super().norm(f"{name}.norm", width, choice)
        assert isinstance(norm, RmsNorm)
        rank = self.config.norm_gate_rank
        down = Linear(self.read(f"{name}.W_down", (rank, width)))
        return GatedNorm(norm, down, Linear(self.read(f"{name}.W_up", (width, rank))))

    def query_and_gate(self, at: str, index: int) -> tuple[Linear, Linear | None]:
        """Of each head the rows of its query, then those of its gate."""
        sizes = self.config.latent
        assert sizes is not None
        head = sizes.plain_dim + sizes.rope_dim
        both = head + sizes.value_dim
        rows = self.read(
            at + "q_b_proj",
            (self.config.heads * both, 2 * sizes.query_rank),
            rows=[range(self.heads.start * both, self.heads.stop * both)],
        ).view(len(self.heads), both, -1)
        query = self.rotated_last(rows[:, :head], sizes.plain_dim, sizes).flatten(0, 1)
        return Linear(query), Linear(rows[:, head:].flatten(0, 1).contiguous())


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in config.items() if value is not None}
    return {**DEFAULTS, **given}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    config = _with_defaults(config)
    for name in ("attention_output_gate", "attn_gate_fused", "gated_norm"):
        Fields(config).refuse(name, True)
    read = deepseek.read_config(config)
    assert read.latent is not None
    return replace(
        read,
        latent=replace(read.latent, reads_both=True),
        output_gate=OutputGate("sigmoid", per_number=True),
        norm_gate_rank=Fields(config).count("gated_norm_rank", default=RANK),
    )


RECIPE = DecoderRecipe(read_config, deepseek.keys, Axk2Loader)
