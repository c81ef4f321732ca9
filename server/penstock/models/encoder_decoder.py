"""Encoder-decoders: T5 and BART and alike, by a few named choices.

Made by `penstock.models.encoder_decoder_loader` after a recipe, run by the engine. An encoder reads a whole input. The
keys and values of cross-attention are computed once for each layer of the decoder and kept in the cache, at the positions
of the encoder's tokens; the decoder then generates token by token. Letters: U tokens that encoders read
in this step, T tokens of decoders, H heads, J = 2 H cache rows of a token, D head size, E model width, F
feed-forward width, V vocabulary, N cache rows or distances, B buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import penstock_kernels as ops
from penstock.layers.linear import Embedding, Linear
from penstock.layers.module import Module
from penstock.layers.norm import Norm
from penstock.models.encoder_decoder_config import EncoderDecoderConfig, RelativeBias, Sines
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Reference
from penstock.models.step import EncoderDecoderStep, Reading
from penstock_kernels import tensors
from penstock_kernels.later import Tensor, torch


@dataclass(slots=True)
class SelfAttention(Module):
    """Attention of tokens among themselves. The rows of `qkv` are query, key and value heads."""

    norm: Norm
    qkv: Linear
    out: Linear


@dataclass(slots=True)
class CrossAttention(Module):
    """Attention to what the encoder made. The rows of `kv` are key and value heads."""

    norm: Norm
    q: Linear
    kv: Linear
    out: Linear


@dataclass(slots=True)
class FeedForward(Module):
    """The rows of `up` are those of the gate, if there is one, and up."""

    norm: Norm
    up: Linear
    down: Linear


@dataclass(slots=True)
class EncoderLayer(Module):
    """Weights of a layer of the encoder."""

    attention: SelfAttention
    feed_forward: FeedForward


@dataclass(slots=True)
class DecoderLayer(Module):
    """Weights of a layer of the decoder."""

    attention: SelfAttention
    across: CrossAttention
    feed_forward: FeedForward


@dataclass(slots=True)
class Side(Module):
    """What encoder and decoder have each, beside their layers."""

    positions: Embedding | None
    embedding_norm: Norm | None
    final_norm: Norm | None
    bias_HN: Tensor | None  # added to the scores, by the distance between query and key; see `by_distance`


class EncoderDecoder(Module):
    """Token ids to hidden states of the decoder, and those to logits."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        embedding: Embedding,
        encoder: Side,
        encoder_layers: list[EncoderLayer],
        decoder: Side,
        layers: list[DecoderLayer],
        head: Linear,
        logits_bias_V: Tensor | None,
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.encoder, self.encoder_layers = encoder, encoder_layers
        self.decoder, self.layers = decoder, layers
        self.head = head
        self.logits_bias_V = logits_bias_V
        self.activation: Callable[[Tensor], Tensor] = ops.ACTIVATIONS[config.activation]
        self.scale = config.head_dim**-0.5 if config.scale is None else config.scale
        self.parameters = sum(t.numel() for t in self.weights())
        self.reference: Reference | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What branches are computed in."""
        return self.embedding.weight_VE.dtype

    @property
    def residual_dtype(self) -> torch.dtype:
        """What they are added up in."""
        return torch.float32 if is_wide(self.config, self.dtype) else self.dtype

    @property
    def cache_shape(self) -> tuple[int, int]:
        """(J, D) of what the cache holds for a token and a layer."""
        return 2 * self.config.heads, self.config.head_dim

    @property
    def repeated_parameters(self) -> int:
        """It runs in one stage."""
        return 0

    def make_batch_invariant(self, rows: int) -> None:
        """See Model."""
        self.set_tile(rows)

    def serve_up_to(self, longest: int) -> None:
        """Nothing in it depends on that."""

    def views(self) -> list[tuple[int, int]]:
        """(window, layer) of the decoder."""
        return [(0, layer) for layer in range(self.config.num_layers)]

    def forward(
        self, step: EncoderDecoderStep, caches: list[LayerCache], given_TE: Tensor | None = None
    ) -> Tensor:
        """Hidden states (T, E) of the decoder's tokens; writes what later steps attend to into the caches."""
        assert given_TE is None, "it runs in one stage"
        # All inputs are read before any token is decoded: one row's input may be what another row reads now.
        caches_NJD = [cache.rows_NJD for cache in caches]  # one table
        if step.reading is not None:
            self._read(step.reading, caches_NJD)
        return self._decode(step, caches_NJD)

    def logits(self, hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        """(S, E) hidden states of chosen tokens to (S, V) logits in fp32, in the memory of `out`."""
        norm = self.decoder.final_norm
        normed_SE = (hidden_SE if norm is None else norm(hidden_SE)).to(self.dtype)
        if self.config.hidden_scale != 1:
            normed_SE = normed_SE * self.config.hidden_scale
        out_SV.copy_(self.head(normed_SE))
        return out_SV if self.logits_bias_V is None else out_SV.add_(self.logits_bias_V)

    def _read(self, reading: Reading, caches_NJD: list[Tensor]) -> None:
        config, tokens = self.config, len(reading.ids_U)
        bias_HN = None
        if self.encoder.bias_HN is not None and config.relative is not None:
            longest, furthest = max(reading.counts), config.relative.furthest
            offsets = torch.arange(1 - longest, longest, device=reading.ids_U.device)
            bias_HN = self.encoder.bias_HN.index_select(1, offsets.clamp(-furthest, furthest) + furthest)
        x_UE = self._embed(self.encoder, reading.ids_U, reading.positions_U)
        for layer in self.encoder_layers:
            own = layer.attention
            qkv_UJD = own.qkv(self._input(own.norm, x_UE)).view(tokens, 3 * config.encoder_heads, -1)
            attended_UHD = qkv_UJD.new_empty(tokens, config.encoder_heads, qkv_UJD.shape[2])
            ops.bidirectional_attention(qkv_UJD, reading.counts, self.scale, bias_HN, attended_UHD)
            x_UE = self._sum(own.norm, x_UE, own.out(attended_UHD.flatten(1)))
            x_UE = self._feed_forward(layer.feed_forward, x_UE)
        norm = self.encoder.final_norm
        encoded_UE = (x_UE if norm is None else norm(x_UE)).to(self.dtype)
        for decoding, cache_NJD in zip(self.layers, caches_NJD, strict=True):
            kv_UJD = decoding.across.kv(encoded_UE).view(tokens, *self.cache_shape)
            ops.write_kv(kv_UJD, cache_NJD, reading.slot_mapping_U)

    def _decode(self, step: EncoderDecoderStep, caches_NJD: list[Tensor]) -> Tensor:
        heads, tokens = self.config.heads, len(step.ids_T)
        x_TE = self._embed(self.decoder, step.ids_T, step.positions_T)
        if tokens == 0:
            return x_TE
        own = [(some, ops.score_mask(some, self.decoder.bias_HN)) for some in step.own]
        across = [(some, ops.score_mask(some, None)) for some in step.across]

        def attend(
            q_THD: Tensor, cache_NJD: Tensor, groups: list[tuple[ops.Rectangle, Tensor | None]]
        ) -> Tensor:
            attended_THD = q_THD.new_empty(q_THD.shape)
            for rectangle, mask_SHQL in groups:
                ops.rectangle_attention(q_THD, cache_NJD, rectangle, mask_SHQL, self.scale, attended_THD)
            return attended_THD.flatten(1)

        for layer, cache_NJD in zip(self.layers, caches_NJD, strict=True):
            among = layer.attention
            qkv_TJD = among.qkv(self._input(among.norm, x_TE)).view(tokens, 3 * heads, -1)
            ops.write_kv(qkv_TJD[:, heads:], cache_NJD, step.slot_mapping_T)
            x_TE = self._sum(among.norm, x_TE, among.out(attend(qkv_TJD[:, :heads], cache_NJD, own)))
            to = layer.across
            q_THD = to.q(self._input(to.norm, x_TE)).view(tokens, heads, -1)
            x_TE = self._sum(to.norm, x_TE, to.out(attend(q_THD, cache_NJD, across)))
            x_TE = self._feed_forward(layer.feed_forward, x_TE)
        return x_TE

    def _embed(self, side: Side, ids: Tensor, positions: Tensor) -> Tensor:
        x_TE = self.embedding(ids)
        if self.config.embedding_scale != 1:
            x_TE = x_TE * self.config.embedding_scale
        normed_first = self.config.normed_before_positions and side is self.decoder
        if side.embedding_norm is not None and normed_first:
            x_TE = side.embedding_norm(x_TE)
        if side.positions is not None:
            x_TE = x_TE + side.positions(positions + self.config.position_offset)
        if side.embedding_norm is not None and not normed_first:
            x_TE = side.embedding_norm(x_TE)
        return x_TE.to(self.residual_dtype)

    def _input(self, norm: Norm, x_TE: Tensor) -> Tensor:
        """What a branch reads."""
        return (norm(x_TE) if self.config.pre_norm else x_TE).to(self.dtype)

    def _sum(self, norm: Norm, x_TE: Tensor, branch_TE: Tensor) -> Tensor:
        """The hidden state with what a branch gave, in its memory or not."""
        x_TE = x_TE.add_(branch_TE)
        return x_TE if self.config.pre_norm else norm(x_TE)

    def _feed_forward(self, layer: FeedForward, x_TE: Tensor) -> Tensor:
        up_TF = layer.up(self._input(layer.norm, x_TE))
        up_TF = ops.gated(up_TF, self.activation) if self.config.gated else self.activation(up_TF)
        return self._sum(layer.norm, x_TE, layer.down(up_TF.to(layer.down.weight_OI.dtype)))


def is_wide(config: EncoderDecoderConfig, dtype: Any) -> bool:
    """Whether the sum of the branches is kept in fp32, since it leaves the range of fp16 in this family. `dtype`: of torch or not."""
    return config.wide_residual and str(dtype).endswith("float16") and not str(dtype).endswith("bfloat16")


def table_of_sines(rows: int, width: int, sines: Sines) -> Tensor:
    """(rows, width) in fp32: of each position the sines of all frequencies, then their cosines."""
    half = width // 2
    last = half - 1 if sines.longest_included else half
    frequencies = np.exp(np.arange(half, dtype=np.float64) * (-math.log(10000.0) / last))
    angles = np.arange(rows, dtype=np.float64)[:, None] * frequencies
    return tensors.of(np.concatenate((np.sin(angles), np.cos(angles)), 1), tensors.float32)


def by_distance(table_BH: Tensor, relative: RelativeBias, *, bidirectional: bool) -> Tensor:
    """The bias (H, N) by the distance between query and key, from that of each bucket.

    Bidirectional, N = 2 furthest + 1, and the entry of a key o places behind its query is furthest + o. Causal,
    N = furthest + 1, and the entry of a key n places before its query is n. Raffel et al., 2020, section 2.1: half
    of the buckets are for a distance each, the others grow with its logarithm; bidirectional, each side has half.
    """
    furthest = relative.furthest
    offsets_N = np.arange(-furthest if bidirectional else 0, furthest + 1)
    buckets = relative.buckets // 2 if bidirectional else relative.buckets
    exact = buckets // 2
    distances_N = np.abs(offsets_N)
    # In fp32, as the models were trained: the edges of buckets are where rounding puts them.
    logs_N = np.log(np.maximum(distances_N, 1).astype(np.float32) / np.float32(exact))
    grown_N = logs_N / np.float32(math.log(furthest / exact)) * np.float32(buckets - exact)
    far_N = np.minimum(exact + grown_N.astype(np.int64), buckets - 1)
    bucket_N = np.where(distances_N < exact, distances_N, far_N)
    if bidirectional:
        bucket_N += (offsets_N > 0) * buckets
    return table_BH[bucket_N].t().contiguous()
