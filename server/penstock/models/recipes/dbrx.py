"""DBRX: experts in every layer, stored as one matrix of all of them; clipped queries, keys and values."""

from typing import Any

import penstock_kernels as ops
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, LayerConfig, NormConfig
from penstock.models.decoder import Experts
from penstock.models.decoder_loader import Loader
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields
from penstock.parallel.group import ranges
from penstock_kernels import tensors

KEYS = CheckpointKeys(
    embedding="transformer.wte",
    layer="transformer.blocks.{}.",
    norm="transformer.norm_f",
    attention_norm="norm_attn_norm.norm_1",
    feed_forward_norm="norm_attn_norm.norm_2",
    qkv="norm_attn_norm.attn.Wqkv",
    out="norm_attn_norm.attn.out_proj",
    experts=ExpertKeys(
        router="ffn.router.layer",
        gate="ffn.experts.mlp.w1",
        up="ffn.experts.mlp.v1",
        down="ffn.experts.mlp.w2",
    ),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    attention, mixture = Fields(config.get("attn_config") or {}), Fields(config.get("ffn_config") or {})
    mixture.refuse("moe_normalize_expert_weights", 1, 1.0)
    width, heads = fields.count("d_model"), fields.count("n_heads")
    head_dim = width // heads
    theta = attention.number("rope_theta", default=10000.0)
    rope = fields.rope(head_dim, fields.count("max_seq_len", default=2048), theta=theta)
    activation = Fields(mixture.config.get("ffn_act_fn") or {}).activation("name", default="silu")
    hidden = mixture.count("ffn_hidden_size", default=3584)
    routing = ops.Routing(
        mixture.count("moe_top_k", default=1),
        normalize=mixture.config.get("moe_normalize_expert_weights", 1) is not None,
    )
    experts = ExpertsConfig(mixture.count("moe_num_experts", default=4), hidden, routing)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size"),
        width=width,
        feed_forward=hidden,
        layers=(LayerConfig(rope, experts=experts),) * fields.count("n_layers"),
        heads=heads,
        kv_heads=attention.count("kv_n_heads", default=1),
        head_dim=head_dim,
        max_positions=rope.max_positions,
        norm=NormConfig(1e-5, layer=True),
        activation=activation,
        clip_qkv=attention.number("clip_qkv", default=0.0),
        tied_head=fields.flag("tie_word_embeddings"),
    )


class DbrxLoader(Loader):
    """Reads the rows of its experts."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """Every tensor is (X F, E), the last one transposed for each expert."""
        keys = self.keys.experts
        assert keys is not None
        mine = self.group.share(choice.count)
        rows = ranges([range(mine.start * choice.width, mine.stop * choice.width)])
        shape = (choice.count * choice.width, self.config.width)
        gate, up, down = (
            self.checkpoint.tensor(at + name, shape, rows).view(len(mine), choice.width, self.config.width)
            for name in (keys.gate, keys.up, keys.down)
        )
        return self.mixture(
            at, choice, mine.start, tensors.cat((gate, up), 1), None, down.transpose(1, 2).contiguous(), None
        )


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, DbrxLoader)
