"""The shape of a model that transformers runs, as far as transformers tells it. Read by whatever asks a `ModelConfig`; made by
`fallback_loader` of what it has traced.
"""

from dataclasses import dataclass

from penstock.layers.rope import RopeConfig
from penstock.models.config import NO_END, Window
from penstock.models.recurrent_config import StateShape
from penstock.parallel.group import TensorGroup


@dataclass(frozen=True)
class FallbackConfig:
    """The shape, as far as transformers tells it. See ModelConfig."""

    vocab_size: int
    width: int
    feed_forward: int
    caches: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    windows: tuple[Window | None, ...]
    layer_windows: tuple[Window | None, ...]  # of each cache
    simple_attention: bool
    states: tuple[tuple[StateShape, ...], ...] = ()  # of each layer that has one, numbered after the caches
    ropes: tuple[RopeConfig, ...] = ()  # the model has its own
    has_encoder: bool = False
    max_side_positions: int = 0
    default_start: int | None = None
    compressions: tuple[()] = ()
    chooses_keys: bool = False
    has_distances: bool = False
    past_numbers: int = 0

    @property
    def num_layers(self) -> int:
        """What keeps something of a sequence."""
        return self.caches + len(self.states)

    @property
    def has_state(self) -> bool:
        """Whether a layer is recurrent."""
        return bool(self.states)

    @property
    def layers_with_state(self) -> int:
        """Those that are recurrent."""
        return len(self.states)

    @property
    def index_keys(self) -> tuple[int, ...]:
        """None chooses keys."""
        return (0,) * self.num_layers

    @property
    def residual_width(self) -> int:
        """See ModelConfig."""
        return self.width

    @property
    def mixer_width(self) -> int:
        """Numbers that a recurrent layer makes of a token, about."""
        return 6 * self.width if self.states else 0

    @property
    def most_positions(self) -> int:
        """Without attention nothing in a model tells positions apart."""
        return self.max_positions if self.caches else NO_END

    @property
    def positions_go_on(self) -> bool:
        """Whether there is no end."""
        return self.caches == 0

    @property
    def usual_positions(self) -> int:
        """Of a sequence where nothing else is asked for."""
        return self.max_positions

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
        """Those that attend have a KV cache."""
        return [at if at < self.caches else None for at in self.layers_of(group)]

    def state_shapes(self, group: TensorGroup) -> list[tuple[StateShape, ...]]:
        """Of those that are recurrent."""
        return [() if at < self.caches else self.states[at - self.caches] for at in self.layers_of(group)]

    @property
    def key_shape(self) -> tuple[int, int]:
        """(K, D) of what attention gathers from the cache for a token."""
        return self.kv_heads, self.head_dim
