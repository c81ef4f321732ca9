"""DeepSeek V4: every layer attends to a window of the last tokens and, most of them, to entries of the cache that stand for 4
tokens each, which an indexer chooses, or for 128; hyper-connections that mix the residual streams; and experts that a token of
the first layers goes to by a table.

Sources: transformers 5.23 (deepseek_v4), whose defaults are those of deepseek-ai/DeepSeek-V4-Flash-Base, and the names of tensors
that it converts; for `compress_ratios`, which has entries of layers that predict ahead behind those of the model's, the lists
of DeepSeek-V4-Flash and -Pro as others quote them. Published weights are in fp8 and fp4 (`quantization/codes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.rope import RopeConfig
from penstock.loading.checkpoint import Checkpoint
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.compressed_attention import CompressedAttention, Compressor, EntryIndexer
from penstock.models.config import DecoderConfig, ExpertsConfig, HyperConfig, LayerConfig, NormConfig
from penstock.models.decoder import Ends, Experts, Layer
from penstock.models.decoder_loader import Loader
from penstock.models.hyper_connections import HyperHead, MixingConnection, read_parts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes.fields import Fields
from penstock.models.recurrent_config import CompressedConfig, Compression
from penstock.parallel.group import TensorGroup, ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.tensors import host

NEAR, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
OF_RATIO = {0: NEAR, 4: SPARSE, 128: HEAVY}
RATES = {SPARSE: 4, HEAVY: 128}

KEYS = CheckpointKeys(
    embedding="embed",
    layer="layers.{}.",
    norm="norm",
    head="head",
    prefixes=("", "model."),
    attention_norm="attn_norm",
    feed_forward_norm="ffn_norm",
    experts=ExpertKeys(
        router="ffn.gate",
        gate="ffn.experts.{}.w1",
        up="ffn.experts.{}.w3",
        down="ffn.experts.{}.w2",
        shared_gate_proj="ffn.shared_experts.w1",
        shared_up="ffn.shared_experts.w3",
        shared_down="ffn.shared_experts.w2",
        correction="ffn.gate.bias",
    ),
    # Layers that predict several tokens ahead.
    ignored=(r"(model\.)?mtp\..*",),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    for name, served in (
        ("num_key_value_heads", 1),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("norm_topk_prob", True),
        ("scoring_func", "sqrtsoftplus"),
        ("hidden_act", "silu"),
        ("topk_method", "noaux_tc"),
    ):
        fields.refuse(name, served)
    count = fields.count("num_hidden_layers", default=43)
    heads, size = fields.count("num_attention_heads", default=64), fields.count("head_dim", default=512)
    positions = fields.count("max_position_embeddings", default=1048576)
    near, far = _ropes(fields, size, positions)
    groups = fields.count("o_groups", default=8)
    if heads % groups:
        raise UnusableModel(f"config.json: o_groups {groups} does not divide num_attention_heads {heads}")
    mixer = CompressedConfig(
        head_dim=size,
        window=fields.count("sliding_window", default=128),
        query_rank=fields.count("q_lora_rank", default=1024),
        out_groups=groups,
        out_rank=fields.count("o_lora_rank", default=1024),
    )
    rates = _rates(fields)
    index_dim = fields.count("index_head_dim", default=128)
    if far.head_dim > index_dim:
        raise UnusableModel(
            f"config.json: index_head_dim {index_dim} is less than the {far.head_dim} numbers of a head that are rotated"
        )
    mixers = {
        NEAR: mixer,
        HEAVY: replace(mixer, compression=Compression(rates[HEAVY], overlaps=False)),
        SPARSE: replace(
            mixer,
            compression=Compression(rates[SPARSE], overlaps=True),
            index_heads=fields.count("index_n_heads", default=64),
            index_dim=index_dim,
            most=fields.count("index_topk", default=512),
        ),
    }
    experts = _experts(fields)
    norm = fields.norm("rms_norm_eps", 1e-6)
    return DecoderConfig(
        vocab_size=fields.count("vocab_size", default=129280),
        width=fields.count("hidden_size", default=4096),
        feed_forward=experts.shared_width,
        layers=tuple(
            LayerConfig(
                rope=near if kind == NEAR else far,
                experts=replace(experts, by_token=by_token, correction=not by_token),
                attends=kind != NEAR,
                recurrent=mixers[kind],
            )
            for kind, by_token in zip(_kinds(fields, count), _by_token(fields, count), strict=True)
        ),
        heads=heads,
        kv_heads=1,
        head_dim=size,
        max_positions=positions,
        norm=norm,
        activation="silu",
        interleaved=True,
        sinks=True,
        hyper=HyperConfig(
            fields.count("hc_mult", default=4),
            magnitude=2.0,
            eps=fields.number("hc_eps", default=1e-6),
            norm_eps=norm.eps,
            mixing_rounds=fields.count("hc_sinkhorn_iters", default=20),
        ),
        tied_head=fields.flag("tie_word_embeddings"),
        long_head=True,  # in DeepSeek's own code
    )


def _ropes(fields: Fields, size: int, positions: int) -> tuple[RopeConfig, RopeConfig]:
    """Of layers that attend to a window alone, and of those that attend to entries, too, which may be stretched."""
    given = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise UnusableModel("config.json: rope_parameters is not an object")
    if not (isinstance(given.get("main"), dict) and isinstance(given.get("compress"), dict)):
        stretch = {
            name: value for name, value in given.items() if name not in ("main", "compress", "rope_theta")
        }
        given = {
            "main": {"rope_theta": fields.number("rope_theta", default=10000.0)},
            "compress": {**stretch, "rope_theta": fields.number("compress_rope_theta", default=160000.0)},
        }
        share = fields.config.get("partial_rotary_factor")
        if share is None:
            share = fields.count("qk_rope_head_dim", default=max(size // 8, 1)) / size
        for kind in given.values():
            kind["partial_rotary_factor"] = share
    read = Fields({"rope_parameters": given})
    near, far = (read.rope(size, positions, share=1 / 8, kind=kind) for kind in ("main", "compress"))
    if far.variant == "yarn" and far.attention_factor is None:
        far = replace(far, attention_factor=1.0)  # scores are not scaled as those of other families
    if near.head_dim != far.head_dim:
        raise UnusableModel("config.json: rope_parameters rotate parts of heads that differ in size")
    return near, far


def _rates(fields: Fields) -> dict[str, int]:
    """Tokens of an entry, by the kind of layer."""
    given = fields.part("compress_rates")
    named = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
    return {kind: fields.count(named[kind], default=given.count(kind, default=RATES[kind])) for kind in RATES}


def _kinds(fields: Fields, count: int) -> list[str]:
    """What each layer attends to: `layer_types`, or `compress_ratios`."""
    ratios = fields.config.get("compress_ratios")
    if fields.config.get("layer_types") is None and ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < count or not all(r in OF_RATIO for r in ratios):
            raise UnusableModel(
                f"config.json: compress_ratios is not a list of {count} times 0, 4 or 128, or more of them"
            )
        return [OF_RATIO[ratio] for ratio in ratios[:count]]
    default = [HEAVY if at < 2 or at % 2 == 0 else SPARSE for at in range(count)]
    kinds = fields.layer_kinds(count, default)
    for kind in kinds:
        if kind not in (NEAR, SPARSE, HEAVY):
            raise UnusableModel(
                f"config.json: layer_types has {kind[:40]!r}; served are {NEAR!r}, {SPARSE!r} and {HEAVY!r}"
            )
    return kinds


def _by_token(fields: Fields, count: int) -> list[bool]:
    """Which layers' experts a table chooses: `mlp_layer_types`, or the first `num_hash_layers`."""
    kinds = fields.config.get("mlp_layer_types")
    if kinds is None:
        first = fields.whole("num_hash_layers", 3)
        return [at < first for at in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - {"hash_moe", "moe"}:
        raise UnusableModel(
            f"config.json: mlp_layer_types is not a list of {count} times 'hash_moe' or 'moe'"
        )
    return [kind == "hash_moe" for kind in kinds]


def _experts(fields: Fields) -> ExpertsConfig:
    width = fields.count("moe_intermediate_size", default=2048)
    fields.refuse("n_shared_experts", 1)
    limit = fields.number("swiglu_limit", default=10.0)
    if limit <= 0:
        raise UnusableModel(f"config.json: swiglu_limit is {limit:g}, not a positive number")
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=6),
        root_softplus=True,
        normalize=True,
        scale=fields.number("routed_scaling_factor", default=1.5),
    )
    return ExpertsConfig(
        fields.count("n_routed_experts", "num_local_experts", default=256),
        width,
        routing,
        shared_width=width,
        long_router=True,
        limit=limit,
    )


class DeepseekV4Loader(Loader):
    """Reads compressed attention, whose heads and groups are divided; keys, compressors and indexers all ranks hold."""

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        # As published, or as transformers names them when it saves.
        self.key_norm, self.hyper_head = "kv_norm", "hc_head_"
        if checkpoint.has("model.embed_tokens.weight"):
            keys = replace(keys, embedding="embed_tokens")
            self.key_norm, self.hyper_head = "norm", "hc_head.hc_"
        super().__init__(config, keys, checkpoint, group)
        self.heads = group.even_share(config.heads, "the attention heads (num_attention_heads)")

    def layer(self, index: int) -> Layer:
        """One layer."""
        made, at = super().layer(index), self.prefix + self.keys.at_layer(index)
        made.attention_hyper = self.connection(f"{at}hc_attn_")
        made.feed_forward_hyper = self.connection(f"{at}hc_ffn_")
        return made

    def ends(self) -> Ends:
        """Embeddings, last norm and head."""
        made, hyper = super().ends(), self.hyper
        if self.group.is_last_stage:
            base = f"{self.prefix}{self.hyper_head}"
            names = (f"{base}fn", f"{base}base", f"{base}scale")
            columns = hyper.count * self.config.width
            made.hyper = HyperHead(hyper, *read_parts(self.checkpoint, names, hyper.count, columns, 1))
        return made

    def of_other_stages(self, mine: range) -> list[str]:
        """Patterns of what other stages of the pipeline read."""
        return [*super().of_other_stages(mine), re.escape(self.prefix + self.hyper_head) + ".*"]

    @property
    def hyper(self) -> HyperConfig:
        """The family's."""
        assert isinstance(self.config.hyper, HyperConfig)
        return self.config.hyper

    def connection(self, at: str) -> MixingConnection:
        """Of a branch."""
        streams, names = self.hyper.count, (f"{at}fn", f"{at}base", f"{at}scale")
        rows, columns = (2 + streams) * streams, streams * self.config.width
        return MixingConnection(self.hyper, *read_parts(self.checkpoint, names, rows, columns, 3))

    def activation(self) -> Callable[[Tensor], Tensor]:
        """Of the shared expert as of all others."""
        experts = self.config.layers[0].experts
        assert experts is not None
        return partial(
            ops.gated_limited, activation=ops.ACTIVATIONS[self.config.activation], limit=experts.limit
        )

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """Those that a table chooses have it in place of a correction."""
        made = super().experts(at, choice)
        if choice.by_token:
            assert self.keys.experts is not None
            shape = (self.config.vocab_size, choice.routing.per_token)
            made.by_token_VA = self.checkpoint.tensor(
                f"{at}{self.keys.experts.router}.tid2eid", shape, dtype=tensors.int64
            )
            if not self.checkpoint.is_rehearsal:
                numbers = host(made.by_token_VA)
                least, most = int(numbers.min()), int(numbers.max())
                if least < 0 or most >= choice.count:
                    raise UnusableModel(
                        f"{at}{self.keys.experts.router}.tid2eid names experts {least} to {most}, of {choice.count}"
                    )
        return made

    def norm(self, name: str, width: int, choice: NormConfig | None = None) -> RmsNorm:
        """Norms are kept in fp32."""
        weight = self.read(name, (width,), dtype=tensors.float32)
        return RmsNorm(weight, (choice or self.config.norm).eps)

    def token_mixer(self, at: str, index: int) -> CompressedAttention:
        """This rank's heads."""
        config, group, at = self.config, self.group, f"{at}attn."
        sizes, rope = config.compressed[index], config.layers[index].rope
        assert sizes is not None and rope is not None
        size, heads, width = sizes.head_dim, self.heads, config.width
        groups = group.even_share(sizes.out_groups, "the groups of the output projection (o_groups)")
        query = self.read(
            at + "wq_b",
            (config.heads * size, sizes.query_rank),
            rows=[range(heads.start * size, heads.stop * size)],
        )
        down = self.stacked(
            [
                (at + "wq_a", sizes.query_rank, [range(sizes.query_rank)]),
                (at + "wkv", size, [range(size)]),
            ],
            width,
        )
        down[sizes.query_rank :] = in_halves(down[sizes.query_rank :], size, rope.head_dim)
        inner = config.heads // sizes.out_groups * size
        out_GOI = self.read(
            at + "wo_a",
            (sizes.out_groups * sizes.out_rank, inner),
            rows=[range(groups.start * sizes.out_rank, groups.stop * sizes.out_rank)],
        ).view(len(groups), sizes.out_rank, inner)
        out_GIO = in_halves(out_GOI.permute(2, 0, 1), size, rope.head_dim).permute(1, 0, 2).contiguous()
        pending, compressor, indexer = self.compression(at, sizes, rope.head_dim)
        return CompressedAttention(
            sizes,
            len(heads),
            config.ropes.index(rope),
            rope.head_dim,
            config.compressions.index(sizes.compression),
            down=Linear(down),
            query_norm=self.norm(at + "q_norm", sizes.query_rank),
            query=Linear(in_halves(query, size, rope.head_dim)),
            head_norm=RmsNorm(None, config.norm.eps),
            key_norm=self.norm_in_halves(at + self.key_norm, size, rope.head_dim),
            sinks_H=self.checkpoint.tensor(
                at + "attn_sink", (config.heads,), ranges([heads]), dtype=tensors.float32
            ),
            out_GIO=out_GIO,
            out=self.row_parallel(at + "wo_b", sizes.out_rank, groups, sizes.out_groups, width, False),
            pending=pending,
            compressor=compressor,
            indexer=indexer,
        )

    def compression(
        self, at: str, sizes: CompressedConfig, rotated: int
    ) -> tuple[Linear | None, Compressor | None, EntryIndexer | None]:
        """What makes entries of tokens, and what chooses entries."""
        if sizes.compression is None:
            return None, None, None
        pending, compressor = self.compressor(f"{at}compressor.", sizes.compression, sizes.head_dim, rotated)
        if not sizes.index_heads:
            return Linear(pending), compressor, None
        size, at = sizes.index_dim, f"{at}indexer."
        index_pending, index = self.compressor(f"{at}compressor.", sizes.compression, size, rotated)
        query = self.read(at + "wq_b", (sizes.index_heads * size, sizes.query_rank))
        weigh = self.read(at + "weights_proj", (sizes.index_heads, self.config.width), dtype=tensors.float32)
        indexer = EntryIndexer(sizes, rotated, Linear(in_halves(query, size, rotated)), Linear(weigh), index)
        return Linear(tensors.cat((pending, index_pending))), compressor, indexer

    def compressor(
        self, at: str, compression: Compression, size: int, rotated: int
    ) -> tuple[Tensor, Compressor]:
        """The matrix that makes values and gates of tokens, and what makes entries of them."""
        series, width = 1 + compression.overlaps, self.config.width
        whole = [range(series * size)]
        parts = [(at + name, series * size, whole) for name in ("wkv", "wgate")]
        pending = in_halves(self.stacked(parts, width), size, rotated)
        bias = self.checkpoint.tensor(f"{at}ape", (compression.rate, series * size), dtype=tensors.float32)
        bias = in_halves(bias.t(), size, rotated).t()
        bias_VD = tensors.cat(bias.chunk(series, 1)).contiguous()
        norm = self.norm_in_halves(at + "norm", size, rotated)
        return pending, Compressor(compression, size, rotated, bias_VD, norm)

    def norm_in_halves(self, name: str, size: int, rotated: int) -> RmsNorm:
        """Of a head, or an entry."""
        made = self.norm(name, size)
        assert made.weight_E is not None
        made.weight_E = in_halves(made.weight_E, size, rotated)
        return made


def in_halves(rows: Tensor, size: int, rotated: int) -> Tensor:
    """Rows (H D, ...) of heads of D = `size` numbers, whose last `rotated` are planes of neighbours, with the planes in halves,
    where `ops.rope` reads them.
    """
    plain = size - rotated
    order = [*range(plain), *range(plain, size, 2), *range(plain + 1, size, 2)]
    return rows.reshape(-1, size, *rows.shape[1:])[:, order].flatten(0, 1)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, DeepseekV4Loader)
