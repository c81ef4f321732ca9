"""What the engine, Prepare and the doctor ask of a model, whichever kind it is: a recipe's decoder or encoder-decoder,
or one that runs through transformers. Arrays are of numpy where the CPU engine runs the model, else of torch.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.layers.rope import RopeConfig
from penstock.models.config import Window
from penstock.models.layer_cache import LayerCache
from penstock.models.recurrent_config import Compression, StateShape
from penstock.parallel.group import TensorGroup
from penstock_kernels.program import Array


class ModelConfig(Protocol):
    """The shape of a model. Counts are of the whole model, over all ranks."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def width(self) -> int:
        """E."""

    @property
    def residual_width(self) -> int:
        """Numbers of a token that go from one layer to the next: E, or several times as many."""

    @property
    def feed_forward(self) -> int:
        """F."""

    @property
    def num_layers(self) -> int:
        """Over all stages."""

    def layers_of(self, group: TensorGroup) -> range:
        """Those of a rank's stage. Raises UnusableModel where the model cannot be divided so often."""

    def stage_width(self, layer: int) -> int:
        """Numbers of a token that the stage which begins with this layer is given by the one before."""

    def cached_layers(self, group: TensorGroup) -> list[int | None]:
        """Of each of a rank's layers its number among all that have a KV cache; None: it has none."""

    def state_shapes(self, group: TensorGroup) -> list[tuple[StateShape, ...]]:
        """What each of a rank's layers keeps of a sequence beside its KV cache; of most kinds of layers, nothing."""

    @property
    def has_state(self) -> bool:
        """Whether a layer is recurrent, on whichever rank: every sequence has a state of one size."""

    @property
    def layers_with_state(self) -> int:
        """Over all stages."""

    @property
    def index_keys(self) -> tuple[int, ...]:
        """Of each layer over all stages, numbers that its cache has of a token for choosing keys; 0: it chooses none."""

    @property
    def mixer_width(self) -> int:
        """Numbers that a recurrent layer makes of a token, at most."""

    @property
    def heads(self) -> int:
        """H."""

    @property
    def kv_heads(self) -> int:
        """K."""

    @property
    def head_dim(self) -> int:
        """D."""

    @property
    def key_shape(self) -> tuple[int, int]:
        """(K, D) of what attention gathers from the cache for a token."""

    @property
    def max_positions(self) -> int:
        """The longest sequence the model was made for, of encoder and decoder together."""

    @property
    def usual_positions(self) -> int:
        """Of a sequence where nothing else is asked for."""

    @property
    def most_positions(self) -> int:
        """Of a sequence that is asked for, which may be longer."""

    @property
    def positions_go_on(self) -> bool:
        """Whether a sequence may be longer than those the model was made for."""

    @property
    def has_encoder(self) -> bool:
        """Whether every sequence begins with what an encoder reads."""

    @property
    def max_side_positions(self) -> int:
        """Tokens that encoder and decoder may have each; 0: as many as fit, or there is no encoder."""

    @property
    def default_start(self) -> int | None:
        """What the decoder of an encoder-decoder begins with where no configuration says it."""

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Rotary tables that a step brings."""

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """Through which layers look at the cache."""

    @property
    def layer_windows(self) -> tuple[Window | None, ...]:
        """How far back each layer's KV cache is read, of those that have one; None: to the beginning."""

    def gathered_keys(self, longest: int) -> int:
        """Keys that attention gathers of a sequence of so many tokens, in a layer, at most."""

    @property
    def past_numbers(self) -> int:
        """What a layer puts before a token of a sequence out of its state, numbers at most; most kinds of layers do no such thing."""

    @property
    def compressions(self) -> tuple[Compression | None, ...]:
        """Of the layers that attend to entries of several tokens each; None: to a window beside others that do."""

    @property
    def simple_attention(self) -> bool:
        """Whether attention is products and a softmax over keys, and nothing else."""

    @property
    def has_distances(self) -> bool:
        """Whether queries say of distances what is added to scores."""

    @property
    def chooses_keys(self) -> bool:
        """Whether queries attend to chosen keys alone."""


@dataclass(frozen=True)
class Reference:
    """What a model computes by itself, without our cache."""

    name: str  # of the model's class
    ids_T: Array
    logits_TV: Array  # fp32


class Model(Protocol):
    """A rank's part of a loaded model."""

    parameters: int  # of the whole model, over all ranks
    reference: Reference | None  # of transformers' models, for the self-check; None: nothing to check

    @property
    def config(self) -> ModelConfig: ...

    @property
    def cache_shape(self) -> tuple[int, int]:
        """(J, D) of what this rank's cache holds for a token and a layer."""

    def make_batch_invariant(self, rows: int) -> None:
        """Has every product done in pieces of `rows` rows. Raises UnusableModel where that does not help."""

    def serve_up_to(self, longest: int) -> None:
        """Sequences will have at most `longest` tokens."""

    def views(self) -> list[tuple[int, int]]:
        """(window, number) of each of this rank's layers that attends: an entry of `config.windows`, and its number
        among all layers with a KV cache.
        """

    def forward(self, step: Any, caches: list[LayerCache], given_TE: Array | None = None) -> Array:
        """Hidden states (T, E) of the step's tokens, after this stage's layers; writes what later steps attend to into
        the caches, one for each of its layers. `step` is of the kind that the model reads; `given_TE` is what the stage before gave.
        """

    def logits(self, hidden_SE: Array, out_SV: Array) -> Array:
        """(S, E) hidden states of chosen tokens to (S, V) logits in fp32, in the memory of `out`."""

    def weights(self) -> list[Array]:
        """Every tensor of this rank's part of the model, each once."""
