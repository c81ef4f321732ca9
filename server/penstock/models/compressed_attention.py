"""Attention to a window of the last tokens and to entries of several tokens each, which compressors make and an indexer chooses:
DeepSeek V4.

Made by the recipe's loader, called by the decoder as other attention is. A token has one key for all heads, which is its value,
too. See `ops.compressed_attention`. Letters as there and in `decoder`, and G groups of heads, I index heads.
"""

import penstock_kernels as ops
from penstock.layers.linear import Linear
from penstock.layers.module import Module, TiledModule
from penstock.layers.norm import RmsNorm
from penstock.models.layer_cache import LayerCache
from penstock.models.recurrent_config import CompressedConfig, Compression
from penstock.models.step import Step
from penstock_kernels.later import Tensor, torch


class Compressor(Module):
    """What makes entries of D numbers, or index keys, of values and gates of tokens; the last of their numbers are rotated."""

    def __init__(
        self, compression: Compression, size: int, rope_dim: int, bias_VD: Tensor, norm: RmsNorm
    ) -> None:
        """`bias_VD`: of the gates of each of an entry's tokens, in fp32."""
        self.compression, self.size, self.rope_dim = compression, size, rope_dim
        self.bias_VD, self.norm = bias_VD, norm

    def __call__(
        self, windows_MVC: Tensor, is_first_M: Tensor, rope: tuple[Tensor, Tensor], exact: bool
    ) -> Tensor:
        """(M, D). C are a token's values, then its gates; where entries overlap, both for the entry behind its own, then for its
        own.
        """
        kv_MVC, gate_MVC = windows_MVC.chunk(2, -1)
        unseen_MV = None
        if self.compression.overlaps:
            kv_MVC, gate_MVC = self._of_two(kv_MVC), self._of_two(gate_MVC)
            before_V = torch.arange(self.compression.reads, device=is_first_M.device) < self.compression.rate
            unseen_MV = is_first_M.unsqueeze(1) & before_V
        pooled_MD = ops.pool(kv_MVC, gate_MVC, self.bias_VD, unseen_MV, exact)
        entries_M1D = self.norm(pooled_MD).to(windows_MVC.dtype).unsqueeze(1)
        ops.rope(entries_M1D[..., self.size - self.rope_dim :], *rope)
        return entries_M1D.squeeze(1)

    def _of_two(self, numbers_MVC: Tensor) -> Tensor:
        """(M, V, D): of the tokens before those numbers, of its own these."""
        rate = self.compression.rate
        before, own = numbers_MVC[:, :rate, : self.size], numbers_MVC[:, rate:, self.size :]
        return torch.cat((before, own), 1)


class EntryIndexer(Module):
    """What chooses entries, whole on every rank: all must choose alike."""

    def __init__(
        self, config: CompressedConfig, rope_dim: int, query: Linear, weigh: Linear, compressor: Compressor
    ) -> None:
        self.config, self.rope_dim = config, rope_dim
        self.query, self.weigh, self.compressor = query, weigh, compressor
        self.scale = (config.index_heads * config.index_dim) ** -0.5

    def choose(
        self,
        x_TE: Tensor,
        low_TI: Tensor,
        rope: tuple[Tensor, Tensor],
        entries_N1R: Tensor,
        attention: ops.AttentionMetadata,
    ) -> ops.ChosenKeys:
        """The entries that each token attends to; `low_TI` is what attention's queries are made of."""
        config = self.config
        queries_TIC = self.query(low_TI).view(len(x_TE), config.index_heads, config.index_dim)
        ops.rope(queries_TIC[..., config.index_dim - self.rope_dim :], *rope)
        weights_TI = self.weigh(x_TE.to(self.weigh.weight_OI.dtype)).to(torch.float32) * self.scale
        return ops.choose_keys(queries_TIC, weights_TI, entries_N1R, attention, config.most)


class CompressedAttention(TiledModule):
    """Of this rank's heads. Rows of `down` are what queries are made of, then the key; of `pending` the compressor's values and
    gates, then the indexer's.
    """

    def __init__(
        self,
        config: CompressedConfig,
        heads: int,
        rope: int,
        rope_dim: int,
        compression: int,
        down: Linear,
        query_norm: RmsNorm,
        query: Linear,
        head_norm: RmsNorm,
        key_norm: RmsNorm,
        sinks_H: Tensor,
        out_GIO: Tensor,
        out: Linear,
        pending: Linear | None,
        compressor: Compressor | None,
        indexer: EntryIndexer | None,
    ) -> None:
        """`rope`, `compression`: which of the model's the layer has."""
        super().__init__()
        self.config, self.heads = config, heads
        self.rope, self.rope_dim, self.compression = rope, rope_dim, compression
        self.scale = config.head_dim**-0.5
        self.down, self.query_norm, self.query, self.head_norm = down, query_norm, query, head_norm
        self.key_norm, self.sinks_H = key_norm, sinks_H
        self.out_GIO, self.out = out_GIO, out
        self.pending, self.compressor, self.indexer = pending, compressor, indexer

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, G O). Advances the sequences' states, and writes the entries that are finished."""
        assert step.states is not None, "made for models with recurrent layers"
        config, tokens, heads = self.config, len(x_TE), self.heads
        cos, sin = step.ropes[self.rope]
        rotated = slice(config.head_dim - self.rope_dim, None)
        low_TI, key_TD = torch.split(self.down(x_TE), [config.query_rank, config.head_dim], -1)
        low_TI = self.query_norm(low_TI)
        q_THD = self.head_norm(self.query(low_TI).view(tokens, heads, config.head_dim))
        key_T1D = self.key_norm(key_TD).unsqueeze(1)
        ops.rope(q_THD[..., rotated], cos, sin)
        ops.rope(key_T1D[..., rotated], cos, sin)
        near = ops.with_past(key_T1D.squeeze(1), cache.states[0], step.states)
        metadata, chosen = step.compressions[self.compression], None
        # (rows, 1, numbers of a row): entries begin rows, index keys end them.
        entries_N1R = x_TE.new_empty(0, 1, config.head_dim)
        if self.pending is not None and self.compressor is not None and config.compression is not None:
            entries_N1R = cache.rows_NJD.view(-1, 1, config.compression.row * cache.rows_NJD.shape[2])
            self._write(self.pending(x_TE), entries_N1R, step, cache)
        if self.indexer is not None:
            chosen = self.indexer.choose(x_TE, low_TI, (cos, sin), entries_N1R, metadata.attention)
        attended_THD = x_TE.new_empty(tokens, heads, config.head_dim)
        ops.compressed_attention(
            q_THD,
            near,
            entries_N1R.squeeze(1),
            metadata.attention,
            step.positions_T,
            self.scale,
            self.sinks_H,
            attended_THD,
            chosen,
        )
        # Values were rotated as keys; this leaves of it how far they are from the query.
        ops.rope(attended_THD[..., rotated], cos, -sin)
        out_TGO = x_TE.new_empty(tokens, len(self.out_GIO), self.out_GIO.shape[2])
        ops.heads_linear(attended_THD.view(tokens, len(self.out_GIO), -1), self.out_GIO, out_TGO, self.tile)
        return out_TGO.view(tokens, -1)

    def _write(self, pending_TC: Tensor, entries_N1R: Tensor, step: Step, cache: LayerCache) -> None:
        """Puts entries, and their index keys, into the rows of the last of their tokens."""
        assert step.states is not None and self.compressor is not None
        metadata = step.compressions[self.compression]
        past = ops.with_past(pending_TC, cache.states[1], step.states)
        exact = step.states.exact or (pending_TC.dtype == torch.float32 and pending_TC.device.type == "cpu")
        size = self.config.head_dim
        own = pending_TC.shape[1] * size // self.config.entry
        for some, windows_MVC in ops.finished_windows(past, metadata):
            cos, sin = (table[some] for table in metadata.ropes[self.rope])
            rows_M, is_first_M = metadata.rows_M[some], metadata.is_first_M[some]
            made_MD = self.compressor(windows_MVC[..., :own], is_first_M, (cos, sin), exact)
            entries_N1R[:, 0, :size].index_copy_(0, rows_M, made_MD)
            if self.indexer is not None:
                keys_MC = self.indexer.compressor(windows_MVC[..., own:], is_first_M, (cos, sin), exact)
                entries_N1R[:, 0, -keys_MC.shape[1] :].index_copy_(0, rows_M, keys_MC)
