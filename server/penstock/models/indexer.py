"""What chooses the keys that latent attention attends to: an index key of each token, beside its latent in the cache, and a
query of several heads that scores them. See `ops.choose_keys`. Letters as there and in `decoder`.
"""

import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.layers.linear import Linear
from penstock.layers.module import Module
from penstock.layers.norm import Norm
from penstock.models.config import IndexConfig


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
