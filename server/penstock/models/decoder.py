"""The decoder: every decoder-only model that is served, by a few named choices.

Made by a recipe, run by the engine. Nothing in the forward pass branches on data: what changes from step
to step is in the tensors of `Step`. Letters: T tokens, H query heads, K key/value heads, J = 2 K, D head
size, E model width, F feed-forward width, V vocabulary, N cache rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

import penstock_kernels as ops
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.rope import RopeConfig


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder and the choices its family made."""

    vocab_size: int
    width: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str  # a name in penstock_kernels.ACTIVATIONS
    attention_bias: bool
    feed_forward_bias: bool
    tied_head: bool
    rope: RopeConfig

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that the cache of all layers holds for one token."""
        return self.layers * 2 * self.kv_heads * self.head_dim


@dataclass(slots=True)
class Step:
    """What one forward pass reads, in the order in which the layout put the tokens."""

    ids_T: Tensor  # int64
    cos_T1D: Tensor
    sin_T1D: Tensor
    places_T: Tensor  # int64: the cache row that each token's keys and values go to
    attention: ops.AttentionLayout


@dataclass(slots=True)
class Layer:
    """Weights of one layer. The rows of `qkv` are query, key and value heads; of `gate_up`, gate and up."""

    attention_norm: RmsNorm
    qkv: Linear
    attention_out: Linear
    feed_forward_norm: RmsNorm
    gate_up: Linear
    down: Linear


class Decoder:
    """Token ids to hidden states, and hidden states to logits."""

    def __init__(
        self, config: DecoderConfig, embedding_VE: Tensor, layers: list[Layer], norm: RmsNorm, head: Linear
    ) -> None:
        self.config = config
        self.embedding_VE = embedding_VE
        self.layers = layers
        self.norm = norm
        self.head = head
        self.activation: Callable[[Tensor], Tensor] = ops.ACTIVATIONS[config.activation]
        self.scale = config.head_dim**-0.5

    def forward(self, step: Step, caches_NJD: list[Tensor]) -> Tensor:
        """Hidden states (T, E) of the step's tokens; writes their keys and values into the caches."""
        config = self.config
        heads, kv_heads, size = config.heads, config.kv_heads, config.head_dim
        x_TE = ops.embedding(step.ids_T, self.embedding_VE)
        tokens = x_TE.shape[0]
        attended_THD = x_TE.new_empty(tokens, heads, size)
        for layer, cache_NJD in zip(self.layers, caches_NJD, strict=True):
            heads_TD = layer.qkv(layer.attention_norm(x_TE)).view(tokens, heads + 2 * kv_heads, size)
            ops.rope(heads_TD[:, : heads + kv_heads], step.cos_T1D, step.sin_T1D)
            # All rows write before any row reads: one row's prefix may be what another row computes now.
            ops.write_kv(heads_TD[:, heads:], cache_NJD, step.places_T)
            ops.paged_attention(heads_TD[:, :heads], cache_NJD, step.attention, self.scale, attended_THD)
            layer.attention_out.add_to(x_TE, attended_THD.view(tokens, heads * size))
            gate_up_T2F = layer.gate_up(layer.feed_forward_norm(x_TE))
            layer.down.add_to(x_TE, ops.gated(gate_up_T2F, self.activation))
        return x_TE

    def weights(self) -> list[Tensor]:
        """Every tensor of the model, each once."""
        found = [self.embedding_VE, self.norm.weight_E, self.head.weight_OI]
        for layer in self.layers:
            found += [layer.attention_norm.weight_E, layer.feed_forward_norm.weight_E]
            for matrix in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
                found += [t for t in (matrix.weight_OI, matrix.bias_O) if t is not None]
        return list({id(t): t for t in found}.values())

    def logits(self, hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        """(S, E) hidden states of chosen tokens to (S, V) logits in fp32, in the memory of `out`."""
        return out_SV.copy_(self.head(self.norm(hidden_SE)))
