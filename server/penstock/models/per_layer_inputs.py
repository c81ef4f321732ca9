"""Per-layer embeddings of Gemma 3n and 4: a second table gives every layer numbers of its own for each token, which are
mixed into what the layer gives; the Gemma 3n release has them first. Letters as in `decoder`, and L layers, Y numbers of a token for a layer.
"""

from collections.abc import Callable

from penstock.layers.linear import Embedding, Linear
from penstock.layers.module import Module
from penstock.layers.norm import Norm
from penstock_kernels.later import Tensor


class PerLayerEmbedding(Module):
    """What each layer gets of each token: from its id, and from its embedding."""

    def __init__(self, table: Embedding, rows: int, projection: Linear, norm: Norm, layers: int) -> None:
        self.table, self.rows = table, rows  # of the whole table
        self.projection, self.norm = projection, norm
        self.layers = layers

    def __call__(self, ids_T: Tensor, x_TE: Tensor) -> Tensor:
        """(T, L, Y) of ids (T,) and embeddings (T, E). An id beyond the table counts as 0."""
        tokens, width = x_TE.shape
        found_TLY = self.table(ids_T.masked_fill(ids_T >= self.rows, 0)).view(tokens, self.layers, -1)
        # Factors are rounded to the activations' dtype first, as the families do it.
        found_TLY = found_TLY * x_TE.new_full((), found_TLY.shape[-1] ** 0.5)
        projected_TO = self.projection(x_TE) * x_TE.new_full((), width**-0.5)
        return (self.norm(projected_TO.view_as(found_TLY)) + found_TLY) * x_TE.new_full((), 0.5**0.5)


class PerLayerInput(Module):
    """How a layer takes its numbers: they are a factor behind the gate of a small hidden layer."""

    def __init__(self, gate: Linear, out: Linear, norm: Norm, activation: Callable[[Tensor], Tensor]) -> None:
        self.gate, self.out, self.norm = gate, out, norm
        self.activation = activation

    def __call__(self, x_TE: Tensor, given_TY: Tensor) -> Tensor:
        """What is added to x (T, E)."""
        return self.norm(self.out(self.activation(self.gate(x_TE)) * given_TY))
