"""How attention in a model of Hugging Face transformers reaches our paged cache.

transformers lets a program name an attention function and the mask function that goes with it. Ours makes masks that
hold no numbers, only what they mean, and attends to the pages that the step's metadata names. A forward pass is
traced once before it is served: what each call of attention asks for is written down, and a model that asks for
anything that is not known here is refused. Used by `penstock.models.fallback` and its loader. Letters as in `decoder`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import penstock_kernels as ops
from penstock.models.config import Window
from penstock.models.layer_cache import LayerCache
from penstock.models.step import Step

# The name under which transformers finds our functions, and the attribute of modules that leads back to us.
NAME = "penstock"
BRIDGE = "penstock_bridge"
MEANING = "penstock_meaning"

# What models pass on to attention and does not change its result.
HARMLESS = frozenset(
    ("position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states")
    + ("output_router_logits", "return_dict", "past_key_values", "cu_seq_lens_q", "cu_seq_lens_k")
)


class Unfit(Exception):
    """Why a model cannot be served this way; continues a sentence whose subject is the model."""


class Undecided(Exception):
    """The trace needs the model's weights."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a mask of transformers would have held."""

    sees: Callable[[Any, Any, Any, Any], Any]  # (batch, head, query, key) to whether the query sees the key
    size: int | None  # of a window
    custom: bool  # the model laid something of its own over it

    def window(self, device: torch.device) -> Window | None:
        """The window, or None for plain causal attention. Raises Unfit for everything else."""
        if self.custom:
            raise Unfit("lays a pattern of its own over the attention mask")
        size = self.size
        if size is not None and size < 1:
            raise Unfit(f"has an attention window of {size} tokens")
        if device.type == "meta" and "chunked" in getattr(self.sees, "__qualname__", ""):
            raise Undecided
        queries = (
            torch.arange(12) if size is None else torch.tensor([0, 1, size - 1, size, size + 1, 2 * size + 1])
        )
        queries_Q1 = queries.unsqueeze(1)
        keys_1L = torch.arange(int(queries.max()) + 2).unsqueeze(0)
        zero = torch.zeros((), dtype=torch.int64)
        try:
            seen_QL = torch.as_tensor(self.sees(zero, zero, queries_Q1, keys_1L)).cpu()
        except (RuntimeError, NotImplementedError) as error:
            if device.type == "meta":
                raise Undecided from error
            raise Unfit(f"has an attention mask that cannot be read: {error}") from error
        seen_QL = seen_QL.expand(len(queries), keys_1L.shape[1])
        causal_QL = keys_1L <= queries_Q1
        if size is None:
            if torch.equal(seen_QL, causal_QL):
                return None
            raise Unfit("lets a token see those after it, so that it is no causal language model")
        if torch.equal(seen_QL, causal_QL & (keys_1L > queries_Q1 - size)):
            return Window(size)
        if torch.equal(seen_QL, causal_QL & (keys_1L // size == queries_Q1 // size)):
            return Window(size, chunked=True)
        raise Unfit("has an attention window of an unknown kind")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of attention in a forward pass."""

    module: nn.Module
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int  # index into the bridge's windows
    cache: int  # which cache; that of an earlier call where keys and values are the same tensors
    writes: bool
    score_modifiers: ops.ScoreModifiers


class Bridge:
    """Attention of one model: what was traced, and the step that runs."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.windows: list[Window | None] = []
        self.caches = 0
        self._traced: list[tuple[Tensor, Tensor]] | None = (
            None  # keys and values of each cache, while tracing
        )
        self._step: Step | None = None
        self._caches: list[LayerCache] = []
        self._next = 0

    @property
    def kv_heads(self) -> int:
        """K of the cache: the most that a layer has."""
        return max((call.kv_heads for call in self.calls), default=1)

    @property
    def size(self) -> int:
        """D of the cache: the largest key or value of a layer."""
        return max((max(call.key_size, call.value_size) for call in self.calls), default=1)

    @property
    def cache_windows(self) -> tuple[Window | None, ...]:
        """How far back each cache is read; None: to the beginning."""
        reads = [{self.windows[c.window] for c in self.calls if c.cache == at} for at in range(self.caches)]
        return tuple(min(read, key=str) if len(read) == 1 else None for read in reads)

    @property
    def simple(self) -> bool:
        """Whether attention is products and a softmax, and nothing else."""
        return all(call.score_modifiers is ops.PLAIN for call in self.calls)

    def attach(self, model: nn.Module) -> None:
        """Lets the model's attention find this bridge."""
        _register()
        for module in model.modules():
            setattr(module, BRIDGE, self)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """The forward pass within is written down; what it computes is of no use."""
        self.calls, self.windows, self.caches, self._traced = [], [], 0, []
        try:
            yield
        finally:
            self._traced = None
        self.calls = [replace(call, score_modifiers=self._filled(call)) for call in self.calls]

    @contextmanager
    def serving(self, step: Step, caches: list[LayerCache]) -> Iterator[None]:
        """The forward pass within computes this step."""
        self._step, self._caches, self._next = step, caches, 0
        try:
            yield
        finally:
            self._step, self._caches = None, []
        if self._next != len(self.calls):
            raise RuntimeError(f"{self._next} calls of attention, and {len(self.calls)} in the trace")

    def attend(
        self,
        module: nn.Module,
        query_1HTD: Tensor,
        key_1KTD: Tensor,
        value_1KTV: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        """(1, T, H, V): of the first tokens, those of the step; the others fill it up."""
        if self._traced is not None:
            self._write_down(module, query_1HTD, key_1KTD, value_1KTV, mask, scaling, options)
            heads, tokens = query_1HTD.shape[1:3]
            return query_1HTD.new_zeros(1, tokens, heads, value_1KTV.shape[3])
        step = self._step
        if step is None:
            raise RuntimeError("attention outside of a step")
        call, self._next = self.calls[self._next], self._next + 1
        if call.module is not module:
            raise RuntimeError("attention is called in another order than in the trace")
        cache = self._caches[call.cache]
        cache_NJD = cache.rows_NJD
        slot_mapping_T, metadata = step.view(call.window, cache)
        tokens, filled = step.ids_T.shape[0], query_1HTD.shape[2]
        kv_heads, size = cache_NJD.shape[1] // 2, cache_NJD.shape[2]
        if call.writes:
            # All rows write before any row reads: one row's prefix may be what another row computes now.
            key_TKD = key_1KTD[0].transpose(0, 1)[:tokens]
            value_TKV = value_1KTV[0].transpose(0, 1)[:tokens]
            keys_NKD = cache_NJD[:, : call.kv_heads, : call.key_size]
            values_NKV = cache_NJD[:, kv_heads : kv_heads + call.kv_heads, : call.value_size]
            ops.write_kv(key_TKD.to(cache_NJD.dtype), keys_NKD, slot_mapping_T)
            ops.write_kv(value_TKV.to(cache_NJD.dtype), values_NKV, slot_mapping_T)
        query_THD = query_1HTD[0].transpose(0, 1)[:tokens].to(cache_NJD.dtype)
        shared = call.heads // call.kv_heads
        heads = kv_heads * shared
        if heads != call.heads or size != call.key_size:
            # A layer smaller than the cache's rows: its heads and numbers come first, the rest is zeros.
            query_THD = F.pad(query_THD, (0, size - call.key_size, 0, heads - call.heads))
        out_THD = query_THD.new_empty(filled, heads, size)
        scale = call.key_size**-0.5 if scaling is None else float(scaling)
        ops.paged_attention(
            query_THD.contiguous(), cache_NJD, metadata, scale, out_THD[:tokens], call.score_modifiers
        )
        out_THD[tokens:] = 0
        return out_THD[:, : call.heads, : call.value_size].unsqueeze(0).to(query_1HTD.dtype)

    def _filled(self, call: Call) -> ops.ScoreModifiers:
        """The call's score modifiers, with a sink for each of the heads that fill it up to the cache's."""
        sinks_H = call.score_modifiers.sinks_H
        heads = self.kv_heads * (call.heads // call.kv_heads)
        if sinks_H is None or heads == call.heads:
            return call.score_modifiers
        return replace(call.score_modifiers, sinks_H=F.pad(sinks_H.detach(), (0, heads - call.heads)))

    def _write_down(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        options: dict[str, Any],
    ) -> None:
        assert self._traced is not None
        meaning = getattr(mask, MEANING, None)
        if not isinstance(meaning, Meaning):
            raise Unfit(
                "calls attention without a mask" if mask is None else "changes the attention mask on its way"
            )
        if options.get("is_causal") is False or options.get("dropout"):
            raise Unfit("calls attention that is not causal")
        if not isinstance(scaling, (int, float, type(None))):
            raise Unfit("scales attention by what it computes")
        for name, option in options.items():
            if option is None or option is False or name in HARMLESS:
                continue
            if name not in ("sliding_window", "softcap", "s_aux", "is_causal", "dropout"):
                raise Unfit(f"passes {name} to attention, which the paged cache does not know")
        heads, kv_heads = query.shape[1], key.shape[1]
        if query.shape[2] != key.shape[2] or value.shape[1] != kv_heads or heads % kv_heads:
            raise Unfit(f"attends with {heads} heads to {key.shape[2]} tokens with {kv_heads} heads")
        window = meaning.window(query.device)
        if window not in self.windows:
            self.windows.append(window)
        softcap, sinks = options.get("softcap"), options.get("s_aux")
        score_modifiers = ops.PLAIN
        if softcap is not None or sinks is not None:
            score_modifiers = ops.ScoreModifiers(softcap=float(softcap or 0.0), sinks_H=sinks)
        cache = next(
            (i for i, (k, v) in enumerate(self._traced) if k is key and v is value), len(self._traced)
        )
        writes = cache == len(self._traced)
        if writes:
            self._traced.append((key, value))
            self.caches += 1
        self.calls.append(
            Call(
                module=module,
                heads=heads,
                kv_heads=kv_heads,
                key_size=key.shape[3],
                value_size=value.shape[3],
                window=self.windows.index(window),
                cache=cache,
                writes=writes,
                score_modifiers=score_modifiers,
            )
        )


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention: (1, H, T, D) to (1, T, H, V), and no weights."""
    bridge = getattr(module, BRIDGE, None)
    if not isinstance(bridge, Bridge):
        raise RuntimeError(f"{type(module).__name__} was not there when the model was loaded")
    return bridge.attend(module, query, key, value, attention_mask, scaling, options), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """What transformers calls to make a mask: the shape of one, of a single number, with its meaning."""
    made = torch.zeros((), device=device).expand(batch_size, 1, q_length, kv_length)
    setattr(made, MEANING, Meaning(mask_function, local_size, use_vmap))
    return made


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
