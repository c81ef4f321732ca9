"""StableLM 3B, StableLM 2 and StableCode: Llama with layer norms and a quarter of each head rotated; the larger ones
have parallel branches, and a norm of its own for each query and key head.
"""

from typing import Any

from penstock.layers.norm import HeadsLayerNorm, Norm
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import DecoderConfig, LayerConfig, NormConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors


class StableLmLoader(Loader):
    """The norm of each head is a tensor of its own."""

    def head_norm(self, name: str, all_heads: int, heads: range, index: int) -> Norm:
        """The norm of queries or keys."""
        assert self.config.qk_norm is not None
        shape = (self.config.head_dim,)
        for head in range(all_heads):
            self.checkpoint.expect(f"{name}.norms.{head}.weight", shape)
        weights_HD = tensors.stack([self.read(f"{name}.norms.{head}", shape) for head in heads])
        return HeadsLayerNorm(weights_HD, None, self.config.qk_norm.eps)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """A parallel layer has one norm."""
    parallel = Fields(config).flag("use_parallel_residual")
    return CheckpointKeys(
        embedding="model.embed_tokens",
        layer="model.layers.{}.",
        norm="model.norm",
        attention_norm="input_layernorm",
        feed_forward_norm="" if parallel else "post_attention_layernorm",
        q="self_attn.q_proj",
        k="self_attn.k_proj",
        v="self_attn.v_proj",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        out="self_attn.o_proj",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
    )


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    heads, kv_heads, head_dim = fields.heads(kv_default=32)
    rope = fields.rope(head_dim, fields.count("max_position_embeddings", default=4096), share=0.25)
    norm = fields.norm("layer_norm_eps", 1e-5, layer=True, bias=True)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        feed_forward=fields.count("intermediate_size"),
        layers=(LayerConfig(rope),) * fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=norm,
        activation=fields.activation("hidden_act", default="silu"),
        qkv_bias=fields.flag("use_qkv_bias"),
        qk_norm=NormConfig(norm.eps, layer=True) if fields.flag("qk_layernorm") else None,
        qk_norm_over="heads",
        parallel=fields.flag("use_parallel_residual"),
        tied_head=fields.flag("tie_word_embeddings"),
    )


RECIPE = DecoderRecipe(read_config, keys, StableLmLoader)
