"""Whether a model that no recipe serves can be a `Fallback`, and how it is loaded. Asked by `building` and by the doctor.

A model is refused, in one sentence, unless all of its attention goes through the interface that `bridge` fills, with its weights or before they
are there. Whether the numbers are right is not taken on trust either: `penstock.engine.self_check` compares them, at each start, with what
transformers computes by itself. Imports transformers only when something is to be examined or loaded.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock import quantization
from penstock.adapters import merged
from penstock.errors import UnusableModel
from penstock.loading.model_files import MERGE, catalogue, counted, listed, weight_files
from penstock.models import own_attention
from penstock.models.architectures import architecture_of, architectures, as_named, other_versions
from penstock.models.bridge import NAME, Bridge, Undecided, Unfit
from penstock.models.fallback import Fallback, body_name, first_position, given_cache
from penstock.models.fallback_config import FallbackConfig
from penstock.models.fallback_states import OwnStates, States, own_states, without_limits
from penstock.models.model import Reference
from penstock.parallel.group import TensorGroup

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
class Examined:
    """What config.json tells about a model of the fallback, without its weights."""

    parameters: int
    config: FallbackConfig | None  # None: only the weights can tell


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
    if (folder / merged.FOLDER).is_dir():
        raise UnusableModel(
            f"config.json: {model_type} is served through transformers, whose models have no adapters: {MERGE}"
        )
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
    body = model.get_submodule(body_name(model))
    own_attention.give(body)
    bridge = Bridge()
    bridge.attach(model)
    model.config._attn_implementation = NAME  # which a model looks up at each call
    states: States | OwnStates | None = own_states(body)
    if states is None and type(model).__name__ in STATEFUL:
        states = States()
    traced = _trace(body, bridge, states, device)
    served = Fallback(model, bridge, states, _shape(model, bridge, states), reference, traced)
    _try_head(served, traced.last_hidden_state[0])
    return served


def _trace(body: Any, bridge: Bridge, states: States | OwnStates | None, device: torch.device) -> Any:
    """Has the bridge, and who hands out states, write down a forward pass. Returns what the body does."""
    ids_1T = torch.arange(1, 1 + TRACED_TOKENS, device=device).unsqueeze(0)
    options = given_cache(body, states)
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


def _try_head(served: Fallback, hidden_SE: Tensor) -> None:
    """Raises Unfit unless the head runs without its body."""
    out_SV = torch.empty(len(hidden_SE), served.config.vocab_size, device=hidden_SE.device)
    try:
        with _runs(hidden_SE.device):
            served.logits(hidden_SE, out_SV)
    except Unfit as reason:
        raise Unfit("has a head that needs more of its body than hidden states") from reason


def _shape(model: Any, bridge: Bridge, states: States | OwnStates | None) -> FallbackConfig:
    text = model.config.get_text_config()
    width = int(text.hidden_size)
    body = model.get_submodule(body_name(model))
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        if bridge.calls:
            raise Unfit(
                "has a config.json that does not say how long a sequence may be (max_position_embeddings)"
            )
        longest = ENDLESS
    longest = min(longest, own_attention.longest(text) or longest) - first_position(body)
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
