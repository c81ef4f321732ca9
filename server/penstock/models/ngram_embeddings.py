"""N-gram embeddings of Qwen 4: rows of a large table, named by each token and those before it, are mixed into every residual
stream of a layer. Letters as in `decoder` and `hyper_connections`, and U tokens before one, G heads of the table, Y numbers of a row, X
rows that a step finds.

Cheng et al., "Conditional Memory via Scalable Lookup" (Engram), 2026, has the same parts.
"""

from __future__ import annotations

from itertools import accumulate

import penstock_kernels as ops
from penstock.layers.linear import Embedding, Linear
from penstock.layers.module import Module
from penstock.models.hyper_connections import StreamNorm
from penstock.models.layer_cache import LayerCache
from penstock.models.ngram_config import NgramConfig
from penstock.models.step import Step
from penstock_kernels import tensors
from penstock_kernels.later import F, Tensor, torch


class NgramTable(Module):
    """What a token's n-grams find."""

    def __init__(self, config: NgramConfig, table: Embedding) -> None:
        self.end, self.table = config.end, table
        self.heads = len(config.parts) // config.before  # of each length
        self.multipliers = config.multipliers
        begins = list(accumulate(config.parts, initial=0))[:-1]
        self.parts_G, self.begins_G = tensors.tensor(config.parts), tensors.tensor(begins)

    def __call__(self, ids_T: Tensor, positions_T: Tensor, before_TU: Tensor) -> Tensor:
        """(T, G Y) of ids and those of the tokens before them, the nearest first."""
        found_XY: Tensor = self.table(self.rows(ids_T, positions_T, before_TU).flatten())
        return found_XY.view(len(ids_T), -1)

    def rows(self, ids_T: Tensor, positions_T: Tensor, before_TU: Tensor) -> Tensor:
        """(T, G): of each head the row that the n-gram has in the table."""
        mixed_T = ids_T * self.multipliers[0]
        found, nearer_T = [], None
        for place, multiplier in enumerate(self.multipliers[1:], 1):
            is_none_T = positions_T < place
            if nearer_T is not None:
                is_none_T = is_none_T | (nearer_T == self.end)
            nearer_T = before_TU[:, place - 1].masked_fill(is_none_T, self.end)
            mixed_T = mixed_T ^ (nearer_T * multiplier)
            found.append(mixed_T.unsqueeze(1).expand(-1, self.heads))
        return torch.cat(found, 1) % self.parts_G + self.begins_G


class NgramInjection(Module):
    """Of one layer. The rows of `parts` are keys, one of each stream, and a value for all."""

    def __init__(
        self,
        config: NgramConfig,
        table: NgramTable,
        parts: Linear,
        norms: tuple[StreamNorm, StreamNorm, StreamNorm],
        weight_WC: Tensor,
    ) -> None:
        """`norms`: of keys, of queries, which are the streams, and of what the convolution reads; `weight_WC` is fp32."""
        self.config, self.table, self.parts = config, table, parts
        self.key_norm, self.query_norm, self.value_norm = norms
        self.weight_WC = weight_WC

    def __call__(self, x_TAE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """(T, A, E) of the streams: they and what n-grams add."""
        assert step.states is not None, "made for models with a state"
        *_, convolved_PUC, ids_PU = cache.states
        before_TU = ops.previous_ids(step.ids_T, ids_PU, step.states)
        made_TO = self.parts(self.table(step.ids_T, step.positions_T, before_TU))
        streams, width = x_TAE.shape[1:]
        key_TAE = torch.unflatten(made_TO[:, : streams * width], -1, (streams, width))
        value_T1E = made_TO[:, streams * width :].unsqueeze(1)
        products_TAE = self.key_norm(key_TAE).float() * self.query_norm(x_TAE).float()
        agree_TA1 = products_TAE.sum(-1, keepdim=True) * width**-0.5
        gate_TA1 = (agree_TA1.abs().clamp_min(1e-6).sqrt() * agree_TA1.sign()).sigmoid()
        gated_TAE = (gate_TA1 * value_T1E.float()).to(x_TAE.dtype)
        normed_TC = self.value_norm(gated_TAE).flatten(1)
        convolved_TC = ops.causal_conv(
            normed_TC, self.weight_WC, None, convolved_PUC, step.states, self.config.dilation
        )
        added_TAE: Tensor = gated_TAE.float() + F.silu(convolved_TC).view_as(gated_TAE)
        return (x_TAE.float() + added_TAE).to(x_TAE.dtype)
