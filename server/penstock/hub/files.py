"""Which files of a repository Penstock needs. Says it by their names, before anything is fetched, and refuses what lacks one.

Called while a download begins, and of snapshots that are there. Must not import torch.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from pathlib import Path

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.hub.gguf_files import are_alone
from penstock.hub.request import AdapterAlone, GgufAlone, Request, Unavailable
from penstock.hub.tokenizer import SOURCES, why_none
from penstock.loading.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    GENERATION,
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    SINGLE,
    is_adapter_alone,
    read_index,
    why_no_adapter_weights,
    why_no_config,
)
from penstock.loading.model_files import choose as choose_weights

REQUIRED = (CONFIG,)
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
# Patterns of fnmatch. Everything else in a repository (pickled weights, other frameworks, pictures) stays there.
OPTIONAL = (
    GENERATION,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    CHAT_TEMPLATE,
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    *quantization.BESIDE,
)


def check_small(names: Collection[str], request: Request) -> None:
    """Refuses a repository that lacks what every model needs beside its weights. Raises AdapterAlone and GgufAlone for one that has other files."""
    if is_adapter_alone(names):
        raise AdapterAlone(f"{request.repo} is an adapter ({ADAPTER}), and no model")
    if are_alone(names):
        raise GgufAlone(f"{request.repo} has GGUF files, and no others")
    for name in REQUIRED:
        if name not in names:
            raise Unavailable(f"the model {request.repo} has no {name}{why_no_config(names)}")
    if TOKENIZER not in names and not older_tokenizer(names):
        raise Unavailable(
            f"the model {request.repo} has no {TOKENIZER}, nor the files that one can be made of{why_none(names)}"
        )


def of_tokenizer(names: Collection[str]) -> list[str]:
    """The files that say how text becomes tokens, where all are there that are needed; else none."""
    needed = [TOKENIZER] if TOKENIZER in names else older_tokenizer(names)
    beside = (
        name for name in names if is_small(name) and name not in (*REQUIRED, INDEX, GENERATION, *needed)
    )
    return [*needed, *beside] if needed else []


def check_adapter(names: Collection[str], request: Request) -> None:
    """Refuses a repository that is no adapter, or whose weights are not read."""
    if ADAPTER not in names:
        raise Unavailable(f"{request.repo} is no adapter: it has no {ADAPTER}")
    if ADAPTER_WEIGHTS not in names:
        raise Unavailable(f"{request.called} has {why_no_adapter_weights(names)}")


def choose(names: Collection[str], request: Request) -> tuple[str, bool]:
    """What leads to the weights, and whether they are pickled. Refuses a repository that has none that are served."""
    try:
        return choose_weights(names, request.trusted)
    except UnusableModel as error:
        raise Unavailable(f"the model {request.repo} has {error}") from error


def is_small(name: str) -> bool:
    return name in (*REQUIRED, TOKENIZER, INDEX) or any(
        fnmatch.fnmatchcase(name, pattern) for pattern in OPTIONAL
    )


def is_code(name: str) -> bool:
    return name.endswith(".py") and "/" not in name


def older_tokenizer(names: Collection[str]) -> list[str]:
    """The files that `penstock.hub.tokenizer` can make a tokenizer.json of; none when something is missing."""
    return next((list(files) for files in SOURCES if all(name in names for name in files)), [])


def weight_files(folder: Path, leads: str) -> list[str]:
    """The files that hold the weights, of which `leads` is the only one or the index."""
    if leads in (SINGLE, PICKLE):
        return [leads]
    try:
        shards = read_index(folder / leads, ".bin" if leads == PICKLE_INDEX else ".safetensors")
    except UnusableModel as error:
        raise Unavailable(f"the model does not say which files hold its weights: {error}") from error
    return sorted(set(shards.values()))
