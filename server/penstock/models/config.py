"""What a recipe reads from a family's config.json: the shape of a decoder and the choices its family made.

Knows no weights. Used by the decoder, its loader, Prepare and the doctor.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from penstock.layers.rope import RopeConfig
from penstock.models.ngram_config import NgramConfig
from penstock.models.recurrent_config import (
    CompressedConfig,
    Compression,
    RecurrentConfig,
    SmoothingConfig,
    StateShape,
)
from penstock.parallel.group import TensorGroup
from penstock_kernels.routing import Routing

# Positions of a model that has no last one.
NO_END = 1 << 31


@dataclass(frozen=True)
class Window:
    """Which keys a query sees beside those before it: the last `size` of them, its own among them; or, in
    chunks, those of its own `size` positions. Beltagy et al., "Longformer", 2020 (windows); the Llama 4 release (chunks).
    """

    size: int
    chunked: bool = False


@dataclass(frozen=True)
class Temperature:
    """Queries are multiplied with 1 + scale ln(1 + floor((position + offset) / span)), so that attention over long
    contexts stays as sharp as over short ones; or, where it is not stepped, with 1 + scale ln(max(1, (position + 1) / span)).
    """

    scale: float
    span: int
    offset: int = 0
    stepped: bool = True


@dataclass(frozen=True)
class NormConfig:
    """Root mean square normalisation, or layer normalisation with mean and bias."""

    eps: float
    layer: bool = False  # layer normalisation
    bias: bool = False
    weight: bool = True
    offset: float = 0.0  # added to the weight, which is then kept in fp32


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of the feed-forward layer."""

    count: int
    width: int  # F of one expert
    routing: Routing
    always: int = 0  # so many of them, the last ones, are chosen for every token
    shared_width: int = 0  # F of the expert that every token goes to; 0: none
    latent: int = (
        0  # experts read and give so many numbers, which matrices make of a token and of their sum; 0: E
    )
    shared_gate: bool = False  # its output is multiplied with a sigmoid of the token
    correction: bool = False  # scores are corrected for the choice
    long_router: bool = False  # its matrix is kept in fp32
    biases: bool = False  # of router and experts
    clamp: tuple[float, float] | None = None  # (limit, alpha) of `ops.gated_clamped`
    limit: float = 0.0  # of `ops.gated_limited`; 0: none
    cap: float = 0.0  # of `ops.gated_capped`; 0: none
    shared_cap: float = 0.0  # the same of the shared expert
    weighs_input: bool = False  # weights are multiplied with what an expert reads, not with what it gives
    by_token: bool = False  # a table says of each token of the vocabulary which experts it goes to


@dataclass(frozen=True)
class DistanceConfig:
    """What queries say of distances is added to scores (see `ops.DistanceBias`)."""

    rank: int  # numbers of a query and head
    reach: int  # distances below this have a bias


@dataclass(frozen=True)
class IndexConfig:
    """What chooses the keys that latent attention attends to (see `indexer`)."""

    heads: int
    head_dim: int  # numbers of an index key
    most: int  # keys that a query attends to
    key_eps: float = 1e-6  # of the layer norm of keys
    # In the checkpoint: neighbours are the coordinates of a plane; the rotated numbers are the last of a head.
    interleaved: bool = False
    rotated_last: bool = False


@dataclass(frozen=True)
class BlockIndexConfig:
    """What chooses the blocks of keys that attention attends to (see `indexer`)."""

    heads: int
    head_dim: int  # numbers of an index key
    block: int  # tokens of a block
    most: int  # complete blocks that a query attends to
    norm: NormConfig  # of queries, and of blocks' keys


@dataclass(frozen=True)
class HeadBlockIndexConfig:
    """What chooses the blocks of keys that each key head's queries attend to (see `indexer`)."""

    heads: int  # as many as key heads
    head_dim: int  # numbers of an index key
    block: int  # tokens of a block
    most: int  # blocks that a query attends to
    latest: int  # of them those up to its own
    layers: tuple[int, ...]  # which choose; the others attend to all keys


@dataclass(frozen=True)
class LatentConfig:
    """Attention whose cache holds one latent for all heads (DeepSeek-V2's MLA)."""

    rank: int  # numbers of the latent
    rope_dim: int  # D of the part of a key that is rotated, and is the same for all heads
    plain_dim: int  # D of the part of each head that is not
    value_dim: int
    query_rank: int = 0  # 0: queries come straight from the hidden state
    reads_both: bool = False  # queries and gates are made of those numbers normalised, and as they were
    rank_norm: NormConfig = field(default_factory=lambda: NormConfig(1e-6))
    query_scale: float = 1.0  # of the query's numbers behind their norm
    scale: float = 1.0  # of the latent behind its norm
    rope_norm: NormConfig | None = None  # of the part of a key that is rotated, before it is
    index: IndexConfig | None = None  # queries attend to chosen keys alone

    @property
    def cached(self) -> int:
        """Numbers that the cache holds of a token: latent, rotated key and, behind them, the index key."""
        return self.rank + self.rope_dim + (0 if self.index is None else self.index.head_dim)


@dataclass(frozen=True)
class OutputGate:
    """What is attended to is multiplied with gates that are made of what attention read. Qiu et al., "Gated Attention
    for Large Language Models", 2025.
    """

    function: Literal["sigmoid", "softplus"]
    per_number: bool = False  # each number has one; else each head
    in_query: bool = False  # they are rows behind each head's query; else a matrix of their own makes them


@dataclass(frozen=True)
class PerLayerConfig:
    """A second table of embeddings, with numbers for every layer (see `per_layer_inputs`)."""

    rows: int
    width: int  # numbers of a token for a layer


@dataclass(frozen=True)
class StreamsConfig:
    """Several residual streams (see `streams`)."""

    count: int
    active: int  # the stream that a layer computes
    rank: int  # of the branch beside attention
    scales_output: bool = True


@dataclass(frozen=True)
class HyperConfig:
    """Residual streams that every branch reads a mixture of (see `hyper_connections`)."""

    count: int
    magnitude: float  # what a branch gives is added with up to so much of it
    eps: float  # added to shares
    norm_eps: float
    mixing_rounds: int = 0  # of what makes mixtures of streams doubly stochastic; 0: streams are not mixed


@dataclass(frozen=True)
class LowRankHyperConfig:
    """Residual streams whose mixtures, number by number, a layer of few numbers makes (see `hyper_connections`)."""

    count: int
    rank: int
    norm: NormConfig  # of each stream


@dataclass(frozen=True)
class LayerConfig:
    """What a layer may have otherwise than its neighbours."""

    rope: RopeConfig | None = None  # None: it rotates nothing
    window: Window | None = None  # None: it attends to all earlier tokens
    experts: ExpertsConfig | None = None  # None: its feed-forward layer is dense
    attends: bool = True  # it has attention, and a place in the KV cache
    recurrent: RecurrentConfig | None = None  # a mixer with a state, in place of attention or beside it
    ngrams: NgramConfig | None = None  # it adds embeddings of its tokens' n-grams to what it reads
    feeds_forward: bool = True  # it has a feed-forward layer, or experts
    temperature: Temperature | None = None
    qk_normed: bool = True  # where the family normalises queries and keys
    heads: int = 0  # H; 0: the model's
    kv_heads: int = 0  # K; 0: the model's
    head_dim: int = 0  # D; 0: the model's
    latent: LatentConfig | None = None  # None: the model's
    distances: DistanceConfig | None = None
    smoothing: SmoothingConfig | None = None
    values_are_keys: bool = False  # values are keys before norm and rotation
    choice_of_last: bool = False  # it attends to the keys that the last layer with an indexer has chosen
    # The earlier layer whose keys and values it reads; None: its own. Brandon et al., "Reducing Transformer Key-Value Cache
    # Size with Cross-Layer Attention", 2024.
    keys_of: int | None = None
    feed_forward: int = 0  # F; 0: the model's
    gate_sparsity: float = 0.0  # the share of a token's gates that stay shut

    @property
    def has_cache(self) -> bool:
        """Whether it has keys and values of its own."""
        return self.attends and self.keys_of is None

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """What a rank keeps of a sequence for it beside its KV cache. Raises UnusableModel."""
        return tuple(itertools.chain.from_iterable(part.states(group) for part in self.parts_with_state))

    @property
    def parts_with_state(self) -> list[RecurrentConfig]:
        """What of it keeps a state of a sequence."""
        parts: list[RecurrentConfig | None] = [self.recurrent, self.ngrams, self.smoothing]
        return [part for part in parts if part is not None]


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder and the choices its family made. Counts are of the whole model, over all ranks."""

    vocab_size: int
    width: int  # E
    feed_forward: int  # F
    layers: tuple[LayerConfig, ...]
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int  # longest sequence the model was made for
    norm: NormConfig
    activation: str  # a name in penstock_kernels.ACTIVATIONS

    # Attention.
    scale: float | None = None  # of the scores; None: head_dim ** -0.5
    interleaved: bool = False  # in the checkpoint, neighbours of D are the coordinates of a plane
    softcap: float = 0.0
    slopes: tuple[float, ...] = ()  # ALiBi: of each head
    slopes_rounded: bool = False  # its products with positions are rounded to bf16
    slopes_scale: float = 1.0  # and then multiplied with this
    sinks: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: NormConfig | None = None
    qk_norm_over: str = "head"  # "head": one weight (D,) for all; "heads": (H, D); "all": over H D numbers
    qk_norm_rotated: bool = False  # they are normalised behind the rotation
    value_norm: NormConfig | None = None
    value_scale: float = 1.0  # of values
    value_dim: int = (
        0  # numbers of a value in the checkpoint, where they are fewer than D; filled up with zeros
    )
    output_gate: OutputGate | None = None
    norm_gate_rank: int = 0  # norms are followed by a gate of that rank; 0: they are not
    clip_qkv: float = 0.0
    latent: LatentConfig | None = None
    index: BlockIndexConfig | HeadBlockIndexConfig | None = (
        None  # queries attend to chosen blocks of keys alone
    )

    # Feed-forward.
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False

    # A layer.
    parallel: bool = False  # feed-forward reads what attention reads, and both are added
    pre_norm: bool = True  # what a branch reads is normalised
    branch_norm: bool = False  # what a branch gives is normalised
    sum_norm: bool = False  # the sum with what a branch gives is normalised
    residual_normed: bool = False  # what a branch gives is added to what it read
    residual_scale: float = 1.0  # of what a branch gives
    # MiniMax: (of the residual, of what a branch gives) of attention, recurrent layers and feed-forward.
    residual_factors: tuple[tuple[float, float], ...] = ()
    experts_beside: bool = False  # a layer with experts has its dense feed-forward layer, too
    halved_every: int = 0  # behind so many layers, and again, the residual is halved; 0: never
    layer_scales: bool = False  # what a layer gives is multiplied with a number of its own

    # Ends.
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    embedding_width: int = 0  # of the table, where it is not E
    further_embeddings: int = 0  # rows of the table in the checkpoint that no text has
    per_layer: PerLayerConfig | None = None
    streams: StreamsConfig | None = None
    hyper: HyperConfig | LowRankHyperConfig | None = None
    learned_positions: int = 0  # rows of a table of positions
    position_offset: int = 0  # its row for position 0
    final_norm: bool = True
    tied_head: bool = False
    head_bias: bool = False
    long_head: bool = False  # its products are fp32, whatever the dtype of its matrix
    logit_scale: float = 1.0
    logit_softcap: float = 0.0

    # An encoder-decoder has these.
    has_encoder: ClassVar[bool] = False
    max_side_positions: ClassVar[int] = 0
    default_start: ClassVar[int | None] = None

    @cached_property
    def compressed(self) -> tuple[CompressedConfig | None, ...]:
        """Of each layer: how it attends to a window and to entries; None: it is of another kind."""
        mixers = (layer.recurrent for layer in self.layers)
        return tuple(mixer if isinstance(mixer, CompressedConfig) else None for mixer in mixers)

    @cached_property
    def compressions(self) -> tuple[Compression | None, ...]:
        """Of all layers that attend to entries, or to a window beside them, each once."""
        return tuple(dict.fromkeys(layer.compression for layer in self.compressed if layer is not None))

    @property
    def past_numbers(self) -> int:
        """See `ModelConfig`."""
        return max((layer.past for layer in self.compressed if layer is not None), default=0)

    def gathered_keys(self, longest: int) -> int:
        """See `ModelConfig`."""
        mixers = [layer for layer in self.compressed if layer is not None]
        if not mixers:
            return longest
        # A piece of a prompt reads as many near keys as it has tokens, and a window.
        rates = [mixer.compression.rate for mixer in mixers if mixer.compression is not None]
        return 2 * max(mixer.window for mixer in mixers) + (-(-longest // min(rates)) if rates else 0)

    def with_layers(
        self,
        *,
        rope: Sequence[RopeConfig | None] | None = None,
        window: Sequence[Window | None] | None = None,
        experts: Sequence[ExpertsConfig | None] | None = None,
        attends: Sequence[bool] | None = None,
        recurrent: Sequence[RecurrentConfig | None] | None = None,
        ngrams: Sequence[NgramConfig | None] | None = None,
        feeds_forward: Sequence[bool] | None = None,
        choice_of_last: Sequence[bool] | None = None,
    ) -> "DecoderConfig":
        """The same with these choices, one of each kind for each layer; None: as it was."""
        given: dict[str, Sequence[Any] | None] = {
            "rope": rope,
            "window": window,
            "experts": experts,
            "attends": attends,
            "recurrent": recurrent,
            "ngrams": ngrams,
            "feeds_forward": feeds_forward,
            "choice_of_last": choice_of_last,
        }
        layers = self.layers
        for name, choices in given.items():
            if choices is not None:
                layers = tuple(
                    replace(layer, **{name: one}) for layer, one in zip(layers, choices, strict=True)
                )
        return replace(self, layers=layers)

    @property
    def num_layers(self) -> int:
        """Over all stages."""
        return len(self.layers)

    @property
    def shares_keys(self) -> bool:
        """Whether a layer reads the keys and values of an earlier one."""
        return any(layer.keys_of is not None for layer in self.layers)

    def cache_of(self, layer: int) -> int:
        """The number of the cache that a layer reads, among all."""
        of = self.layers[layer].keys_of
        return sum(before.has_cache for before in self.layers[: layer if of is None else of])

    def views(self, layers: range) -> list[tuple[int, int]]:
        """Of those of these layers that attend: see `Model`."""
        return [
            (self.windows.index(self.layers[layer].window), self.cache_of(layer))
            for layer in layers
            if self.layers[layer].attends and self.compressed[layer] is None
        ]

    def heads_of(self, layer: int) -> int:
        """H of a layer."""
        return self.layers[layer].heads or self.heads

    def kv_heads_of(self, layer: int) -> int:
        """K of a layer."""
        return self.layers[layer].kv_heads or self.kv_heads

    def head_dim_of(self, layer: int) -> int:
        """D of a layer."""
        return self.layers[layer].head_dim or self.head_dim

    def latent_of(self, layer: int) -> LatentConfig | None:
        """Of a layer of a model that has latent attention."""
        return self.layers[layer].latent or self.latent

    @cached_property
    def latents(self) -> tuple[LatentConfig, ...]:
        """Of all layers with latent attention, each once."""
        found = (self.latent_of(at) for at, layer in enumerate(self.layers) if layer.attends)
        return tuple(dict.fromkeys(latent for latent in found if latent is not None))

    @cached_property
    def same_heads(self) -> bool:
        """Whether keys have the same heads in every layer."""
        shapes = {(self.kv_heads_of(at), self.head_dim_of(at)) for at in range(len(self.layers))}
        return shapes == {(self.kv_heads, self.head_dim)}

    @cached_property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Rotary tables of all layers, each once."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @cached_property
    def windows(self) -> tuple[Window | None, ...]:
        """Of all layers that attend, each once."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers if layer.attends))

    @property
    def layer_windows(self) -> tuple[Window | None, ...]:
        """Of each layer with a cache of its own."""
        return tuple(layer.window for layer in self.layers if layer.has_cache)

    @property
    def has_state(self) -> bool:
        """Whether a layer keeps one of a sequence: it is recurrent, or reads n-grams."""
        return self.layers_with_state > 0

    @property
    def layers_with_state(self) -> int:
        """See `ModelConfig`."""
        return sum(bool(layer.parts_with_state) for layer in self.layers)

    @property
    def index_keys(self) -> tuple[int, ...]:
        """See `ModelConfig`."""
        return tuple(self._index_key(at) for at in range(len(self.layers)))

    def _index_key(self, at: int) -> int:
        layer, mixer = self.layers[at], self.compressed[at]
        if mixer is not None:
            return 0 if mixer.compression is None else -(-mixer.index_dim // mixer.compression.rate)
        latent = self.latent_of(at)
        index = self.index if latent is None else latent.index
        return 0 if index is None or not layer.has_cache or layer.choice_of_last else index.head_dim

    @property
    def mixer_width(self) -> int:
        """Numbers that a layer with a state makes of a token, at most."""
        return max((part.width for layer in self.layers for part in layer.parts_with_state), default=0)

    @property
    def residual_width(self) -> int:
        """Numbers of a token that go from one layer to the next: of all residual streams."""
        return self.width if self.hyper is None else self.hyper.count * self.width

    def layers_of(self, group: TensorGroup) -> range:
        """Those of a rank's stage. Raises UnusableModel where the model cannot be divided so often."""
        return group.layers(self.num_layers, self._joined())

    def _joined(self) -> list[str | None]:
        """Of each layer why no stage of a pipeline begins with it: it, or one behind it, needs what only an earlier stage has."""
        found: list[str | None] = [None] * self.num_layers
        for at, layer in enumerate(self.layers):
            first, why = at + 1, ""
            if layer.choice_of_last:
                first, why = at, "attends to the keys that an earlier one chooses (indexer_types)"
            if layer.keys_of is not None:
                first, why = (
                    layer.keys_of + 1,
                    "or one behind it reads keys and values of earlier ones (num_kv_shared_layers)",
                )
            if layer.experts is not None and layer.experts.by_token:
                first, why = (
                    1,
                    "or one behind it chooses experts by token (hash_moe), and only the first stage knows the tokens",
                )
            if layer.ngrams is not None:
                first, why = (
                    1,
                    "or one behind it reads n-grams of tokens (ple_layer_ids), and only the first stage knows them",
                )
            found[first : at + 1] = [why] * (at + 1 - first)
        return found

    def stage_width(self, layer: int) -> int:
        """See ModelConfig: all residual streams, and what the layers from this one on are given of each token."""
        streams = self.residual_width if self.streams is None else self.streams.count * self.width
        return streams + (self.num_layers - layer) * (0 if self.per_layer is None else self.per_layer.width)

    def state_shapes(self, group: TensorGroup) -> list[tuple[StateShape, ...]]:
        """What each of a rank's layers keeps of a sequence beside its KV cache. Raises UnusableModel."""
        return [self.layers[index].states(group) for index in self.layers_of(group)]

    def cached_layers(self, group: TensorGroup) -> list[int | None]:
        """Of each of a rank's layers its number among all that have a KV cache of their own; None: it has none."""
        numbers = itertools.accumulate((layer.has_cache for layer in self.layers), initial=0)
        found = [at if layer.has_cache else None for at, layer in zip(numbers, self.layers, strict=False)]
        mine = self.layers_of(group)
        return found[mine.start : mine.stop]

    @property
    def usual_positions(self) -> int:
        """Of a sequence where nothing else is asked for."""
        return self.max_positions

    @property
    def most_positions(self) -> int:
        """Of a sequence that is asked for: linear biases have no end, and are all that tells positions apart; nothing attends in a
        model whose layers are all recurrent; and dynamic rotary tables stretch, or linear ones do already.
        """
        if self.learned_positions:
            return self.max_positions
        if not self.ropes:
            return NO_END if self.slopes or not self.layer_windows else self.max_positions
        if self.max_positions < min(rope.max_positions for rope in self.ropes):  # something else ends them
            return self.max_positions
        return max(self.max_positions, min(rope.most_positions for rope in self.ropes))

    @property
    def positions_go_on(self) -> bool:
        """Whether a sequence may be longer than those the model was made for."""
        return self.most_positions > self.max_positions

    @property
    def plain_scores(self) -> bool:
        """Whether attention is products and a softmax over keys, the same heads of each layer, and nothing else."""
        if self.softcap or self.slopes or self.sinks or self.latent:
            return False
        return self.same_heads and not self.has_distances

    @property
    def has_distances(self) -> bool:
        """Whether queries say of distances what is added to scores."""
        return any(layer.distances is not None for layer in self.layers)

    @property
    def simple_attention(self) -> bool:
        """Whether that is so, and all earlier keys are attended to."""
        return self.plain_scores and self.index is None

    @property
    def chooses_keys(self) -> bool:
        """Whether queries attend to chosen keys alone."""
        return self.index is not None or any(latent.index is not None for latent in self.latents)

    def cache_shape(self, group: TensorGroup) -> tuple[int, int]:
        """(J, D) of what a rank's cache holds for a token and a layer."""
        if self.latents:
            return 1, max(latent.cached for latent in self.latents)
        if not self.layer_windows:
            return 0, 0
        if self.compressions:
            return 1, max(layer.per_token for layer in self.compressed if layer is not None)
        if self.same_heads:
            # Behind keys and values as many rows as an index key needs, which is at their end.
            more = 0 if self.index is None else -(-self.index.head_dim // self.head_dim)
            return 2 * len(group.key_heads(self.kv_heads)) + more, self.head_dim
        # Room for any layer's, in rows of every layer's size.
        layers = [at for at, layer in enumerate(self.layers) if layer.attends]
        sizes = {self.head_dim_of(at) for at in layers}
        most = max(2 * len(group.key_heads(self.kv_heads_of(at))) * self.head_dim_of(at) for at in layers)
        step = math.lcm(*sizes)
        return -(-most // step) * step // max(sizes), max(sizes)

    @property
    def key_shape(self) -> tuple[int, int]:
        """(K, D) of what attention gathers from the cache for a token."""
        if self.latents:
            return 1, max(latent.cached for latent in self.latents)
        layers = range(len(self.layers))
        return max(map(self.kv_heads_of, layers)), max(map(self.head_dim_of, layers))
