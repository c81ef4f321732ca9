"""Models that no recipe serves, run by Hugging Face transformers with our paged attention in place of its own.

The classes are theirs, the cache, the batching and the checks are ours: a model is refused, in one sentence, unless
all of its attention goes through the interface that `bridge` fills. Whether the numbers are right is not taken
on trust either: `penstock.engine.self_check` compares them, at each start, with what transformers computes by itself.
Imports transformers only when something is to be examined or loaded.
"""

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.layers.rope import RopeConfig
from penstock.loading.model_files import catalogue, counted, listed, weight_files
from penstock.models import own_attention
from penstock.models.architectures import architecture_of, architectures, as_named, other_versions
from penstock.models.bridge import NAME, Bridge, Undecided, Unfit
from penstock.models.config import NO_END, Window
from penstock.models.fallback_states import OwnStates, States, own_states, without_limits
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Reference
from penstock.models.recurrent_config import StateShape
from penstock.models.step import Step
from penstock.parallel.group import TensorGroup
from penstock_kernels.matrix import ROWS

RECIPE = "transformers"  # what such a model says its recipe is

# Layers that keep nothing but keys and values.
ATTENTION_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))
# Classes whose states are kept: those that were compared with transformers. Of others with states there are recipes, or nobody has looked.
STATEFUL = frozenset(
    ("RwkvForCausalLM", "xLSTMForCausalLM", "Zamba2ForCausalLM", "ZambaForCausalLM", "ZayaForCausalLM")
)
# By model_type, fields that say what code computes a model and not what: published files name packages for it that are not there.
OWN_CODE = {
    "xlstm": {
        "chunkwise_kernel": "chunkwise--native_autograd",
        "sequence_kernel": "native_sequence__native",
        "step_kernel": "native",
    }
}
# The longest sequence of a model without attention whose config.json names none, as of recipes.
ENDLESS = 8192
# What transformers knows as causal language models and nobody has made served, and why, as a sentence goes on whose subject is the model.
NOT_SERVED = {
    "blt": "reads bytes in patches, whose lengths a second model within it chooses, and the paged cache has places for tokens alone",
    "cpmant": "lets every token of a prompt see those after it, so that nothing of a text stays as it was when a token is added",
    "glm5_next": "chooses pools of keys in some layers and keeps a recurrent state in the others, over several residual streams, which no recipe "
    "has together",
    "inkling2_text": "adds to the scores of attention what a query says of each distance, and to their sum a sink of each token's own, which no "
    "kernel of the paged cache knows",
    "mistral_large4": "reads in some layers the keys that others have chosen and cached, beside latent attention, which no recipe has",
    "paligemma": "lets every token of a prompt see those after it, so that nothing of a text stays as it was when a token is added",
    "prophetnet": "predicts several tokens at once, in streams that no kernel of the paged cache knows",
    "reformer": "attends to keys of the same hash, in chunks that depend on how long a text is",
    "unlimited_ocr": "attends to a window and to all of a prompt, which no kernel of the paged cache knows",
    "voxtral_realtime": "has a sound for every token of its text, and nothing to say without one",
    "xlm": "lets every token see those after it unless it is made for text alone (causal), and does not call attention through transformers' interface",
    "xlnet": "predicts a token from others in any order, and every token of a prompt sees those after it",
}
CAUSAL_NAMES = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead")
TRACED_TOKENS = 3
CHECKED_TOKENS = 24
NAMED = 10  # of the tensors that are missing or have no place


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


@dataclass(frozen=True)
class Examined:
    """What config.json tells about a model of the fallback, without its weights."""

    parameters: int
    config: FallbackConfig | None  # None: only the weights can tell


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
        name = _body_name(model)
        self._body = model.get_submodule(name)
        self._ropes = _Ropes(self._body)
        self._positions = _Positions(self._body)
        self._first = _first_position(self._body)
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
                **_given_cache(self._body, states),
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

    def try_head(self, hidden_SE: Tensor) -> None:
        """Raises Unfit unless the head runs without its body."""
        out_SV = torch.empty(len(hidden_SE), self.config.vocab_size, device=hidden_SE.device)
        try:
            with _runs(hidden_SE.device):
                self.logits(hidden_SE, out_SV)
        except Unfit as reason:
            raise Unfit("has a head that needs more of its body than hidden states") from reason

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


def fallback_verdict(config: dict[str, Any], folder: Path, trusted: bool = False) -> str | None:
    """Why the fallback cannot serve the model, in one sentence; None where nothing is known against it.

    Reads config.json and, with consent, code of the repository; needs no weights.
    """
    try:
        examine(config, folder, trusted)
    except UnusableModel as error:
        return str(error)
    return None


def examine(config: dict[str, Any], folder: Path, trusted: bool = False) -> Examined:
    """Builds the model without weights and traces it. Raises UnusableModel."""
    with _quiet(), _named(config):
        kind, theirs = _class_of(config, folder, trusted)
        theirs._attn_implementation = "eager"
        try:
            with torch.device("meta"):
                model = kind(theirs).eval()
        except Exception as error:
            raise Unfit(f"cannot be made from its config.json: {_one_line(error)}") from error
        parameters = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
        try:
            return Examined(parameters, _cut(model, torch.device("meta"), None).config)
        except Undecided:
            return Examined(parameters, None)


def refuse_division(config: dict[str, Any], shards: int, stages: int) -> None:
    """Raises UnusableModel unless one process holds the model."""
    for flag, count in (("--num-shard", shards), ("--pipeline-parallel", stages)):
        if count > 1:
            raise UnusableModel(
                f"{flag} {count}: {_shown_name(config)} runs through transformers, and such a model cannot be "
                f"divided over processes; use {flag} 1"
            )


def refuse_batch_invariance(name: str) -> None:
    """Raises UnusableModel."""
    raise UnusableModel(f"--deterministic: {name} runs through transformers, whose sums depend on the batch")


def load(
    config: dict[str, Any],
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorGroup,
    trusted: bool = False,
) -> Fallback:
    """Loads the model in `folder` and takes its own logits of a few tokens. Raises UnusableModel."""
    stages = 1 if group.pipeline is None else group.pipeline.stages
    refuse_division(config, group.size, stages)
    with _quiet(), _named(config):
        kind, theirs = _class_of(config, folder, trusted)
        model = _read(kind, theirs, folder, dtype, trusted).to(device).eval()
        without_limits(model)
        with torch.inference_mode():
            reference = _reference(model, device)
            return _cut(model, device, reference)


def _class_of(config: dict[str, Any], folder: Path, trusted: bool) -> tuple[Any, Any]:
    """The class that transformers runs the model with, and its configuration. Raises Unfit."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    transformers: Any = import_module("transformers")
    kind: Any
    model_type = str(config.get("model_type"))
    if not architectures(config):
        raise UnusableModel("config.json: unsupported architecture none; it names none in architectures")
    quantization.refuse(config, folder, has_recipe=False)
    known = model_type in transformers.CONFIG_MAPPING
    read: Any = transformers.CONFIG_MAPPING[model_type] if known else None
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(read, None) if known else None
    has_code = "AutoModelForCausalLM" in (config.get("auto_map") or {})
    if known and (_names(config, kind, model_type) or not has_code):
        if model_type in NOT_SERVED:
            raise Unfit(NOT_SERVED[model_type])
        if getattr(kind, "_is_stateful", False) and kind.__name__ not in STATEFUL:
            raise Unfit("keeps a recurrent state, and the cache holds keys and values only")
        try:
            theirs = read.from_dict({**config, **OWN_CODE.get(model_type, {})})
        except Exception as error:
            raise Unfit(f"has a config.json that transformers does not accept: {_one_line(error)}") from error
        # Classes of decoders alone are made of the same configurations.
        alone = getattr(kind, "__name__", "").endswith("ForCausalLM") and kind.__name__ in architectures(
            config
        )
        if theirs.is_encoder_decoder and not alone:
            raise Unfit("has an encoder")
        if kind is None:
            raise Unfit(f"is no causal language model in transformers {transformers.__version__}")
    elif has_code:
        if not trusted:
            raise Unfit("comes with code of its own, which is run only with --trust-remote-code")
        try:
            theirs = transformers.AutoConfig.from_pretrained(
                folder, trust_remote_code=True, local_files_only=True
            )
            name = config["auto_map"]["AutoModelForCausalLM"]
            kind = get_class_from_dynamic_module(name, str(folder), local_files_only=True)
        except Exception as error:
            raise Unfit(f"comes with code that cannot be used: {_one_line(error)}") from error
    else:
        raise Unfit(
            f"has a model_type ({model_type}) that transformers {transformers.__version__} does not know"
        )
    _check_kind(config, kind, theirs)
    return kind, theirs


def _check_kind(config: dict[str, Any], kind: Any, theirs: Any) -> None:
    """Refuses what is known not to work, with its reason. What is not known fails the trace or the self-check."""
    if not any(name == kind.__name__ or name.endswith(CAUSAL_NAMES) for name in architectures(config)):
        raise Unfit("is no causal language model")
    if not _names(config, kind, str(theirs.model_type)):
        raise Unfit(
            f"is unknown to transformers {import_module('transformers').__version__}, which runs the model_type "
            f"{theirs.model_type} as {kind.__name__}"
        )
    for part in ("vision_config", "audio_config", "image_config", "audio_encoder"):
        if getattr(theirs, part, None) is not None:
            raise Unfit(f"takes more than text ({part} in config.json)")
    if getattr(theirs, "num_mel_bins", None) is not None:
        raise Unfit("takes more than text (num_mel_bins in config.json)")
    text = theirs.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS)
    if others and kind.__name__ not in STATEFUL:
        raise Unfit(f"has layers of the type {others[0]}, and the cache holds keys and values only")


def _names(config: dict[str, Any], kind: Any, model_type: str) -> bool:
    """Whether config.json names the class, or its model_type as a class (InternLM3ForCausalLM is run as Llama)."""
    for name in architectures(config):
        stem = next((name.removesuffix(end) for end in CAUSAL_NAMES if name.endswith(end)), None)
        if name == getattr(kind, "__name__", None) or (stem and _plain(stem) == _plain(model_type)):
            return True
    return False


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _read(kind: Any, theirs: Any, folder: Path, dtype: torch.dtype, trusted: bool) -> Any:
    """The model with its weights, in transformers' own attention."""
    pickled = trusted and not list(folder.glob("*.safetensors"))
    if not pickled:
        held = catalogue(folder, weight_files(folder))
        twice = [f"{tensor} ({file})" for tensor, file in held.left_out.items() if tensor in held.stored]
        if twice:
            raise UnusableModel(
                f"{held.files.source}: {counted(twice, 'tensor')} in a second file, too, and transformers does not ask the index "
                f"which to take: {listed(twice)}"
            )
    try:
        model, told = kind.from_pretrained(
            folder,
            config=theirs,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=not pickled,
            weights_only=True,
            trust_remote_code=trusted,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, ImportError) as error:
        raise Unfit(f"cannot be loaded: {_one_line(error)}") from error
    for key, meaning in (
        ("missing_keys", "lacks tensor"),
        ("unexpected_keys", "has tensors with no place in the model that config.json describes:"),
        ("mismatched_keys", "has tensors of other shapes than config.json asks for:"),
        ("error_msgs", "cannot be read:"),
    ):
        found = sorted(map(_shown, told.get(key) or ()))
        if found:
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            raise UnusableModel(f"{folder}: the checkpoint {meaning} {', '.join(found[:NAMED])}{more}")
    return model


def _shown(entry: Any) -> str:
    if isinstance(entry, (tuple, list)):
        name, *shapes = entry
        return f"{name} ({', not '.join(str(list(shape)) for shape in shapes)})"
    return str(entry)


def _reference(model: Any, device: torch.device) -> Reference:
    """The model's own logits of a few tokens, more than a block of the cache holds. It counts positions itself."""
    text = model.config.get_text_config()
    # The first ids often mean something to the model itself, such as that there is no token.
    ids = [3 + (31 * i * i + 17 * i + 5) % max(int(text.vocab_size) - 3, 1) for i in range(CHECKED_TOKENS)]
    ids_T = torch.tensor(ids, device=device)
    with _runs(device):
        output = model(input_ids=ids_T.unsqueeze(0), use_cache=False)
    logits_TV = output.logits[0].float()
    if not bool(logits_TV.isfinite().all()):
        raise Unfit(
            "computes logits that are not numbers; its weights may be damaged, or --dtype too short for it"
        )
    return Reference(type(model).__name__, ids_T, logits_TV)


def _cut(model: Any, device: torch.device, reference: Reference | None) -> Fallback:
    """Puts our attention in the place of the model's, and tries body and head. Raises Unfit and Undecided."""
    if model.config.is_encoder_decoder:
        raise Unfit("has an encoder")
    body = model.get_submodule(_body_name(model))
    own_attention.give(body)
    bridge = Bridge()
    bridge.attach(model)
    model.config._attn_implementation = NAME  # which a model looks up at each call
    states: States | OwnStates | None = own_states(body)
    if states is None and type(model).__name__ in STATEFUL:
        states = States()
    traced = _trace(body, bridge, states, device)
    served = Fallback(model, bridge, states, _shape(model, bridge, states), reference, traced)
    served.try_head(traced.last_hidden_state[0])
    return served


def _body_name(model: Any) -> str:
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


def _first_position(body: nn.Module) -> int:
    """The row of the table of positions that a sequence begins with. In RoBERTa and what came of it that is the one after the
    padding token's number; transformers finds it only where it is given no positions.
    """
    for module in body.modules():
        padding = getattr(module, "padding_idx", None)
        if hasattr(module, "create_position_ids_from_input_ids") and isinstance(padding, int):
            return padding + 1
    return 0


def _trace(body: Any, bridge: Bridge, states: States | OwnStates | None, device: torch.device) -> Any:
    """Has the bridge, and who hands out states, write down a forward pass. Returns what the body does."""
    ids_1T = torch.arange(1, 1 + TRACED_TOKENS, device=device).unsqueeze(0)
    options = _given_cache(body, states)
    # A mask of ones: that no two sequences are in it would be read from positions, which a model without
    # weights does not have. Beside a cache they are not read.
    if device.type == "meta" and not options:
        options["attention_mask"] = torch.ones_like(ids_1T)
    with ExitStack() as tracing:
        tracing.enter_context(_runs(device))
        tracing.enter_context(bridge.tracing())
        if isinstance(states, States):
            tracing.enter_context(states.tracing(body))
        output = body(input_ids=ids_1T, position_ids=ids_1T - 1, use_cache=False, **options)
    if not isinstance(getattr(output, "last_hidden_state", None), Tensor):
        raise Unfit("has a body that returns no hidden states")
    if not bridge.calls and not (states and states.shapes):
        raise Unfit("does not call attention through transformers' attention interface")
    return output


def _given_cache(body: Any, states: States | OwnStates | None) -> dict[str, Any]:
    """What a body is given the cache as."""
    if not isinstance(states, States):
        return {}
    names = inspect.signature(body.forward).parameters
    name = next((name for name in ("past_key_values", "cache_params") if name in names), None)
    if name is None:
        raise Unfit("keeps a recurrent state in a way that is not known")
    return {name: states}


def _shape(model: Any, bridge: Bridge, states: States | OwnStates | None) -> FallbackConfig:
    text = model.config.get_text_config()
    width = int(text.hidden_size)
    body = model.get_submodule(_body_name(model))
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        if bridge.calls:
            raise Unfit(
                "has a config.json that does not say how long a sequence may be (max_position_embeddings)"
            )
        longest = ENDLESS
    longest = min(longest, own_attention.longest(text) or longest) - _first_position(body)
    forward = getattr(text, "intermediate_size", None)
    head = getattr(model.get_output_embeddings(), "weight", None)
    return FallbackConfig(
        vocab_size=int(text.vocab_size) if head is None else head.shape[0],
        width=width,
        feed_forward=forward if isinstance(forward, int) else 4 * width,
        caches=bridge.caches,
        heads=max((call.heads for call in bridge.calls), default=1),
        kv_heads=bridge.kv_heads,
        head_dim=bridge.size,
        max_positions=longest,
        windows=tuple(bridge.windows),
        layer_windows=bridge.cache_windows,
        simple_attention=bridge.simple,
        states=() if states is None else states.shapes,
    )


@contextmanager
def _named(config: dict[str, Any]) -> Iterator[None]:
    """Makes a sentence of Unfit."""
    try:
        yield
    except Unfit as reason:
        shown, others = _shown_name(config), ""
        if architecture_of(config) is None:
            others = other_versions(config)
            shown = f"unsupported architecture {shown}: no recipe serves it, and it"
        raise UnusableModel(
            f"config.json: {shown} cannot be served through transformers: it {reason}{others}"
        ) from reason


def _shown_name(config: dict[str, Any]) -> str:
    return as_named(config) or f"model_type {repr(str(config.get('model_type')))[1:-1][:100]}"


@contextmanager
def _runs(device: torch.device) -> Iterator[None]:
    """Makes Unfit of what the model's code raises: on the way to a verdict, any exception is one.

    Without weights something may need numbers that are not there, such as which experts are called.
    """
    try:
        yield
    except (Unfit, Undecided):
        raise
    except Exception as error:
        if device.type == "meta" and isinstance(error, RuntimeError):  # NotImplementedError is one
            raise Undecided from error
        raise Unfit(f"cannot be run: {type(error).__name__}: {_one_line(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings and progress of transformers are not lines of our log."""
    from transformers.utils import logging as theirs

    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
