"""Recurrent layers of models of transformers: their states in our memory, however a step is cut and batched.

transformers gives a layer its state through a cache object. Ours stands in its place: it hands out the states of the sequence
that is computed, and puts back what came of them. Modules that ask for a state, the mixers, are found in the trace; in a step
each is called once for every piece of a sequence, and everything around them once for all tokens. Models without attention
that keep their states otherwise are called whole for each piece. Used by `penstock.models.fallback`. Letters as in `decoder`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import penstock_kernels as ops
from penstock.models.bridge import Unfit
from penstock.models.layer_cache import LayerCache
from penstock.models.recurrent_config import StateShape
from penstock.models.step import Step

# Mixers that compute several tokens at once from any state. Others do so from an empty one alone: after that they get token by token,
# as in transformers' own generation.
CONTINUE = frozenset(("Zamba2MambaMixer", "ZayaCCAProjection"))
# Mixers whose step transformers 5.23 holds at `time_step_min` or above in prompts. That is for the first values of dt_bias in training:
# Zyphra's own code and vLLM have no limit.
LIMITED = frozenset(("Zamba2MambaMixer",))

# (layer, kind, number) of a state.
Name = tuple[int, str, int]


class _Unknown(Unfit, AttributeError):
    """Something that a model asks of its cache, and that ours does not have."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one sequence that follow one another; or one token each of several."""

    tokens: slice
    places_S: Tensor
    is_first: bool  # the state is empty
    saves: tuple[tuple[int, int], ...] = ()  # (place, place of the copy) behind them

    @property
    def several(self) -> bool:
        """Whether each token is of another sequence."""
        return len(self.places_S) > 1

    def one_by_one(self) -> Iterator["Piece"]:
        """The same, token by token."""
        last = self.tokens.stop - 1
        for token in range(self.tokens.start, self.tokens.stop):
            yield Piece(
                slice(token, token + 1),
                self.places_S,
                self.is_first and token == self.tokens.start,
                self.saves if token == last else (),
            )


def pieces_of(states: ops.StateMetadata, positions_T: Tensor, *, together: bool) -> list[Piece]:
    """The pieces of a step; `together`: single tokens of several sequences are one."""
    singles = len(states.places_S)
    begins = [*range(singles), *(run.begin for run in states.runs)]
    empty = (positions_T[torch.tensor(begins, device=positions_T.device)] == 0).tolist()
    turns = states.in_turns()
    pieces = []
    if together and singles > 1 and len(turns) == 1 and not any(empty[:singles]):
        copies = tuple(copy for saved in _saved(turns[0]).values() for copy in saved)
        pieces.append(Piece(slice(0, singles), states.places_S, False, copies))
    else:
        # Of a row with several the first comes first.
        behind: dict[int, tuple[tuple[int, int], ...]] = {}
        for turn in turns:
            saved = _saved(turn)
            tokens = range(singles) if isinstance(turn.tokens, slice) else turn.tokens.tolist()
            for token, place in zip(tokens, turn.places_S.tolist(), strict=True):
                behind[token] = tuple(saved.get(place, ()))
        for at in range(singles):
            pieces.append(Piece(slice(at, at + 1), states.places_S[at : at + 1], empty[at], behind[at]))
    for run, is_first in zip(states.runs, empty[singles:], strict=True):
        place = torch.tensor([run.place], device=positions_T.device)
        copies = () if run.save is None else ((run.place, run.save),)
        pieces.append(Piece(slice(run.begin, run.end), place, is_first, copies))
    return pieces


def _saved(turn: ops.Turn) -> dict[int, list[tuple[int, int]]]:
    """The copies that are made behind a turn, by the place that is copied."""
    saved: dict[int, list[tuple[int, int]]] = {}
    if turn.saved_C is not None and turn.saves_C is not None:
        for place, to in zip(turn.saved_C.tolist(), turn.saves_C.tolist(), strict=True):
            saved.setdefault(place, []).append((place, to))
    return saved


@dataclass(slots=True)
class _Working:
    """States of the piece that is computed."""

    piece: Piece
    states: dict[Name, Tensor] = field(default_factory=dict)
    had: set[Name] = field(default_factory=set)  # of a first piece: those that are no longer empty


class States:
    """The cache that a model's layers ask for their states, and give their keys to."""

    is_compileable = False

    def __init__(self) -> None:
        self.names: dict[Name, tuple[tuple[int, ...], torch.dtype]] = {}  # to the shape of one sequence's
        self._mixers: list[nn.Module] = []
        self._inside: list[nn.Module] | None = None  # while tracing: the modules that are being called
        self._arrays: dict[Name, Tensor] = {}
        self._pieces: list[Piece] | None = None
        self._working: _Working | None = None

    @property
    def shapes(self) -> tuple[tuple[StateShape, ...], ...]:
        """Of each layer with a state."""
        layers: dict[int, list[StateShape]] = {}
        for (layer, _, _), (shape, dtype) in self.names.items():
            layers.setdefault(layer, []).append(StateShape(shape, dtype == torch.float32))
        return tuple(map(tuple, layers.values()))

    @contextmanager
    def tracing(self, body: nn.Module) -> Iterator[None]:
        """States that the forward pass within asks for are written down, and who asks."""
        inside: list[nn.Module] = []
        hooks = []
        for module in body.modules():
            hooks.append(module.register_forward_pre_hook(lambda module, _: inside.append(module)))
            hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None))
        self._inside = inside
        try:
            yield
        finally:
            self._inside = None
            for hook in hooks:
                hook.remove()
        for module in self._mixers:
            self._divide(module)

    @contextmanager
    def serving(self, step: Step, caches: list[LayerCache]) -> Iterator[None]:
        """The forward pass within computes this step; `caches` are those of the layers with a state."""
        if step.states is None:
            yield
            return
        arrays = iter([array for cache in caches for array in cache.states])
        layers: dict[int, list[Name]] = {}
        for name in self.names:
            layers.setdefault(name[0], []).append(name)
        self._arrays = {name: next(arrays) for names in layers.values() for name in names}
        self._pieces = pieces_of(step.states, step.positions_T, together=True)
        try:
            yield
        finally:
            self._pieces, self._arrays, self._working = None, {}, None

    def _divide(self, module: nn.Module) -> None:
        """Has a mixer called for each piece of a step."""
        whole: Callable[..., Any] = module.forward
        continues = type(module).__name__ in CONTINUE

        def forward(*args: Any, **options: Any) -> Any:
            if self._pieces is None:
                return whole(*args, **options)
            length = next(x.shape[1] for x in (*args, *options.values()) if isinstance(x, Tensor))
            parts = []
            for piece in self._pieces:
                one_by_one = not (piece.several or piece.is_first or continues)
                for part in piece.one_by_one() if one_by_one else (piece,):
                    parts.append(self._compute(whole, part, length, args, options))
            return _joined(parts, length)

        module.forward = forward

    def _compute(
        self,
        whole: Callable[..., Any],
        piece: Piece,
        length: int,
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        def cut(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.shape[:2] != (1, length):
                return x
            return x[0, piece.tokens].unsqueeze(1) if piece.several else x[:, piece.tokens]

        self._working = working = _Working(piece)
        made = whole(*map(cut, args), **{name: cut(x) for name, x in options.items()})
        for name, state_S in working.states.items():
            array_P = self._arrays[name]
            array_P.index_copy_(0, piece.places_S, state_S.to(array_P.dtype))
            for place, copy in piece.saves:
                array_P[copy] = array_P[place]
        self._working = None
        return _turned(made) if piece.several else made

    # What models call. Names and meanings are those of transformers' Cache.

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get((layer_idx, "conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get((layer_idx, "recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Appends (S, C, L) to the last inputs, which are kept. Returns them together."""
        name = (layer_idx, "conv", state_idx)
        before = self._get(name)
        size = conv_kernel_size or conv_states.shape[-1]
        if before is not None:
            size = before.shape[-1]
            conv_states = torch.cat((before, conv_states), -1)
        elif conv_states.shape[-1] < size:
            conv_states = F.pad(conv_states, (size - conv_states.shape[-1], 0))
        self._set(name, conv_states[..., conv_states.shape[-1] - size :].clone())
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self._set((layer_idx, "recurrent", state_idx), recurrent_states)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        working = self._working
        return working is not None and (not working.piece.is_first or bool(working.had))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return keys, values  # attention itself writes them

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are given

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def update_indexer(self, *_: Any, **__: Any) -> Tensor:
        raise Unfit("keeps keys of an indexer, and the cache holds keys, values and states only")

    def __getattr__(self, name: str) -> Any:
        raise _Unknown(f"asks its cache for {name}, which ours does not have")

    def _get(self, name: Name) -> Tensor | None:
        working = self._working
        if working is None:
            self._note()
            return None
        if working.piece.is_first and name not in working.had:
            return None
        if name not in working.states:
            working.states[name] = self._arrays[name].index_select(0, working.piece.places_S)
        return working.states[name]

    def _set(self, name: Name, state_S: Tensor) -> None:
        working = self._working
        if working is None:
            self._note()
            if not state_S.is_floating_point():
                raise Unfit("keeps a state that is not of numbers with a point")
            self.names[name] = tuple(state_S.shape[1:]), state_S.dtype
            return
        working.states[name] = state_S
        working.had.add(name)

    def _note(self) -> None:
        """Whose state it is that is asked for in the trace."""
        inside = self._inside
        if inside and not any(module in self._mixers for module in inside):
            self._mixers.append(inside[-1])


def _turned(made: Any) -> Any:
    """Of one token each of several sequences, (S, 1, ...), to (1, S, ...)."""
    if isinstance(made, tuple):
        return tuple(map(_turned, made))
    return made.transpose(0, 1) if isinstance(made, Tensor) else made


def _joined(parts: list[Any], length: int) -> Any:
    """What pieces gave, (1, T, ...) each, behind one another, filled up with zeros to (1, length, ...)."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(_joined(list(some), length) for some in zip(*parts, strict=True))
    if not isinstance(first, Tensor):
        return first
    joined = torch.cat(parts, 1)
    fill = length - joined.shape[1]
    if fill <= 0:
        return joined
    return torch.cat((joined, joined.new_zeros(1, fill, *joined.shape[2:])), 1)


@dataclass(frozen=True)
class OwnStates:
    """A model without attention whose body takes all its states at once, in an object of its own."""

    shapes: tuple[tuple[StateShape, ...], ...]
    give: Callable[
        [list[Tensor] | None], dict[str, Any]
    ]  # states (S, ...), or None for empty ones, as options of the body
    take: Callable[[dict[str, Any], Any], list[Tensor]]  # of those options and what the body returned
    together: bool  # whether one token each of several sequences can be computed at once

    def forward(self, body: Any, step: Step, caches: list[LayerCache], ids_T: Tensor) -> Tensor:
        """Hidden states (T, E) of the step's tokens."""
        assert step.states is not None, "a model with states"
        arrays = [array for cache in caches for array in cache.states]
        hidden = []
        for piece in pieces_of(step.states, step.positions_T, together=self.together):
            given = None if piece.is_first else [array.index_select(0, piece.places_S) for array in arrays]
            options = self.give(given)
            ids = ids_T[piece.tokens]
            output = body(
                input_ids=ids.unsqueeze(1) if piece.several else ids.unsqueeze(0), use_cache=True, **options
            )
            for array_P, state_S in zip(arrays, self.take(options, output), strict=True):
                array_P.index_copy_(0, piece.places_S, state_S.to(array_P.dtype))
                for place, copy in piece.saves:
                    array_P[copy] = array_P[place]
            hidden.append(output.last_hidden_state.flatten(0, 1))
        return torch.cat(hidden)


def without_limits(model: nn.Module) -> None:
    """Lets a step of a state space be as small as the model makes it, in prompts as in decodes."""
    for module in model.modules():
        if type(module).__name__ in LIMITED:
            module.time_step_limit = (0.0, math.inf)  # type: ignore[assignment]


def own_states(body: Any) -> OwnStates | None:
    """Of a body that keeps its states so; None: of any other."""
    kinds: dict[str, Callable[[Any], OwnStates]] = {"RwkvModel": _rwkv, "xLSTMModel": _xlstm}
    kind = kinds.get(type(body).__name__)
    return None if kind is None else kind(body)


def _rwkv(body: Any) -> OwnStates:
    """A list of five: what feed-forward and attention read last, and the sums of attention with their largest exponents."""
    config = body.config
    shape = (int(config.hidden_size), int(config.num_hidden_layers))
    if config.attention_hidden_size not in (None, config.hidden_size):
        raise Unfit("has attention of another width than its hidden states")
    return OwnStates(
        ((*[StateShape(shape, is_fp32=False)] * 2, *[StateShape(shape)] * 3),),
        lambda states: {"state": states},
        lambda _, output: list(output.state),
        together=False,  # its layers mix up sequences of one token each
    )


@dataclass(slots=True)
class _XLSTMCache:
    """What xLSTM takes for its cache."""

    rnn_state: dict[int, tuple[Tensor, ...]]  # of each layer, which are written into
    seqlen_offset: int = 0
    rnn_state_initial: bool = False


def _xlstm(body: Any) -> OwnStates:
    """Of each layer a matrix memory, what normalises it, and the largest exponent of a gate ("xLSTM", Beck et al., 2024, section 2.3).

    They are fp32, and so is what is computed from them: transformers' kernel for chunks takes no other dtype beside them, and rounds them
    to that of the weights with its own cache.
    """
    for block in body.blocks:
        _in_fp32(block.mlstm_layer.mlstm_backend)
    config = body.config
    heads, keys, values = config.num_heads, config.qk_head_dim, config.v_head_dim
    layer = (StateShape((heads, keys, values)), StateShape((heads, keys)), StateShape((heads, 1)))
    layers = config.num_hidden_layers

    def give(states: list[Tensor] | None) -> dict[str, Any]:
        if states is None:
            device = body.embeddings.weight.device
            states = [torch.zeros(1, *state.shape, device=device) for _ in range(layers) for state in layer]
        of_layers = zip(*[iter(states)] * len(layer), strict=True)
        return {"cache_params": _XLSTMCache(dict(enumerate(of_layers)))}

    def take(options: dict[str, Any], _: Any) -> list[Tensor]:
        return [state for states in options["cache_params"].rnn_state.values() for state in states]

    return OwnStates((layer,) * layers, give, take, together=True)


def _in_fp32(backend: Any) -> None:
    """Has it compute so, whatever the dtype of what it is given."""
    whole = backend.forward

    def forward(**named: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        asked = named["query"]
        assert asked is not None
        made, states = whole(**{name: None if x is None else x.float() for name, x in named.items()})
        return made.to(asked.dtype), states

    backend.forward = forward
