"""The text of Qwen 4, alone or as published with a tower for images: Qwen 3.5 with experts, whose attention reads the blocks of
keys that an indexer chooses, with hyper-connections of low rank in place of norms and one residual, and n-gram embeddings in some layers.

Source: transformers 5.23 (qwen4_exp), and the config.json of Qwen/Qwen3.8-Flash-Next, the published one, as other projects cite it.
"""

import re
from dataclasses import replace
from itertools import islice
from typing import Any

from penstock.errors import UnusableModel
from penstock.layers.linear import Embedding, Linear
from penstock.models.config import (
    BlockIndexConfig,
    DecoderConfig,
    LowRankHyperConfig,
    NormConfig,
)
from penstock.models.decoder import Attention, Ends, LatentAttention, Layer
from penstock.models.hyper_connections import LowRankConnection, LowRankHead, StreamNorm
from penstock.models.indexer import BlockIndexer
from penstock.models.ngram_config import MOST_IDS, NgramConfig, hash_multipliers, primes
from penstock.models.ngram_embeddings import NgramInjection, NgramTable
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen2_moe, qwen3_5, qwen3_5_moe, qwen3_next
from penstock.models.recipes.fields import MOST, Fields
from penstock_kernels import tensors

# What hashes n-grams is computed from config.json.
COMPUTED = r".*\.ple_embedding\.(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)"

KEYS = replace(
    qwen3_5_moe.KEYS,
    norm="",
    attention_norm="",
    feed_forward_norm="",
    ignored=(*qwen3_5_moe.KEYS.ignored, COMPUTED),
)

# What the published config.json may leave to the class of transformers.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 1.0,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
}
MOST_HEADS = 4096  # of n-grams in all layers: a prime number is looked for for each; published are 16


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = {**DEFAULTS, **qwen3_5.text_of(config)}
    if isinstance(text.get("layer_types"), list):
        # Published as the one, and saved by transformers as the other.
        kinds = {"indexed_attention": "full_attention"}
        text["layer_types"] = [kinds.get(str(kind), kind) for kind in text["layer_types"]]
    fields = Fields(text)
    shared = fields.count("shared_expert_intermediate_size", default=512)
    read = qwen2_moe.with_experts(text, qwen3_next.hybrid(text), shared)
    norm, streams = read.norm, fields.count("hc_count", default=4)
    if streams < 2:
        raise UnusableModel(
            f"config.json: hc_count is {streams}, and hyper-connections have 2 streams or more"
        )
    hyper = LowRankHyperConfig(streams, fields.count("hc_lowrank", default=320), norm)
    read = replace(read, pre_norm=False, final_norm=False, index=index(fields, read), hyper=hyper)
    return read.with_layers(ngrams=ngrams(fields, read, streams))


def index(fields: Fields, read: DecoderConfig) -> BlockIndexConfig:
    """What chooses keys, in every layer that attends."""
    fields.refuse("indexer_kv_heads", 1)
    size, block = fields.count("indexer_head_dim"), fields.count("indexer_compress_ratio")
    budget = fields.count("indexer_budget")
    if budget % block:
        raise UnusableModel(
            f"config.json: indexer_budget {budget} is no multiple of indexer_compress_ratio {block}"
        )
    rotated = max((rope.head_dim for rope in read.ropes), default=0)
    if rotated > size:
        raise UnusableModel(
            f"config.json: indexer_head_dim {size} is less than the {rotated} numbers of a head that are rotated"
        )
    return BlockIndexConfig(
        heads=fields.count("indexer_n_heads"),
        head_dim=size,
        block=block,
        most=budget // block,
        norm=NormConfig(read.norm.eps, offset=1.0),
    )


def ngrams(fields: Fields, read: DecoderConfig, streams: int) -> list[NgramConfig | None]:
    """Of each layer: `ple_layer_ids` counts from 1."""
    layers = fields.config.get("ple_layer_ids") or []
    if not isinstance(layers, list) or not all(
        isinstance(at, int) and 1 <= at <= read.num_layers for at in layers
    ):
        raise UnusableModel(f"config.json: ple_layer_ids is not a list of layers from 1 to {read.num_layers}")
    layers = sorted(set(layers))
    made: list[NgramConfig | None] = [None] * read.num_layers
    if not layers:
        return made
    size = fields.count("ngram_size", default=3)
    width = fields.count("ple_embed_dim", default=read.width)
    heads = (size - 1) * fields.count("heads_per_ngram", default=8)
    if not 0 < len(layers) * heads <= MOST_HEADS or width % heads:
        raise UnusableModel(
            f"config.json: ple_embed_dim {width} is not divided by {heads} heads of n-grams, 1 to {MOST_HEADS} of which "
            "are supported in all layers (ngram_size, heads_per_ngram, ple_layer_ids)"
        )
    least = fields.count("ngram_vocab_size_base", default=20_000_000)
    if least * heads > MOST:
        raise UnusableModel(
            f"config.json: {heads} heads of ngram_vocab_size_base {least} are more than {MOST} rows"
        )
    if read.vocab_size > MOST_IDS:
        raise UnusableModel(
            f"config.json: vocab_size is {read.vocab_size}, and n-grams are of up to {MOST_IDS} tokens"
        )
    found, filled = primes(least), fields.count("make_ngram_vocab_size_divisible_by", default=128)
    seed = fields.whole("seed", 1234)
    for number, at in enumerate(layers):
        if read.layers[at - 1].recurrent is None:
            raise UnusableModel(f"config.json: ple_layer_ids has layer {at}, which is no linear_attention")
        parts = tuple(islice(found, heads))
        made[at - 1] = NgramConfig(
            multipliers=hash_multipliers(read.vocab_size, size, number, seed),
            parts=parts,
            rows=-(-sum(parts) // filled) * filled,
            head_dim=width // heads,
            end=end_token(fields),
            kernel=fields.count("ple_conv_kernel_size", default=4),
            channels=streams * read.width,
        )
    return made


def end_token(fields: Fields) -> int:
    """The first of `eos_token_id`."""
    end = fields.config.get("eos_token_id")
    if isinstance(end, list):
        end = next(iter(end), None)
    if isinstance(end, bool) or not isinstance(end, int) or end < 0:
        raise UnusableModel(
            "config.json: eos_token_id is no token, and n-grams begin behind one (ple_layer_ids)"
        )
    return end


class Qwen4Loader(qwen3_5_moe.StackedLoader):
    """Reads indexers, hyper-connections and n-gram embeddings, which all ranks hold whole; but each a part of the tables' rows."""

    def attention(self, at: str, index: int) -> Attention | LatentAttention:
        """Attention of a layer, with its indexer."""
        made, sizes = super().attention(at, index), self.config.index
        assert isinstance(made, Attention) and isinstance(sizes, BlockIndexConfig)
        at = f"{at}self_attn.indexer."
        rows = (sizes.heads + 1) * sizes.head_dim
        key_norm = self.norm(at + "k_layernorm", sizes.head_dim, sizes.norm)
        assert key_norm.weight_E is not None
        made.indexer = BlockIndexer(
            sizes,
            Linear(self.read(at + "index_qk_proj", (rows, self.config.width))),
            self.norm(at + "q_layernorm", sizes.head_dim, sizes.norm),
            key_norm.weight_E,
        )
        return made

    def layer(self, index: int) -> Layer:
        """One layer."""
        made, at = super().layer(index), self.prefix + self.keys.at_layer(index)
        made.attention_hyper = self.connection(at + "attn_hyper_connection.")
        made.feed_forward_hyper = self.connection(at + "mlp_hyper_connection.")
        config = self.config.layers[index].ngrams
        made.ngrams = None if config is None else self.ngrams(at + "ple.", config)
        return made

    def ends(self) -> Ends:
        """Embeddings and head, and what mixes the streams in front of it."""
        made = super().ends()
        if self.group.is_last_stage:
            made.hyper = LowRankHead(self.connection(f"{self.prefix}hyper_connection_mixer.", gives=False))
        return made

    def of_other_stages(self, mine: range) -> list[str]:
        """Patterns of what other stages of the pipeline read."""
        others = super().of_other_stages(mine)
        return [*others, re.escape(f"{self.prefix}hyper_connection_mixer.") + ".*"]

    def connection(self, at: str, gives: bool = True) -> LowRankConnection:
        """Of a branch; or of none, which only reads."""
        config, width = self.config.hyper, self.config.residual_width
        assert isinstance(config, LowRankHyperConfig)
        parts = [(at + "input_mix_weight_down", config.rank, [range(config.rank)])]
        if gives:
            parts.append((at + "block_inject_weight", config.count, [range(config.count)]))
        return LowRankConnection(
            config,
            self.stream_norm(at + "hc_norm"),
            Linear(self.stacked(parts, width)),
            Linear(self.read(at + "input_mix_weight_up", (width, config.rank))),
        )

    def stream_norm(self, name: str) -> StreamNorm:
        """A norm of each stream."""
        weight = self.read(name, (self.config.residual_width,), dtype=tensors.float32)
        return StreamNorm((weight + 1.0).view(-1, self.config.width), self.config.norm.eps)

    def ngrams(self, at: str, config: NgramConfig) -> NgramInjection:
        """What adds n-gram embeddings to a layer."""
        width, streams = self.config.width, self.config.residual_width
        columns = len(config.parts) * config.head_dim
        parts = [(f"{at}key_proj", streams, [range(streams)]), (f"{at}value_proj", width, [range(width)])]
        keys, queries, values = (self.stream_norm(f"{at}norm_{name}") for name in ("key", "query", "conv"))
        weight = self.checkpoint.tensor(
            f"{at}conv1d.weight", (streams, 1, config.kernel), dtype=tensors.float32
        )
        return NgramInjection(
            config,
            NgramTable(config, self.ngram_table(f"{at}ple_embedding.ngram_embedding.", config)),
            Linear(self.stacked(parts, columns)),
            (keys, queries, values),
            weight.squeeze(1).t().contiguous(),
        )

    def ngram_table(self, at: str, config: NgramConfig) -> Embedding:
        """This rank's rows of a table, which the checkpoint has whole or in `split_ngram_parts` tensors."""
        count = -(-config.rows // self.group.size)
        mine = range(
            min(self.group.rank * count, config.rows), min((self.group.rank + 1) * count, config.rows)
        )
        table = self.checkpoint.new((len(mine), config.head_dim))
        stored = {f"{at}weight": range(config.rows)}
        shards = sum(name.startswith(f"{at}shard_") for name in self.checkpoint.stored)
        if shards:
            size = -(-config.rows // shards)
            begins = range(0, config.rows, size)
            stored = {
                f"{at}shard_{shard}.weight": range(begin, min(begin + size, config.rows))
                for shard, begin in enumerate(begins)
            }
        for name, rows in stored.items():
            shape = (len(rows), config.head_dim)
            begin, end = max(rows.start, mine.start), min(rows.stop, mine.stop)
            if begin < end:
                into = table[begin - mine.start : end - mine.start]
                self.checkpoint.fill(into, name, shape, [slice(begin - rows.start, end - rows.start)])
            else:
                self.checkpoint.expect(name, shape)
        return Embedding(table, mine, self.group)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, Qwen4Loader)
