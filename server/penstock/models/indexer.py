"""What chooses the keys that attention attends to: an index key of each token, beside its latent or its keys and values in the
cache, and a query of several heads that scores them. See `ops.choose_keys` and, where blocks of keys are chosen, `ops.choose_blocks`
and `ops.choose_head_blocks`.
Letters as there and in `decoder`.
"""

import penstock_kernels as ops
from penstock.layers.linear import Linear
from penstock.layers.module import Module
from penstock.layers.norm import Norm
from penstock.models.config import BlockIndexConfig, HeadBlockIndexConfig, IndexConfig
from penstock.models.step import Step
from penstock_kernels.later import Tensor, torch


class Indexer(Module):
    """Of one layer, and whole on every rank: it is small, and all ranks must choose alike. The first numbers of a head are
    rotated, by the table of attention's.
    """

    def __init__(
        self, sizes: IndexConfig, rope_dim: int, query: Linear, key: Linear, key_norm: Norm, weigh: Linear
    ) -> None:
        self.sizes, self.rope_dim = sizes, rope_dim
        self.query, self.key, self.key_norm, self.weigh = query, key, key_norm, weigh
        self.scale = (sizes.heads * sizes.head_dim) ** -0.5

    def keys(self, x_TE: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """(T, 1, C) of the tokens that attention reads."""
        keys_T1C = self.key_norm(self.key(x_TE)).unsqueeze(1)
        ops.rope(keys_T1C[..., : self.rope_dim], *rope)
        return keys_T1C

    def choose(
        self,
        x_TE: Tensor,
        low_TI: Tensor,
        rope: tuple[Tensor, Tensor],
        cache_N1W: Tensor,
        attention: ops.AttentionMetadata,
    ) -> ops.ChosenKeys:
        """For tokens whose keys are in the cache; `low_TI` is what attention's queries are made of."""
        queries_TIC = self.query(low_TI).view(len(x_TE), self.sizes.heads, self.sizes.head_dim)
        ops.rope(queries_TIC[..., : self.rope_dim], *rope)
        weights_TI = self.weigh(x_TE.to(self.weigh.weight_OI.dtype)).to(torch.float32) * self.scale
        return ops.choose_keys(queries_TIC, weights_TI, cache_N1W, attention, self.sizes.most)


class BlockIndexer(Module):
    """Of one layer, and whole on every rank. The rows of `parts` are queries, then the key; the first numbers of both are rotated,
    by the table of attention's.
    """

    def __init__(
        self, sizes: BlockIndexConfig, parts: Linear, query_norm: Norm, key_weight_C: Tensor
    ) -> None:
        self.sizes, self.parts, self.query_norm = sizes, parts, query_norm
        self.key_weight_C = key_weight_C

    def choose(
        self,
        x_TE: Tensor,
        step: Step,
        rope: int,
        cache_NJD: Tensor,
        slot_mapping_T: Tensor,
        attention: ops.AttentionMetadata,
    ) -> ops.ChosenKeys:
        """For the tokens that attention reads; writes their index keys into the cache."""
        sizes = self.sizes
        parts_TIC = torch.unflatten(self.parts(x_TE), -1, (sizes.heads + 1, sizes.head_dim))
        queries_TIC = self.query_norm(parts_TIC[:, :-1])
        cos_T1R, sin_T1R = step.ropes[rope]
        ops.rope(queries_TIC[..., : cos_T1R.shape[-1]], cos_T1R, sin_T1R)
        begins_T = (step.positions_T - (sizes.block - 1)).clamp_min(0)
        ops.write_block_keys(
            parts_TIC[:, -1],
            cache_NJD,
            slot_mapping_T,
            step.positions_T,
            attention,
            sizes.block,
            (self.key_weight_C, sizes.norm.eps),
            step.rope_tables[rope].at(begins_T),
        )
        return ops.choose_blocks(queries_TIC, cache_NJD, attention, sizes.block, sizes.most)


class HeadBlockIndexer(Module):
    """Of one layer. The rows of `parts` are queries of this rank's key heads, then the key, which all ranks hold; the first numbers of
    both are rotated, by the table of attention's.
    """

    def __init__(self, sizes: HeadBlockIndexConfig, parts: Linear, query_norm: Norm, key_norm: Norm) -> None:
        self.sizes, self.parts, self.query_norm, self.key_norm = sizes, parts, query_norm, key_norm

    def choose(
        self,
        x_TE: Tensor,
        step: Step,
        rope: int,
        cache_NJD: Tensor,
        slot_mapping_T: Tensor,
        attention: ops.AttentionMetadata,
    ) -> ops.ChosenKeys:
        """For the tokens that attention reads; writes their index keys into the cache."""
        sizes = self.sizes
        parts_TIC = torch.unflatten(self.parts(x_TE), -1, (-1, sizes.head_dim))
        queries_TIC, keys_T1C = self.query_norm(parts_TIC[:, :-1]), self.key_norm(parts_TIC[:, -1:])
        cos_T1R, sin_T1R = step.ropes[rope]
        for rows_TIC in (queries_TIC, keys_T1C):
            ops.rope(rows_TIC[..., : cos_T1R.shape[-1]], cos_T1R, sin_T1R)
        index_keys_NC = cache_NJD.view(len(cache_NJD), -1)[:, -sizes.head_dim :]
        index_keys_NC.index_copy_(0, slot_mapping_T, keys_T1C.squeeze(1))
        return ops.choose_head_blocks(
            queries_TIC, cache_NJD, attention, sizes.block, sizes.most, sizes.latest
        )
