"""The decoder: every decoder-only model that is served, by a few named choices.

Made by `penstock.models.decoder_loader` after a recipe, run by the engine. Nothing in the forward pass branches on
data: what changes from step to step is in the tensors of `Step`. Letters: T tokens, H query heads, K key/value
heads, J cache rows of a token (keys, then values), D head size, E model width, F feed-forward width, V
vocabulary, N cache rows, X experts. Where a model is divided over ranks, H, K, F, V and X are this rank's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import penstock_kernels as ops
from penstock.layers.linear import AdaptedRows, Embedding, Linear
from penstock.layers.module import Module, TiledModule
from penstock.layers.norm import Norm, RmsNorm
from penstock.models.compressed_attention import CompressedAttention
from penstock.models.config import DecoderConfig, OutputGate
from penstock.models.hyper_connections import (
    HyperConnection,
    HyperHead,
    LowRankConnection,
    LowRankHead,
    MixingConnection,
)
from penstock.models.indexer import BlockIndexer, HeadBlockIndexer, Indexer
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Reference
from penstock.models.ngram_embeddings import NgramInjection
from penstock.models.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from penstock.models.recurrent import Convolution, Recurrent
from penstock.models.step import Step
from penstock.models.streams import AlternatingUpdates, LowRankResidual, StreamEnds
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.program import QuantizedMatrix


def opened(gate: OutputGate, gates: Tensor) -> Tensor:
    """Factors of what is attended to, from what its gates' rows give: any shape, in its dtype."""
    if gate.function == "sigmoid":
        return gates.sigmoid()
    return F.softplus(gates.float()).to(gates.dtype)


class Distances(Module):
    """What queries say of distances: see `ops.DistanceBias`."""

    def __init__(self, states: Linear, profiles_RL: Tensor) -> None:
        self.states, self.profiles_RL = states, profiles_RL  # rows: this rank's heads' numbers

    def bias(self, x_TE: Tensor, heads: int) -> ops.DistanceBias:
        """Of the tokens that attention reads."""
        return ops.DistanceBias(self.states(x_TE).view(len(x_TE), heads, -1), self.profiles_RL)


class Attention(Module):
    """Queries, keys and values of this rank's heads. The rows of `qkv` are query, key and value heads, and gates where
    there are such; without value heads where values are keys, and query heads alone where an earlier layer's keys are read.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        heads: int,
        kv_heads: int,
        qkv: Linear,
        out: Linear,
        q_norm: Norm | None,
        k_norm: Norm | None,
        score_modifiers: ops.ScoreModifiers,
        gate: Linear | None = None,
    ) -> None:
        choice = config.layers[layer]
        self.output_gate, self.gate = config.output_gate, gate  # rows: this rank's heads, or their numbers
        self.value_scale = config.value_scale
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, config.head_dim_of(layer)
        self.indexer: BlockIndexer | HeadBlockIndexer | None = (
            None  # where queries attend to chosen blocks of keys alone
        )
        self.distances: Distances | None = None
        self.smoothing: Convolution | None = None  # of keys and values
        # Its rows are as this layer has them, and nothing is behind them.
        self.own_cache = config.same_heads and config.index is None
        self.values_are_keys, self.writes = choice.values_are_keys, choice.keys_of is None
        self.value_norm = None if config.value_norm is None else RmsNorm(None, config.value_norm.eps)
        self.scale = self.head_dim**-0.5 if config.scale is None else config.scale
        rope, window = config.layers[layer].rope, config.layers[layer].window
        self.rope = None if rope is None else config.ropes.index(rope)
        self.rope_dim = 0 if rope is None else rope.head_dim
        self.window = config.windows.index(window)
        self.temperature = config.layers[layer].temperature
        self.clip = config.clip_qkv
        self.norms_rotated = config.qk_norm_rotated
        self.turns_and_writes = (
            self.writes
            and self.rope is not None
            and self.rope_dim == self.head_dim
            and not self.norms_rotated
        )
        self.norm_over_all = config.qk_norm_over == "all"
        self.qkv, self.out = qkv, out
        self.q_norm, self.k_norm = q_norm, k_norm
        self.score_modifiers = score_modifiers

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H D). Writes the tokens' keys and values into the cache."""
        tokens, heads = x_TE.shape[0], self.heads
        kv_heads = self.kv_heads if self.writes else 0
        qkv_TO = self.qkv(x_TE)
        if self.clip:
            qkv_TO.clamp_(-self.clip, self.clip)
        heads_TD = qkv_TO.view(tokens, -1, self.head_dim)
        if self.writes and self.values_are_keys:
            heads_TD = torch.cat((heads_TD, heads_TD[:, heads:]), 1)
        if self.smoothing is not None:
            kv_TJD = heads_TD[:, heads : heads + 2 * kv_heads]
            kv_TJD.copy_(self.smoothing(kv_TJD.flatten(1), step, cache).view(kv_TJD.shape))
        q_THD, k_TKD = heads_TD[:, :heads], heads_TD[:, heads : heads + kv_heads]
        if not self.norms_rotated:
            self._normalise(q_THD, k_TKD)
        if self.writes:
            v_TKD = heads_TD[:, heads + kv_heads : heads + 2 * kv_heads]
            if self.value_norm is not None:
                ops.rms_norm_in_place(v_TKD, None, self.value_norm.eps)
            if self.value_scale != 1.0:
                v_TKD.mul_(self.value_scale)
        slot_mapping_T, attention = step.view(self.window, cache)
        rows_NJD = cache.rows_NJD
        if not self.own_cache:
            rows_NJD = rows_NJD.view(len(rows_NJD), -1, self.head_dim)[:, : 2 * self.kv_heads]
        # All rows write before any row reads: one row's prefix may be what another row computes now.
        if self.turns_and_writes and self.rope is not None:
            ops.rope_and_write(heads_TD, heads, *step.ropes[self.rope], rows_NJD, slot_mapping_T)
        else:
            if self.rope is not None:
                ops.rope(heads_TD[:, : heads + kv_heads, : self.rope_dim], *step.ropes[self.rope])
            if self.norms_rotated:
                self._normalise(q_THD, k_TKD)
            if self.writes:
                ops.write_kv(heads_TD[:, heads : heads + 2 * kv_heads], rows_NJD, slot_mapping_T)
        modifiers = self.score_modifiers
        if self.distances is not None:
            bias = self.distances.bias(x_TE, heads)
            modifiers = replace(modifiers, distances=bias)
            self._scale_by_temperature(bias.states_THR, step)
        self._scale_by_temperature(q_THD, step)
        chosen = None
        if self.indexer is not None and self.rope is not None:
            chosen = self.indexer.choose(x_TE, step, self.rope, cache.rows_NJD, slot_mapping_T, attention)
        attended_THD = x_TE.new_empty(tokens, heads, self.head_dim)
        ops.paged_attention(q_THD, rows_NJD, attention, self.scale, attended_THD, modifiers, chosen)
        if self.output_gate is not None:
            gates = heads_TD[:, heads + 2 * kv_heads :] if self.gate is None else self.gate(x_TE)
            attended_THD *= opened(self.output_gate, gates).view(tokens, heads, -1)
        return attended_THD.view(tokens, heads * self.head_dim)

    def _scale_by_temperature(self, q_THD: Tensor, step: Step) -> None:
        """In place, where the layer has one."""
        heat = self.temperature
        if heat is None:
            return
        if heat.stepped:
            ops.scale_by_position(q_THD, step.positions_T, heat.scale, heat.span, heat.offset)
        else:
            ops.scale_by_logarithm(q_THD, step.positions_T, heat.scale, heat.span)

    def _normalise(self, q_THD: Tensor, k_TKD: Tensor) -> None:
        """In place, where the layer does."""
        for norm, rows_THD in ((self.q_norm, q_THD), (self.k_norm, k_TKD)):
            if norm is None:
                continue
            if self.norm_over_all:
                rows_THD = rows_THD.flatten(1)  # a view: heads lie one behind another
            if type(norm) is RmsNorm:
                ops.rms_norm_in_place(rows_THD, norm.weight_E, norm.eps)
            else:
                rows_THD.copy_(norm(rows_THD))


class LatentAttention(TiledModule):
    """Attention over latents: the cache holds for each token one latent (R) and one rotated key for all heads.

    A head's key is a matrix of its own times the latent; that matrix is applied to the query instead, and the
    one that makes values is applied to the sum of latents. DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1. Where the family
    chooses keys, a layer has an indexer, or attends to what the last one before it chose.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        heads: int,
        query_down: Linear | None,
        query_norm: Norm | None,
        query: Linear,
        latent: Linear,
        latent_norm: Norm,
        rope_norm: Norm | None,
        keys_HDR: Tensor,
        values_HVR: Tensor,
        out: Linear,
        score_modifiers: ops.ScoreModifiers,
        gate: Linear | None = None,
        indexer: Indexer | None = None,
    ) -> None:
        super().__init__()
        sizes = config.latent_of(layer)
        assert sizes is not None
        self.indexer, self.chooses = indexer, sizes.index is not None
        self.output_gate, self.gate = config.output_gate, gate  # rows: this rank's heads, or their numbers
        self.heads, self.sizes = heads, sizes
        size = sizes.plain_dim + sizes.rope_dim
        self.scale = size**-0.5 if config.scale is None else config.scale
        rope, window = config.layers[layer].rope, config.layers[layer].window
        self.rope = None if rope is None else config.ropes.index(rope)
        self.window = config.windows.index(window)
        self.temperature = config.layers[layer].temperature
        self.query_down, self.query_norm, self.query = query_down, query_norm, query
        self.latent, self.latent_norm, self.rope_norm = latent, latent_norm, rope_norm
        self.keys_HDR, self.values_HVR = keys_HDR, values_HVR
        self.out = out
        self.score_modifiers = score_modifiers

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H V). Writes the tokens' latents into the cache."""
        tokens, heads, sizes = x_TE.shape[0], self.heads, self.sizes
        low_TI = read_TI = x_TE
        if self.query_down is not None and self.query_norm is not None:
            down_TI = self.query_down(x_TE)
            low_TI = read_TI = self.query_norm(down_TI)
            if sizes.reads_both:
                read_TI = torch.cat((low_TI, down_TI), -1)
        q_THD = self.query(read_TI).view(tokens, heads, sizes.plain_dim + sizes.rope_dim)
        if self.temperature is not None:
            heat = self.temperature
            ops.scale_by_position(q_THD, step.positions_T, heat.scale, heat.span, heat.offset)
        latent_TD = self.latent(x_TE)
        rotated_TD = latent_TD[:, sizes.rank :]
        if self.rope_norm is not None:
            rotated_TD = self.rope_norm(rotated_TD)
        row_T1D = torch.cat((self.latent_norm(latent_TD[:, : sizes.rank]), rotated_TD), -1).unsqueeze(1)
        asked_THD = x_TE.new_empty(tokens, heads, sizes.rank + sizes.rope_dim)
        plain_THD, asked_THR = q_THD[..., : sizes.plain_dim], asked_THD[..., : sizes.rank]
        ops.heads_linear(plain_THD, self.keys_HDR, asked_THR, self.tile)
        asked_THD[..., sizes.rank :] = q_THD[..., sizes.plain_dim :]
        if self.rope is not None:
            ops.rope(asked_THD[..., sizes.rank :], *step.ropes[self.rope])
            ops.rope(row_T1D[..., sizes.rank :], *step.ropes[self.rope])
        slot_mapping_T, attention = step.view(self.window, cache)
        rows_N1W = cache.rows_NJD
        ops.write_kv(row_T1D, rows_N1W[..., : row_T1D.shape[-1]], slot_mapping_T)
        if self.indexer is not None and self.rope is not None:
            # At the end of what the cache holds of a token: it may be more than this layer needs.
            rope, size = step.ropes[self.rope], self.indexer.sizes.head_dim
            ops.write_kv(self.indexer.keys(x_TE, rope), rows_N1W[..., -size:], slot_mapping_T)
            step.chosen = self.indexer.choose(x_TE, low_TI, rope, rows_N1W, attention)
        latent_THR = x_TE.new_empty(tokens, heads, sizes.rank)
        chosen = step.chosen if self.chooses else None
        ops.paged_attention(
            asked_THD, rows_N1W, attention, self.scale, latent_THR, self.score_modifiers, chosen
        )
        values_THV = x_TE.new_empty(tokens, heads, sizes.value_dim)
        ops.heads_linear(latent_THR, self.values_HVR.transpose(1, 2), values_THV, self.tile)
        if self.output_gate is not None and self.gate is not None:
            gates_TO = self.gate(read_TI if sizes.reads_both else x_TE)
            values_THV *= opened(self.output_gate, gates_TO).view(tokens, heads, -1)
        return values_THV.view(tokens, heads * sizes.value_dim)


class Beside(Module):
    """Attention and a recurrent mixer that read the same and are added: one matrix, whose columns are those of both."""

    def __init__(self, attention: Attention, recurrent: Recurrent, out: Linear) -> None:
        self.attention, self.recurrent, self.out = attention, recurrent, out

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H D and what the mixer gives)."""
        return torch.cat((self.attention(x_TE, step, cache), self.recurrent(x_TE, step, cache)), -1)


class FeedForward(Module):
    """One hidden layer. Gated, the rows of `up` are gate, then up."""

    def __init__(self, up: Linear, down: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self.up, self.out = up, down
        self.activation = activation  # (T, rows of up) to (T, F)

    def __call__(self, x_TE: Tensor) -> Tensor:
        """What `out` reads: (T, F)."""
        return self.activation(self.up(x_TE))


class Experts(TiledModule):
    """A mixture of experts, of which this rank holds some, and the expert that every token goes to."""

    def __init__(
        self,
        routing: ops.Routing,
        router: Linear,
        correction_X: Tensor | None,
        first: int,
        up_XGE: Tensor,
        up_bias_XG: Tensor | None,
        down_XEF: Tensor,
        down_bias_XE: Tensor | None,
        activation: Callable[[Tensor], Tensor],
        shared: FeedForward | None,
        shared_gate: Linear | None,
        weighs_input: bool = False,
    ) -> None:
        super().__init__()
        self.weighs_input = weighs_input
        self.routing, self.router, self.correction_X = routing, router, correction_X
        self.first = first
        self.up_XGE, self.up_bias_XG = up_XGE, up_bias_XG
        self.down_XEF, self.down_bias_XE = down_XEF, down_bias_XE
        self.activation = activation
        self.shared, self.shared_gate = shared, shared_gate
        self.by_token_VA: Tensor | None = None  # int64: of each token of the vocabulary its experts
        self.latent_in: Linear | None = None  # to what experts read
        self.latent_out: Linear | None = None  # from what they give
        # For the CPU engine, rows of all experts below one another; `up_XGE` and `down_XEF` have no experts then.
        self.quantized_up: QuantizedMatrix | None = None
        self.quantized_down: QuantizedMatrix | None = None

    def __call__(self, x_TE: Tensor, ids_T: Tensor | None = None) -> Tensor:
        """This rank's part of the output: (T, E). `ids_T`: the tokens, where they say to which experts they go."""
        mixed_TE = self.mix(x_TE, *self.route(x_TE, ids_T))
        if self.shared is None:
            return mixed_TE
        shared_TE = self.shared.out(self.shared(x_TE))
        if self.shared_gate is not None:
            shared_TE = shared_TE * self.shared_gate(x_TE).sigmoid()
        return mixed_TE.add_(shared_TE)

    def route(self, x_TE: Tensor, ids_T: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights (T, A) in fp32 and numbers (T, A) of each token's experts."""
        logits_TX = self.router(x_TE.to(self.router.weight_OI.dtype))
        if self.by_token_VA is not None:
            assert ids_T is not None, "asked of layers that are told the tokens"
            experts_TA = self.by_token_VA.index_select(0, ids_T)
            return ops.weigh(logits_TX, experts_TA, self.routing), experts_TA
        return ops.route(logits_TX, self.correction_X, self.routing)

    def mix(self, x_TE: Tensor, weights_TA: Tensor, experts_TA: Tensor) -> Tensor:
        """What this rank's experts give: (T, E)."""
        mixed_TE = ops.mix_experts(
            x_TE if self.latent_in is None else self.latent_in(x_TE),
            weights_TA,
            experts_TA,
            self.first,
            self.up_XGE,
            self.up_bias_XG,
            self.down_XEF,
            self.down_bias_XE,
            self.activation,
            self.tile,
            self.weighs_input,
        )
        return mixed_TE if self.latent_out is None else self.latent_out(mixed_TE)


class ExpertsBeside(Module):
    """A mixture of experts beside the dense feed-forward layer: it reads what that reads, with norms of its own, and
    both are normalised before they are added (Gemma 4).
    """

    def __init__(
        self,
        experts: Experts,
        factors_X: Tensor,
        router_eps: float,
        norm: Norm,
        dense_out_norm: Norm,
        out_norm: Norm,
    ) -> None:
        self.experts, self.factors_X = experts, factors_X  # of each expert's weights, fp32
        self.router_norm = RmsNorm(None, router_eps)
        self.norm, self.dense_out_norm, self.out_norm = norm, dense_out_norm, out_norm

    def __call__(self, x_TE: Tensor, dense_TE: Tensor, group: TensorGroup) -> Tensor:
        """(T, E) of the residual and of what the dense layer gives."""
        weights_TA, experts_TA = self.experts.route(self.router_norm(x_TE))
        weights_TA = weights_TA * self.factors_X[experts_TA]
        mixed_TE = group.all_reduce(self.experts.mix(self.norm(x_TE), weights_TA, experts_TA))
        return self.dense_out_norm(dense_TE) + self.out_norm(mixed_TE)


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent | Beside


@dataclass(slots=True)
class Layer(Module):
    """Attention or what mixes tokens in its place, then feed-forward, and where they are normalised (None: not there)."""

    attention: Mixer | None
    feed_forward: FeedForward | Experts | None
    attention_norm: Norm | None
    feed_forward_norm: Norm | None  # of a parallel layer with one norm: None
    attention_out_norm: Norm | None = None  # of what the branch gives, or of the sum with it
    feed_forward_out_norm: Norm | None = None
    # What the residual is multiplied with where the branch is added to it.
    attention_residual: float = 1.0
    feed_forward_residual: float = 1.0
    beside: ExpertsBeside | None = None
    per_layer: PerLayerInput | None = None
    scale_1: Tensor | None = None  # of what the layer gives
    streams: AlternatingUpdates | None = None
    beside_attention: LowRankResidual | None = None
    attention_hyper: HyperConnection | MixingConnection | LowRankConnection | None = None
    feed_forward_hyper: HyperConnection | MixingConnection | LowRankConnection | None = None
    ngrams: NgramInjection | None = None
    # Of what the branches give.
    attention_smoothing: Convolution | None = None
    feed_forward_smoothing: Convolution | None = None

    @property
    def is_plain(self) -> bool:
        """Whether both branches are there, read an RMS norm of the residual, no more, and are added to it as they are."""
        return (
            self.attention is not None
            and self.feed_forward is not None
            and type(self.attention_norm) is RmsNorm
            and type(self.feed_forward_norm) is RmsNorm
            and self.attention_out_norm is None
            and self.feed_forward_out_norm is None
            and self.attention_residual == self.feed_forward_residual == 1.0
            and self.beside is None
            and self.per_layer is None
            and self.scale_1 is None
            and self.attention_smoothing is self.feed_forward_smoothing is None
        )


@dataclass(slots=True)
class Ends(Module):
    """What comes before the first layer and after the last. Where a pipeline divides the layers, only the first
    stage has an embedding, and only the last one a head.
    """

    embedding: Embedding | None
    norm: Norm | None
    # Its rows are this rank's part of the vocabulary, filled up to be as many on every rank.
    head: Linear | None
    positions: Embedding | None = None
    embedding_norm: Norm | None = None
    project_in: Linear | None = None
    project_out: Linear | None = None
    per_layer: PerLayerEmbedding | None = None
    streams: StreamEnds | None = None
    hyper: HyperHead | LowRankHead | None = None


def linear_biases(config: DecoderConfig, heads: range, longest: int) -> Tensor:
    """ALiBi of these heads for every position: (H, N) fp32."""
    slopes_H1 = torch.tensor(config.slopes)[heads.start : heads.stop].unsqueeze(1)
    # Groups of keys are rounded up, by an eighth or by 31.
    positions_N = torch.arange(longest * 9 // 8 + 64, dtype=torch.float32)
    if config.slopes_rounded:
        bias_HN = (slopes_H1.bfloat16() * positions_N.bfloat16()).float()
    else:
        bias_HN = slopes_H1 * positions_N
    return bias_HN * config.slopes_scale


class Decoder(Module):
    """Token ids to hidden states, and hidden states to logits."""

    def __init__(
        self, config: DecoderConfig, ends: Ends, layers: list[Layer], group: TensorGroup = ALONE
    ) -> None:
        self.config = config
        self.ends = ends
        self.layers = layers
        self.group = group
        self.cache_shape = config.cache_shape(group)
        mine = config.layers_of(group)
        before = sum(layer.has_cache for layer in config.layers[: mine.start])
        self.cache_numbers = [
            config.cache_of(at) - before for at in mine
        ]  # of each layer that which it reads
        self.parameters = 0  # of the whole model, over all ranks; set when it is loaded
        self.adapted_rows: AdaptedRows | None = None  # None: the model has no adapters
        self.reference: Reference | None = None
        is_sequential = not (config.parallel or config.residual_normed) and config.residual_scale == 1.0
        self.is_plain = is_sequential and all(layer.is_plain for layer in layers)

    def make_batch_invariant(self, rows: int) -> None:
        """See Model."""
        self.set_tile(rows)

    @property
    def repeated_parameters(self) -> int:
        """Parameters of this stage that an earlier stage holds as well: a tied head's."""
        config, group = self.config, self.group
        again = config.tied_head and group.is_last_stage and not group.is_first_stage
        return config.vocab_size * (config.embedding_width or config.width) if again else 0

    def serve_up_to(self, longest: int) -> None:
        """Makes linear biases (ALiBi) for sequences of up to `longest` tokens, one table for all layers."""
        if not self.config.slopes:
            return
        device = self.weights()[0].device
        bias_HN = linear_biases(self.config, self.group.share(self.config.heads), longest).to(device)
        for layer in self.layers:
            attention = layer.attention
            assert isinstance(attention, Attention | LatentAttention)
            attention.score_modifiers = replace(attention.score_modifiers, bias_HN=bias_HN)

    def forward(self, step: Step, caches: list[LayerCache], given_TE: Tensor | None = None) -> Tensor:
        """Hidden states (T, E) of the step's tokens, after this stage's layers; writes their keys and values into the
        caches. `given_TE` is what the stage before gave. Between stages E are the numbers of all residual streams, and behind them
        what the further layers are given of each token.
        """
        if self.adapted_rows is not None:
            self.adapted_rows.groups = step.adapted
        x_TE, given_TLY = self._begin(step) if given_TE is None else self._taken_over(given_TE)
        run = self._parallel if self.config.parallel else self._sequential
        if self.config.shares_keys:
            caches = [caches[number] for number in self.cache_numbers]
        if self.ends.streams is not None and given_TLY is not None:
            streams = self.ends.streams
            x_ATE = streams.split(x_TE) if given_TE is None else streams.unpack(x_TE)
            for at, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
                x_ATE = self._streamed(layer, x_ATE, step, cache, given_TLY[:, at])
            if self.group.is_last_stage:
                return streams.join(x_ATE)
            return self._handed_on(streams.pack(x_ATE), given_TLY)
        if self.config.hyper is not None:
            count = self.config.hyper.count
            if given_TE is None:
                x_TAE = x_TE.unsqueeze(1).expand(-1, count, -1)
            else:
                x_TAE = torch.unflatten(given_TE, -1, (count, -1))
            for layer, cache in zip(self.layers, caches, strict=True):
                x_TAE = self._connected(layer, x_TAE, step, cache)
            return x_TAE.flatten(1) if self.ends.hyper is None else self.ends.hyper(x_TAE)
        if self.is_plain:
            return self._plain(x_TE, step, caches)
        for at, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x_TE = run(layer, x_TE, step, cache)
            if layer.per_layer is not None and given_TLY is not None:
                x_TE = x_TE + layer.per_layer(x_TE, given_TLY[:, at])
            if layer.scale_1 is not None:
                x_TE = x_TE * layer.scale_1
        return self._handed_on(x_TE, given_TLY)

    def _begin(self, step: Step) -> tuple[Tensor, Tensor | None]:
        """Embeddings (T, E), and what every layer is given of each token (T, L, Y)."""
        x_TE = self._embed(step)
        return x_TE, None if self.ends.per_layer is None else self.ends.per_layer(step.ids_T, x_TE)

    def _taken_over(self, given_TE: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the stage before handed on, apart: residual streams, and what this and further layers are given."""
        per_layer = self.config.per_layer
        if per_layer is None:
            return given_TE, None
        streams = self.config.stage_width(self.config.num_layers)
        return given_TE[:, :streams], torch.unflatten(given_TE[:, streams:], -1, (-1, per_layer.width))

    def _handed_on(self, x_TE: Tensor, given_TLY: Tensor | None) -> Tensor:
        """What the next stage is given, if there is one."""
        if given_TLY is None or self.group.is_last_stage:
            return x_TE
        return torch.cat((x_TE, given_TLY[:, len(self.layers) :].flatten(1)), -1)

    def views(self) -> list[tuple[int, int]]:
        """See Model."""
        return self.config.views(self.config.layers_of(self.group))

    def logits(self, hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        """(S, E) hidden states of chosen tokens to (S, V) logits in fp32, in the memory of `out`."""
        config, ends = self.config, self.ends
        if ends.norm is not None:
            hidden_SE = ends.norm(hidden_SE)
        if ends.project_out is not None:
            hidden_SE = ends.project_out(hidden_SE)
        assert ends.head is not None, "asked of the last stage only"
        part_SV = ends.head.in_fp32(hidden_SE) if config.long_head else ends.head(hidden_SE)
        logits_SV = self.group.all_gather(part_SV)
        out_SV.copy_(logits_SV[:, : config.vocab_size])
        if config.logit_scale != 1.0:
            out_SV.mul_(config.logit_scale)
        if config.logit_softcap:
            out_SV.div_(config.logit_softcap).tanh_().mul_(config.logit_softcap)
        return out_SV

    def _embed(self, step: Step) -> Tensor:
        config, ends = self.config, self.ends
        assert ends.embedding is not None, "asked of the first stage only"
        x_TE = ends.embedding(step.ids_T)
        if config.embedding_scale != 1.0:
            # The factor is rounded to the activations' dtype first, as the families that have one do.
            x_TE = x_TE * x_TE.new_full((), config.embedding_scale)
        if ends.project_in is not None:
            x_TE = ends.project_in(x_TE)
        if ends.positions is not None:
            x_TE = x_TE + ends.positions(step.positions_T + config.position_offset)
        if ends.embedding_norm is not None:
            x_TE = ends.embedding_norm(x_TE)
        return x_TE

    def _plain(self, x_TE: Tensor, step: Step, caches: list[LayerCache]) -> Tensor:
        """What `_sequential` gives of plain layers: each branch is added to the residual together with the norm that the next one reads."""
        given_TE = None
        for layer, cache in zip(self.layers, caches, strict=True):
            assert layer.attention is not None and isinstance(layer.attention_norm, RmsNorm)
            assert layer.feed_forward is not None and isinstance(layer.feed_forward_norm, RmsNorm)
            if given_TE is None:
                read_TE = layer.attention_norm(x_TE)
            else:
                norm = layer.attention_norm
                x_TE, read_TE = ops.add_rms_norm(given_TE, x_TE, norm.weight_E, norm.eps)
            given_TE = self._given(layer.attention(read_TE, step, cache), layer.attention)
            norm = layer.feed_forward_norm
            x_TE, read_TE = ops.add_rms_norm(given_TE, x_TE, norm.weight_E, norm.eps)
            given_TE = self._given(layer.feed_forward(read_TE), layer.feed_forward)
        return x_TE if given_TE is None else given_TE.add_(x_TE)

    def _sequential(self, layer: Layer, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        if layer.attention is not None:
            read_TE = x_TE if layer.attention_norm is None else layer.attention_norm(x_TE)
            given = layer.attention(read_TE, step, cache)
            residual_TE = read_TE if self.config.residual_normed else x_TE
            if layer.attention_residual != 1.0:
                residual_TE = residual_TE * layer.attention_residual
            smooth = layer.attention_smoothing
            if smooth is None:
                x_TE = self._add(residual_TE, given, layer.attention, layer.attention_out_norm)
            else:
                given_TE = smooth(self._given(given, layer.attention), step, cache)
                x_TE = residual_TE + given_TE.to(residual_TE.dtype)
        if layer.feed_forward is None:
            return x_TE
        read_TE = x_TE if layer.feed_forward_norm is None else layer.feed_forward_norm(x_TE)
        given = layer.feed_forward(read_TE)
        residual_TE = read_TE if self.config.residual_normed else x_TE
        smooth = layer.feed_forward_smoothing
        if smooth is not None:
            return residual_TE + smooth(self._given(given, layer.feed_forward), step, cache).to(x_TE.dtype)
        if layer.feed_forward_residual != 1.0:
            residual_TE = residual_TE * layer.feed_forward_residual
        return self._add(residual_TE, given, layer.feed_forward, layer.feed_forward_out_norm, layer.beside)

    def _parallel(self, layer: Layer, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """Both branches of a rank are added before the ranks are: one exchange for a layer."""
        assert layer.attention is not None and layer.feed_forward is not None
        read_TE = x_TE if layer.attention_norm is None else layer.attention_norm(x_TE)
        given_TE = layer.attention.out(layer.attention(read_TE, step, cache))
        if layer.feed_forward_norm is not None:
            read_TE = layer.feed_forward_norm(x_TE)
        inner = layer.feed_forward(read_TE)
        given_TE += inner if isinstance(layer.feed_forward, Experts) else layer.feed_forward.out(inner)
        self.group.all_reduce(given_TE)
        if self.config.residual_scale != 1.0:
            given_TE *= self.config.residual_scale
        return given_TE.add_(x_TE)

    def _streamed(
        self, layer: Layer, x_ATE: Tensor, step: Step, cache: LayerCache, given_TY: Tensor
    ) -> Tensor:
        """(A, T, E): a layer computes one of the residual streams, and corrects what it predicted of the others."""
        streams, per_layer = layer.streams, layer.per_layer
        assert streams is not None and per_layer is not None and layer.beside_attention is not None
        assert layer.attention_norm is not None and layer.feed_forward_norm is not None
        assert layer.attention is not None and layer.feed_forward is not None
        predicted_ATE = streams.predict(x_ATE)
        active_TE = predicted_ATE[streams.active]
        read_TE = layer.attention_norm(active_TE)
        beside_TE = layer.beside_attention(read_TE)
        given = layer.attention(read_TE, step, cache)
        attended_TE = self._add(active_TE, given, layer.attention, layer.attention_out_norm)
        x_TE = (attended_TE + beside_TE) / 2**0.5
        given = layer.feed_forward(layer.feed_forward_norm(x_TE))
        x_TE = self._add(x_TE, given, layer.feed_forward, layer.feed_forward_out_norm)
        corrected_ATE = streams.correct(predicted_ATE, x_TE)
        corrected_ATE[1:] += per_layer(streams.output(corrected_ATE), given_TY)
        return corrected_ATE

    def _connected(self, layer: Layer, x_TAE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """(T, A, E): each branch reads a mixture of the residual streams, and is added to all of them."""
        assert layer.attention_hyper is not None and layer.feed_forward_hyper is not None
        assert layer.attention is not None and layer.feed_forward is not None
        if layer.ngrams is not None:
            x_TAE = layer.ngrams(x_TAE, step, cache)
        read_TE, shares_TY = layer.attention_hyper.read(x_TAE)
        if layer.attention_norm is not None:
            read_TE = layer.attention_norm(read_TE)
        given_TE = layer.attention.out(layer.attention(read_TE, step, cache))
        x_TAE = layer.attention_hyper.add(x_TAE, self.group.all_reduce(given_TE), shares_TY)
        read_TE, shares_TY = layer.feed_forward_hyper.read(x_TAE)
        if layer.feed_forward_norm is not None:
            read_TE = layer.feed_forward_norm(read_TE)
        if isinstance(layer.feed_forward, FeedForward):
            given_TE = layer.feed_forward.out(layer.feed_forward(read_TE))
        else:
            given_TE = layer.feed_forward(read_TE, step.ids_T)
        return layer.feed_forward_hyper.add(x_TAE, self.group.all_reduce(given_TE), shares_TY)

    def _given(self, given: Tensor, branch: Mixer | FeedForward | Experts) -> Tensor:
        """The output of a branch, all-reduced over the ranks: (T, E)."""
        given_TE = given if isinstance(branch, Experts) else branch.out(given)
        if self.group.size > 1:
            self.group.all_reduce(given_TE)
        return given_TE

    def _add(
        self,
        residual_TE: Tensor,
        given: Tensor,
        branch: Mixer | FeedForward | Experts,
        norm: Norm | None,
        beside: ExpertsBeside | None = None,
    ) -> Tensor:
        """The residual plus the output of a branch."""
        config = self.config
        given_TE = self._given(given, branch)
        if beside is not None:
            given_TE = beside(residual_TE, given_TE, self.group)
        if norm is not None and config.branch_norm:
            given_TE = norm(given_TE)
        if config.residual_scale != 1.0:
            given_TE = given_TE * config.residual_scale
        sum_TE = given_TE.add_(residual_TE)
        return norm(sum_TE) if norm is not None and config.sum_norm else sum_TE
