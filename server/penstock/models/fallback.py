"""Models that no recipe serves, run by Hugging Face transformers with our paged attention in place of its own.

The classes are theirs, the cache and the batching are ours. Made by `fallback_loader`, which refuses what cannot be served in this way; used
by the engine like any other model.
"""

import inspect
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import UnusableModel
from penstock.models.bridge import Bridge, Unfit
from penstock.models.fallback_config import FallbackConfig
from penstock.models.fallback_states import OwnStates, States
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Reference
from penstock.models.step import Step
from penstock_kernels.matrix import ROWS


class Fallback:
    """A model of transformers, cut in two: the body computes hidden states, the head the logits of the chosen tokens."""

    def __init__(
        self,
        model: Any,
        bridge: Bridge,
        states: States | OwnStates | None,
        config: FallbackConfig,
        reference: Reference | None,
        traced: Any,
    ) -> None:
        self.name = type(model).__name__
        self.config = config
        self.reference = reference  # for who checks the model
        self.cache_shape = (2 * config.kv_heads, config.head_dim) if config.caches else (0, 0)
        self._weights = list({id(p): p.detach() for p in model.parameters()}.values())
        self.parameters = sum(p.numel() for p in self._weights)
        self._bridge, self._states = bridge, states
        name = body_name(model)
        self._body = model.get_submodule(name)
        self._ropes = _Ropes(self._body)
        self._positions = _Positions(self._body)
        self._first = first_position(self._body)
        self._given = _Given(type(traced))
        outer, _, last = name.rpartition(".")
        setattr(model.get_submodule(outer), last, self._given)
        self._head = model

    def make_batch_invariant(self, rows: int) -> None:
        """Raises UnusableModel: its sums are transformers' own."""
        refuse_batch_invariance(self.name)

    def serve_up_to(self, longest: int) -> None:
        """Fixes the rotary frequencies that depend on the longest sequence."""
        self._ropes.fix(longest)

    def views(self) -> list[tuple[int, int]]:
        """(window, cache) of each call of attention."""
        return [(call.window, call.cache) for call in self._bridge.calls]

    def forward(self, step: Step, caches: list[LayerCache], given_TE: Tensor | None = None) -> Tensor:
        """Hidden states (T, E) of the step's tokens; writes their keys and values into the caches."""
        assert given_TE is None, "it runs in one stage"
        states, own = self._states, caches[self.config.caches :]
        if isinstance(states, OwnStates):
            return states.forward(self._body, step, own, step.ids_T)
        tokens = step.ids_T.shape[0]
        fill = _fill(step.ids_T, self._weights[0].dtype)
        ids_1T = F.pad(step.ids_T, (0, fill)).unsqueeze(0)
        positions_1T = F.pad(step.positions_T, (0, fill)).unsqueeze(0) + self._first
        self._positions.now_T = positions_1T[0]
        with ExitStack() as serving:
            serving.enter_context(self._bridge.serving(step, caches))
            if states is not None:
                serving.enter_context(states.serving(step, own))
            output = self._body(
                input_ids=ids_1T,
                position_ids=positions_1T,
                use_cache=False,
                **self._types(ids_1T),
                **given_cache(self._body, states),
            )
        hidden_TE: Tensor = output.last_hidden_state[0, :tokens]
        return hidden_TE

    def _types(self, ids_1T: Tensor) -> dict[str, Tensor]:
        """Of a body that would cut the types of tokens from a buffer that is as long as one sequence may be."""
        if hasattr(getattr(self._body, "embeddings", None), "token_type_ids"):
            return {"token_type_ids": torch.zeros_like(ids_1T)}
        return {}

    def logits(self, hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        """(S, E) hidden states of chosen tokens to (S, V) logits in fp32, in the memory of `out`."""
        rows = hidden_SE.shape[0]
        fill = _fill(hidden_SE, hidden_SE.dtype)
        self._given.hidden_1SE = F.pad(hidden_SE, (0, 0, 0, fill)).unsqueeze(0)
        ids_1S = torch.zeros((1, rows + fill), dtype=torch.int64, device=hidden_SE.device)
        output = self._head(input_ids=ids_1S, use_cache=False)
        return out_SV.copy_(output.logits[0, :rows])

    def weights(self) -> list[Tensor]:
        """Every tensor of the model, each once."""
        return self._weights


class _Given(nn.Module):
    """Stands where the model's body was, and gives the head the hidden states that it shall read."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.hidden_1SE = torch.empty(0)
        self.kind = kind  # of what the body returns

    def forward(self, *_: Any, **__: Any) -> Any:
        """What the body would have returned."""
        return self.kind(last_hidden_state=self.hidden_1SE)


class _Positions:
    """Tables of positions that count by themselves from how many keys a cache holds (BART and what came of it, RoFormer).

    They are given the positions of a step, of whichever sequences.
    """

    def __init__(self, body: nn.Module) -> None:
        self.now_T = torch.empty(0)
        counting = {"past_key_values_length", "position_ids"}
        for module in body.modules():
            if isinstance(module, nn.Embedding) and counting <= {
                *inspect.signature(module.forward).parameters
            }:
                self._give(module)

    def _give(self, table: nn.Module) -> None:
        whole = table.forward

        def forward(x: Any, *_: Any, **__: Any) -> Tensor:
            found: Tensor = whole(x, position_ids=self.now_T)
            return found

        table.forward = forward


class _Ropes:
    """Rotary tables of the model whose frequencies depend on the longest sequence (dynamic, longrope).

    transformers chooses them anew in each forward pass, by the longest of the batch. Keys are cached and shared, so
    that all must be rotated alike, as in `penstock.layers.rope`.
    """

    def __init__(self, body: nn.Module) -> None:
        self._found = [
            (module, module.rope_type)
            for module in body.modules()
            if hasattr(module, "rope_type") and any(map(_changes, _types(module.rope_type)))
        ]

    def fix(self, longest: int) -> None:
        """Computes the frequencies for sequences of up to `longest` tokens, and keeps them."""
        for module, kind in self._found:
            changing: Any = module
            changing.rope_type = kind
            for layer in kind if isinstance(kind, dict) else (None,):
                prefix = "" if layer is None else f"{layer}_"
                original = getattr(changing, f"{prefix}original_inv_freq")
                frequencies = getattr(changing, f"{prefix}inv_freq")
                frequencies.data = original.to(frequencies.device).clone()
                setattr(changing, f"{prefix}max_seq_len_cached", changing.original_max_seq_len)
                position = torch.tensor([[longest - 1]], device=frequencies.device)
                options = {} if layer is None else {"layer_type": layer}
                changing(torch.zeros(1, device=frequencies.device), position, **options)
            changing.rope_type = {layer: "default" for layer in kind} if isinstance(kind, dict) else "default"


def _types(kind: Any) -> list[str]:
    return [str(one) for one in (kind.values() if isinstance(kind, dict) else [kind])]


def _changes(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"


def _fill(rows: Tensor, dtype: torch.dtype) -> int:
    """Rows that are missing to a multiple of ROWS, where that matters (see `penstock_kernels.matrix`)."""
    exact = dtype == torch.float32 and rows.device.type == "cpu"
    return -rows.shape[0] % ROWS if exact else 0


def refuse_batch_invariance(name: str) -> None:
    """Raises UnusableModel."""
    raise UnusableModel(f"--deterministic: {name} runs through transformers, whose sums depend on the batch")


def body_name(model: Any) -> str:
    """The attribute of the part that makes hidden states."""
    from transformers import PreTrainedModel

    if hasattr(model, model.base_model_prefix):
        name = str(model.base_model_prefix)
        # A decoder alone, in what stands for encoder and decoder: the head calls it past that.
        inner = [child for child, _ in getattr(model, name).named_children()]
        is_wrapped = type(getattr(model, name)).__name__.endswith("DecoderWrapper")
        return f"{name}.decoder" if is_wrapped and inner == ["decoder"] else name
    names = [name for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
    if len(names) != 1:
        raise Unfit("is not made of a body and a head")
    return str(names[0])


def first_position(body: nn.Module) -> int:
    """The row of the table of positions that a sequence begins with. In RoBERTa and what came of it that is the one after the
    padding token's number; transformers finds it only where it is given no positions.
    """
    for module in body.modules():
        padding = getattr(module, "padding_idx", None)
        if hasattr(module, "create_position_ids_from_input_ids") and isinstance(padding, int):
            return padding + 1
    return 0


def given_cache(body: Any, states: States | OwnStates | None) -> dict[str, Any]:
    """What a body is given the cache as."""
    if not isinstance(states, States):
        return {}
    names = inspect.signature(body.forward).parameters
    name = next((name for name in ("past_key_values", "cache_params") if name in names), None)
    if name is None:
        raise Unfit("keeps a recurrent state in a way that is not known")
    return {name: states}
