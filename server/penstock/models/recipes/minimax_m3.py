"""The text of MiniMax M3, alone or as published with a tower for images: MiniMax M2's experts with clamped gates and a shared one,
norms around 1, queries and keys normalised head by head, and in most layers a choice of blocks of keys for each key head.

Sources: transformers 5.23 (minimax_m3_vl), whose defaults are those of MiniMaxAI/MiniMax-M3, and that model's text_config as SGLang's
benchmarks/minimax_m3_sparse_attn and llama.cpp's conversion cite it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.models.config import DecoderConfig, ExpertsConfig, HeadBlockIndexConfig, NormConfig
from penstock.models.decoder import Attention, LatentAttention
from penstock.models.decoder_loader import Loader
from penstock.models.indexer import HeadBlockIndexer
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama, minimax_m2
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.qwen3_5 import text_of
from penstock.models.recipes.text_of_vision_models import text_keys
from penstock_kernels.later import Tensor

SHARED = "block_sparse_moe.shared_experts."
assert minimax_m2.EXPERTS is not None
KEYS = text_keys(
    replace(
        minimax_m2.KEYS,
        experts=replace(
            minimax_m2.EXPERTS,
            correction="block_sparse_moe.e_score_correction_bias",
            shared_gate_proj=f"{SHARED}gate_proj",
            shared_up=f"{SHARED}up_proj",
            shared_down=f"{SHARED}down_proj",
        ),
    )
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = {"head_dim": 128, "rope_theta": 5e6, "rms_norm_eps": 1e-6, **text_of(config)}
    fields = Fields(text)
    for name, served in (
        ("scoring_func", "sigmoid"),
        ("hidden_act", "swigluoai"),
        ("qk_norm_type", "per_head"),
        ("use_qk_norm", True),
        ("use_gemma_norm", True),
        ("attention_output_gate", False),
        ("n_shared_experts", 1),
    ):
        fields.refuse(name, served, *(["silu"] if name == "hidden_act" else []))
    width = fields.count("dense_intermediate_size", default=12288)
    read = llama.read_config({**text, "intermediate_size": width, "hidden_act": "silu"})
    rotated = fields.whole("rotary_dim", read.head_dim // 2)
    rope = fields.rope(read.head_dim, read.max_positions, share=rotated / read.head_dim, theta=5e6)
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=4),
        sigmoid=True,
        normalize=True,
        scale=fields.number("routed_scaling_factor", default=2.0),
    )
    experts = ExpertsConfig(
        fields.count("num_local_experts", default=128),
        fields.count("intermediate_size", default=3072),
        routing,
        shared_width=fields.count("shared_intermediate_size", default=3072),
        correction=True,
        long_router=True,  # as it is published
        clamp=(fields.number("swiglu_limit", default=7.0), fields.number("swiglu_alpha", default=1.702)),
    )
    norm = NormConfig(read.norm.eps, offset=1.0)
    read = replace(read, norm=norm, qk_norm=norm, index=index(fields, read, rope.head_dim))
    sparse = layers_of(fields, "mlp_layer_types", "sparse", text.get("moe_layer_freq"), read.num_layers, True)
    return read.with_layers(
        rope=[rope] * read.num_layers,
        experts=[experts if at in sparse else None for at in range(read.num_layers)],
    )


def layers_of(fields: Fields, name: str, kind: str, flags: Any, layers: int, default: bool) -> frozenset[int]:
    """The layers that a list of kinds names, as transformers saves it, or a list of 0 and 1, as published."""
    kinds = fields.config.get(name)
    given = flags if kinds is None else kinds
    if given is None:
        return frozenset(range(layers)) if default else frozenset()
    ones = (1, True) if kinds is None else (kind,)
    served = (0, 1) if kinds is None else (kind, "dense", "full_attention")
    if not isinstance(given, list) or len(given) != layers or any(one not in served for one in given):
        what = f"{name} is not a list of {layers} kinds"
        if kinds is None:
            what = f"{'moe_layer_freq' if default else 'sparse_attention_freq'} is not a list of {layers} times 0 or 1"
        raise UnusableModel(f"config.json: {what}")
    return frozenset(at for at, one in enumerate(given) if one in ones)


def index(fields: Fields, read: DecoderConfig, rotated: int) -> HeadBlockIndexConfig | None:
    """What chooses keys, in the layers that do; None: none does."""
    part = fields.part("sparse_attention_config")
    part.refuse("sparse_score_type", "max")
    part.refuse("sparse_init_block", 0)
    flags = part.config.get("sparse_attention_freq")
    if part.config.get("use_sparse_attention") is False:
        flags = [0] * read.num_layers
    layers = layers_of(fields, "layer_types", "minimax_m3_sparse", flags, read.num_layers, False)
    if not layers:
        return None
    disabled = part.config.get("sparse_disable_index_value")
    if disabled is not None and (
        not isinstance(disabled, list)
        or len(disabled) != read.num_layers
        or not all(disabled[at] for at in layers)
    ):
        raise UnusableModel(
            "config.json: sparse_disable_index_value is not 1 for each layer that chooses keys"
        )

    def count(published: str, name: str, default: int) -> int:
        return part.count(published, default=fields.count(name, default=default))

    heads = count("sparse_num_index_heads", "index_n_heads", 4)
    size = count("sparse_index_dim", "index_head_dim", 128)
    most, latest = (
        count("sparse_topk_blocks", "index_topk_blocks", 16),
        count("sparse_local_block", "index_local_blocks", 1),
    )
    if heads != read.kv_heads:
        raise UnusableModel(
            f"config.json: sparse_num_index_heads is {heads}, and num_key_value_heads {read.kv_heads}"
        )
    if rotated > size:
        raise UnusableModel(
            f"config.json: sparse_index_dim {size} is less than the {rotated} numbers of a head that are rotated"
        )
    if latest > most:
        raise UnusableModel(
            f"config.json: sparse_local_block {latest} is more than sparse_topk_blocks {most}"
        )
    block = count("sparse_block_size", "index_block_size", 128)
    return HeadBlockIndexConfig(heads, size, block, most, latest, tuple(sorted(layers)))


class MiniMaxM3Loader(Loader):
    """Reads dense layers whose gates are clamped as those of experts are, and indexers."""

    def activation(self) -> Callable[[Tensor], Tensor]:
        """Of every feed-forward layer."""
        clamps = [layer.experts.clamp for layer in self.config.layers if layer.experts is not None]
        limit, alpha = next((clamp for clamp in clamps if clamp is not None), (7.0, 1.702))
        return partial(ops.gated_clamped, limit=limit, alpha=alpha)

    def attention(self, at: str, index: int) -> Attention | LatentAttention:
        """Attention of a layer, with its indexer where it chooses keys."""
        made, sizes = super().attention(at, index), self.config.index
        if not isinstance(sizes, HeadBlockIndexConfig) or index not in sizes.layers:
            return made
        assert isinstance(made, Attention)
        size, mine, at = sizes.head_dim, self.kv_heads_of(index), f"{at}self_attn."
        parts = [
            (f"{at}index_q_proj", sizes.heads * size, [range(mine.start * size, mine.stop * size)]),
            (f"{at}index_k_proj", size, [range(size)]),
        ]
        made.indexer = HeadBlockIndexer(
            sizes,
            Linear(self.stacked(parts, self.config.width)),
            self.norm(f"{at}index_q_norm", size),
            self.norm(f"{at}index_k_norm", size),
        )
        return made


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, MiniMaxM3Loader)
