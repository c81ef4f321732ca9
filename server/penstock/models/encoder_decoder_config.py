"""The shape of an encoder-decoder: what its family chose, by name. Made by recipes, followed by `encoder_decoder` and its recorder. Must
not import torch.
"""

from dataclasses import dataclass
from typing import ClassVar

from penstock.layers.rope import RopeConfig
from penstock.models.config import NormConfig
from penstock.models.recurrent_config import StateShape
from penstock.parallel.group import TensorGroup

# Positions of a model that has no longest input: what fits is the limit.
UNBOUNDED = 1 << 20


@dataclass(frozen=True)
class RelativeBias:
    """Scores depend on how far a key is from its query, by buckets (Raffel et al., "T5", 2020, section 2.1)."""

    buckets: int
    furthest: int  # what is further away is in the last bucket


@dataclass(frozen=True)
class Sines:
    """Positions are sines, and cosines behind them, of frequencies from 1 to about 1/10000 (Vaswani et al., 2017, 3.5)."""

    longest_included: bool  # the last frequency is 1/10000; else what would come after it is


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """The shape of an encoder-decoder and the choices its family made."""

    vocab_size: int
    width: int  # E
    head_dim: int
    encoder_layers: int
    encoder_heads: int
    encoder_feed_forward: int
    num_layers: int  # of the decoder
    heads: int  # of the decoder
    feed_forward: int  # of the decoder
    norm: NormConfig
    activation: str  # a name in penstock_kernels.ACTIVATIONS
    max_side_positions: int  # tokens that encoder and decoder may have each; 0: as many as fit
    default_start: int | None  # what the decoder begins with where no configuration says it
    gated: bool = False
    bias: bool = False  # of all matrices but the head
    scale: float | None = None  # of the scores; None: head_dim ** -0.5
    relative: RelativeBias | None = None
    position_offset: int = 0  # row of the table of positions for position 0; used where there is one
    sines: Sines | None = None  # what is in that table; None: what was learned
    pre_norm: bool = True  # what a branch reads is normalised; else its sum with what it read
    embedding_norm: bool = False
    normed_before_positions: bool = (
        False  # of the decoder: its embedding norm reads embeddings without positions
    )
    final_norm: bool = True
    embedding_scale: float = 1.0
    hidden_scale: float = 1.0  # of what the head reads
    wide_residual: bool = False  # in fp16, the sum of the branches, and what they add last, are fp32
    never_said: int | None = None  # a token that has no probability

    has_state: ClassVar[bool] = False
    layers_with_state: ClassVar[int] = 0
    mixer_width: ClassVar[int] = 0
    compressions: ClassVar[tuple[()]] = ()
    past_numbers: ClassVar[int] = 0

    @property
    def residual_width(self) -> int:
        """See ModelConfig."""
        return self.width

    @property
    def max_positions(self) -> int:
        """The most tokens of both sides together."""
        return 2 * self.max_side_positions or UNBOUNDED

    @property
    def usual_positions(self) -> int:
        """Where nothing else is asked for: see `limits.rs` of the router."""
        return self.max_positions if self.max_side_positions else 4096

    @property
    def most_positions(self) -> int:
        """No more."""
        return self.max_positions

    @property
    def positions_go_on(self) -> bool:
        """Its sides are bounded each, or not at all."""
        return False

    @property
    def has_encoder(self) -> bool:
        """It has one."""
        return True

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """None rotates anything."""
        return ()

    @property
    def windows(self) -> tuple[None, ...]:
        """None of its layers has one."""
        return (None,)

    @property
    def index_keys(self) -> tuple[int, ...]:
        """None chooses keys."""
        return (0,) * self.num_layers

    @property
    def layer_windows(self) -> tuple[None, ...]:
        """Of the decoder's layers."""
        return (None,) * self.num_layers

    @property
    def simple_attention(self) -> bool:
        """Scores are never all in memory at once."""
        return True

    @property
    def has_distances(self) -> bool:
        """See ModelConfig."""
        return False

    @property
    def chooses_keys(self) -> bool:
        """None do."""
        return False

    @property
    def kv_heads(self) -> int:
        """Every head has keys of its own."""
        return self.heads

    def gathered_keys(self, longest: int) -> int:
        """All of them."""
        return longest

    def layers_of(self, group: TensorGroup) -> range:
        """See ModelConfig."""
        return group.layers(self.num_layers)

    def stage_width(self, layer: int) -> int:
        """See ModelConfig."""
        return self.width

    def cached_layers(self, group: TensorGroup) -> list[int | None]:
        """Each has a KV cache."""
        return list(self.layers_of(group))

    def state_shapes(self, group: TensorGroup) -> list[tuple[StateShape, ...]]:
        """None is recurrent."""
        return [()] * len(self.layers_of(group))

    @property
    def key_shape(self) -> tuple[int, int]:
        """(K, D) of what attention gathers from the cache for a token."""
        return self.heads, self.head_dim
