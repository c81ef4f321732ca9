"""DeepSeek V2 and V3, Kimi K2 and GLM-4.7-Flash: latent attention, shared experts, and groups of experts; the first
layers are dense. DeepSeek V3.2 and GLM-5 attend to the keys that an indexer chooses, GLM-5 in some layers to those of the
last layer that has one.

Sources of the last two: transformers 5.23 (deepseek_v32, glm_moe_dsa), whose defaults are those of
deepseek-ai/DeepSeek-V3.2-Exp and zai-org/GLM-5; and the note of 17 November 2025 in DeepSeek-V3.2-Exp's README, that an index
head's planes are halves, though those of attention are neighbours.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.layers.norm import LayerNorm, Norm
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, IndexConfig, LatentConfig, NormConfig
from penstock.models.decoder import LatentAttention
from penstock.models.decoder_loader import Loader, halves
from penstock.models.indexer import Indexer
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

# Families whose experts are chosen as V3 does it.
THIRD = ("axk2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2")
# Those whose latents are normalised as the model is: in vLLM, in SGLang and in Z.ai's own GLM-5 Next, though not in transformers 5.23. DeepSeek's
# and Moonshot's code leaves these norms their default.
GLM = ("glm4_moe_lite", "glm_moe_dsa")
# Those whose queries attend to chosen keys, and whether an index head's planes are neighbours there.
INDEXED = {"axk2": False, "deepseek_v32": False, "glm_moe_dsa": True}

KEYS = replace(
    llama.KEYS,
    experts=ExpertKeys(
        router="mlp.gate",
        gate="mlp.experts.{}.gate_proj",
        up="mlp.experts.{}.up_proj",
        down="mlp.experts.{}.down_proj",
        shared_gate_proj="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
        correction="mlp.gate.e_score_correction_bias",
    ),
)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """The layers that predict several tokens ahead come after the others, and are not used."""
    return replace(KEYS, ignored=(*predicting_layers(config), *unused_indexers(config)))


def unused_indexers(config: dict[str, Any]) -> tuple[str, ...]:
    """Patterns of the indexers of layers that attend to what an earlier one chooses: files of GLM-5 and 5.1 have those of every layer,
    and whoever has layers share a choice there says so in config.json alone.
    """
    if config.get("model_type") != "glm_moe_dsa":
        return ()
    fields = Fields(config)
    shared = layers_without_indexer(fields, fields.count("num_hidden_layers"))
    layers = "|".join(str(at) for at, is_shared in enumerate(shared) if is_shared)
    return (rf"(?:.*\.)?layers\.(?:{layers})\.self_attn\.indexer\..*",) if layers else ()


def predicting_layers(config: dict[str, Any]) -> tuple[str, ...]:
    """Patterns of the tensors of layers that predict several tokens ahead (`num_nextn_predict_layers`)."""
    fields = Fields(config)
    first, count = fields.count("num_hidden_layers"), fields.whole("num_nextn_predict_layers", 0)
    after = "|".join(re.escape(str(first + at)) for at in range(count))
    return (rf"(?:.*\.)?layers\.(?:{after})\..*",) if after else ()


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    kind = str(config.get("model_type"))
    latent = LatentConfig(
        rank=fields.count("kv_lora_rank", default=512),
        rope_dim=fields.count("qk_rope_head_dim", default=64),
        plain_dim=fields.count("qk_nope_head_dim", default=128),
        value_dim=fields.count("v_head_dim", default=128),
        query_rank=fields.whole("q_lora_rank", 0),
        rank_norm=fields.norm("rms_norm_eps", 1e-6) if kind in GLM else NormConfig(1e-6),
    )
    if kind in INDEXED:
        latent = replace(latent, index=read_index(fields, latent, INDEXED[kind]))
    size = latent.plain_dim + latent.rope_dim
    # Of the rotation, which is of a part of a head, llama's recipe is told nothing.
    unrotated = {
        name: value for name, value in config.items() if name not in ("rope_scaling", "rope_parameters")
    }
    read = llama.read_config({**unrotated, "head_dim": size, "num_key_value_heads": None, "mlp_bias": False})
    rope = fields.rope(latent.rope_dim, fields.count("max_position_embeddings", default=2048))
    # The magnitude of a stretched context is in the scores, too.
    magnitude = 1.0
    if rope.variant != "default" and rope.mscale_all_dim and rope.factor > 1:
        magnitude = 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
    every = fields.count("moe_layer_freq", default=1)
    experts = _experts(fields, kind) if config.get("n_routed_experts") else None
    read = replace(
        read,
        max_positions=rope.max_positions,
        interleaved=fields.flag("rope_interleave", True),
        scale=size**-0.5 * magnitude**2,
        latent=latent,
        qkv_bias=fields.flag("attention_bias"),
        long_head=kind == "deepseek_v32",  # in DeepSeek's own code
    )
    sparse = fields.sparse_layers(read.num_layers)
    return read.with_layers(
        choice_of_last=layers_without_indexer(fields, read.num_layers) if kind == "glm_moe_dsa" else None,
        rope=[rope] * read.num_layers,
        experts=[experts if here and at % every == 0 else None for at, here in enumerate(sparse)],
    )


def read_index(fields: Fields, latent: LatentConfig, interleaved: bool) -> IndexConfig:
    """What chooses keys."""
    if not latent.query_rank:
        raise UnusableModel("config.json: q_lora_rank is 0, and the indexer reads queries of that size")
    index = IndexConfig(
        heads=fields.count("index_n_heads", default=64),
        head_dim=fields.count("index_head_dim", default=128),
        most=fields.count("index_topk", default=2048),
        interleaved=fields.flag("indexer_rope_interleave", interleaved),
    )
    if latent.rope_dim > index.head_dim:
        raise UnusableModel(
            f"config.json: index_head_dim {index.head_dim} is less than qk_rope_head_dim {latent.rope_dim}, which are rotated"
        )
    return index


def layers_without_indexer(fields: Fields, layers: int) -> list[bool]:
    """Those that attend to what an earlier one chooses: `indexer_types`, or what the fields of a pattern give."""
    kinds = fields.config.get("indexer_types")
    pattern = fields.config.get("index_topk_pattern")
    name = "indexer_types" if pattern is None or kinds is not None else "index_topk_pattern"
    if kinds is None and isinstance(pattern, str):
        kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif kinds is None and pattern is not None:
        kinds = pattern
    if kinds is None:
        every, offset = fields.count("index_topk_freq", default=1), fields.whole("index_skip_topk_offset", 2)
        name = "index_skip_topk_offset"
        kinds = ["shared" if max(at - offset + 1, 0) % every else "full" for at in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or set(map(str, kinds)) - {"full", "shared"}:
        raise UnusableModel(f"config.json: {name} is not a list of {layers} times 'full' or 'shared'")
    if kinds[0] == "shared":
        raise UnusableModel(
            f"config.json: {name}: the first layer is 'shared', and no earlier one chooses keys"
        )
    return [kind == "shared" for kind in kinds]


def _experts(fields: Fields, kind: str) -> ExpertsConfig:
    if kind in THIRD:
        return sigmoid_experts(fields, default_scale=2.5)
    if fields.config.get("topk_method") == "noaux_tc":
        # DeepSeek-VL2, whose text is a deepseek_v2 with V3's choice. What it leaves out is as V2's class has it.
        scores = fields.config.get("scoring_func") or "softmax"
        return sigmoid_experts(Fields({**fields.config, "scoring_func": scores}), default_normalize=False)
    return softmax_experts(fields)


def softmax_experts(fields: Fields) -> ExpertsConfig:
    """Experts as V2 chooses them: by a softmax over all, or over the best groups."""
    width = fields.count("moe_intermediate_size", default=1407)
    fields.refuse("topk_method", "greedy", "group_limited_greedy")
    fields.refuse("scoring_func", "softmax")
    fields.refuse("norm_topk_prob", False)
    grouped = fields.config.get("topk_method") == "group_limited_greedy"
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=8),
        scale=fields.number("routed_scaling_factor", default=1.0),
        groups=fields.count("n_group", default=1) if grouped else 1,
        top_groups=fields.count("topk_group", default=1) if grouped else 1,
    )
    return ExpertsConfig(
        fields.count("n_routed_experts"),
        width,
        routing,
        shared_width=width * fields.whole("n_shared_experts", 0),
        long_router=True,
    )


def sigmoid_experts(
    fields: Fields, default_scale: float = 1.0, default_shared: int = 0, default_normalize: bool = True
) -> ExpertsConfig:
    """Experts as V3 and many after it choose them: by sigmoids with a correction, within the best groups."""
    fields.refuse("topk_method", "noaux_tc")
    fields.refuse("scoring_func", "sigmoid")
    width = fields.count("moe_intermediate_size", default=1407)
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=8),
        sigmoid=True,
        normalize=fields.flag("norm_topk_prob", default_normalize),
        scale=fields.number("routed_scaling_factor", default=default_scale),
        groups=fields.count("n_group", default=1),
        top_groups=fields.count("topk_group", default=1),
        group_best=2,
    )
    return ExpertsConfig(
        fields.count("n_routed_experts", "num_experts"),
        width,
        routing,
        shared_width=width * fields.whole("n_shared_experts", default_shared),
        correction=True,
        long_router=True,
    )


class DeepseekLoader(Loader):
    """Reads latent attention."""

    # What a layer's attention, and its output's matrix, are called.
    below, last = "self_attn.", "o_proj"

    def attention(self, at: str, index: int) -> LatentAttention:
        """One rank's heads; the latent is the same for all ranks."""
        config, sizes, at = self.config, self.config.latent_of(index), f"{at}{self.below}"
        assert sizes is not None
        width, heads, mine = config.width, config.heads_of(index), self.heads_of(index)

        def bias(name: str, rows: int) -> Tensor | None:
            return self.read(at + name, (rows,), kind="bias") if config.qkv_bias else None

        query_down: Linear | None = None
        query_norm: Norm | None = None
        if sizes.query_rank:
            rank = sizes.query_rank
            query_down = Linear(self.read(at + "q_a_proj", (rank, width)), bias("q_a_proj", rank))
            query_norm = self.scaled_norm(at + "q_a_layernorm", rank, sizes.rank_norm, sizes.query_scale)
        query, gate = self.query_and_gate(at, index)
        rows = sizes.rank + sizes.rope_dim
        down = self.read(at + "kv_a_proj_with_mqa", (rows, width))
        down_bias = bias("kv_a_proj_with_mqa", rows)
        down = self.rotated_last(down.unsqueeze(0), sizes.rank, sizes).squeeze(0)
        if down_bias is not None:
            down_bias = self.rotated_last(down_bias.unsqueeze(0), sizes.rank, sizes).squeeze(0)
        both = sizes.plain_dim + sizes.value_dim
        up = self.read(
            at + "kv_b_proj",
            (heads * both, sizes.rank),
            rows=[range(mine.start * both, mine.stop * both)],
        ).view(len(mine), both, sizes.rank)
        rope_norm: Norm | None = None
        if sizes.rope_norm is not None:
            rope_norm = self.norm(at + "k_rope_only_layernorm", sizes.rope_dim, sizes.rope_norm)
            assert rope_norm.weight_E is not None
            rope_norm.weight_E = self.rotated_last(rope_norm.weight_E.unsqueeze(0), 0, sizes).squeeze(0)
        return LatentAttention(
            config,
            index,
            len(mine),
            query_down,
            query_norm,
            query,
            Linear(down, down_bias),
            self.scaled_norm(at + "kv_a_layernorm", sizes.rank, sizes.rank_norm, sizes.scale),
            rope_norm,
            up[:, : sizes.plain_dim].contiguous(),
            up[:, sizes.plain_dim :].contiguous(),
            self.row_parallel(at + self.last, sizes.value_dim, mine, heads, width, config.attention_out_bias),
            self.score_modifiers(at, index),
            gate,
            None if config.layers[index].choice_of_last else self.indexer(f"{at}indexer.", sizes),
        )

    def scaled_norm(self, name: str, width: int, choice: NormConfig, scale: float) -> Norm:
        """A norm whose output is multiplied with `scale`: its weight is, and is kept in fp32."""
        norm = self.norm(name, width, choice)
        if scale != 1.0:
            assert norm.weight_E is not None
            norm.weight_E = norm.weight_E.float() * scale
        return norm

    def rotated_last(self, rows: Tensor, plain: int, sizes: LatentConfig) -> Tensor:
        """Rows (H, plain + rope, ...) with the planes of the last ones in halves."""
        if not self.config.interleaved:
            return rows
        return tensors.cat((rows[:, :plain], halves(rows[:, plain:], sizes.rope_dim)), 1)

    def query_and_gate(self, at: str, index: int) -> tuple[Linear, Linear | None]:
        """Of this rank's heads; the gate where there is one."""
        sizes, heads = self.config.latent_of(index), self.heads_of(index)
        assert sizes is not None
        head = sizes.plain_dim + sizes.rope_dim
        name, columns = ("q_b_proj", sizes.query_rank) if sizes.query_rank else ("q_proj", self.config.width)
        mine = range(heads.start * head, heads.stop * head)
        rows = self.read(at + name, (self.config.heads_of(index) * head, columns), rows=[mine])
        query = self.rotated_last(rows.view(len(heads), head, -1), sizes.plain_dim, sizes).flatten(0, 1)
        return Linear(query), self.output_gate(at, index)

    def indexer(self, at: str, sizes: LatentConfig) -> Indexer | None:
        """What chooses keys, whole; None: the family has no such."""
        config, index, rotated = self.config, sizes.index, sizes.rope_dim
        if index is None:
            return None
        size, width = index.head_dim, config.width
        order = list(range(size))
        if index.rotated_last:
            order = order[size - rotated :] + order[: size - rotated]
        if index.interleaved:
            order = [*order[:rotated:2], *order[1:rotated:2], *order[rotated:]]

        def rotated_first(rows: Tensor) -> Tensor:
            """Rows (I C, ...) with the coordinates of each plane brought where `ops.rope` reads them."""
            return rows.view(-1, size, *rows.shape[1:])[:, order].flatten(0, 1)

        norm = self.norm(at + "k_norm", size, NormConfig(index.key_eps, layer=True, bias=True))
        assert isinstance(norm, LayerNorm) and norm.weight_E is not None and norm.bias_E is not None
        norm.weight_E, norm.bias_E = rotated_first(norm.weight_E), rotated_first(norm.bias_E)
        query = self.read(at + "wq_b", (index.heads * size, sizes.query_rank))
        return Indexer(
            index,
            rotated,
            query=Linear(rotated_first(query)),
            key=Linear(rotated_first(self.read(at + "wk", (size, width)))),
            key_norm=norm,
            weigh=Linear(self.read(at + "weights_proj", (index.heads, width), dtype=tensors.float32)),
        )


RECIPE = DecoderRecipe(read_config, keys, DeepseekLoader)
