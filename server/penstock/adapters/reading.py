"""Reads LoRA adapters as PEFT saves them (`save_pretrained`): adapter_config.json and adapter_model.safetensors.

Called at the start of a worker. Whether an adapter's pairs fit the layers of the model is for the engine to say. Must not import torch.
"""

import hashlib
import math
import os
import re
from pathlib import Path

import numpy as np

from penstock.adapters import config
from penstock.adapters.adapter import Adapter, Pair
from penstock.adapters.config import AdapterConfig
from penstock.errors import UnusableModel
from penstock.loading.memory import cpu_room
from penstock.loading.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    FLOATS,
    Stored,
    WeightFiles,
    gigabytes,
    listed,
    open_regular,
    read_json,
    why_no_adapter_weights,
)
from penstock.loading.tensor_reader import TensorReader
from penstock_kernels import tensors

LONGEST_NAME = 256
LONGEST_MODULE = 512
MOST_MODULES = 65_536

PREFIX = "base_model.model."
# In older files the adapter's name in PEFT is in the key, too.
KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
# What other keys hold, where a name says it.
OTHERS = (
    (re.compile(r"lora_embedding_[AB]"), "embeddings are not changed"),
    (re.compile(r"lora_magnitude_vector"), "DoRA is not served"),
    (re.compile(r"lora_B(\.default)?\.bias$"), "biases are not changed"),
    (
        re.compile(r"\.base_layer\."),
        "weights of the base model are not replaced (save_embedding_layers=False leaves them out)",
    ),
)


def sources(given: list[str]) -> list[tuple[str, Path]]:
    """Names and folders of adapters, from NAME=FOLDER. Raises UnusableModel."""
    found: dict[str, Path] = {}
    for one in given:
        name, sign, folder = one.partition("=")
        if not sign or not folder:
            raise UnusableModel(f"--lora-adapters {one[:80]}: it has to be NAME=FOLDER")
        if not 1 <= len(name) <= LONGEST_NAME or "," in name or "@" in name:
            raise UnusableModel(
                f"--lora-adapters {name[:80]}: names have 1 to {LONGEST_NAME} characters, without =, comma and @"
            )
        if name in found:
            raise UnusableModel(f"--lora-adapters {name}: two adapters of this name")
        found[name] = Path(folder)
    return list(found.items())


def read(name: str, folder: Path) -> Adapter:
    """The adapter in a folder. Raises UnusableModel, in one line that begins with the flag and the name."""
    try:
        return _read(name, folder)
    except UnusableModel as error:
        raise UnusableModel(f"--lora-adapters {name}: {error}") from error
    except OSError as error:
        raise UnusableModel(f"--lora-adapters {name}: {folder}: cannot be read: {error.strerror}") from error


def _read(name: str, folder: Path) -> Adapter:
    fields = read_json(folder, ADAPTER)
    if fields is None:
        raise UnusableModel(f"{folder}: no {ADAPTER}" if folder.is_dir() else f"there is no folder {folder}")
    said = config.parse(fields)
    if not (folder / ADAPTER_WEIGHTS).exists():
        raise UnusableModel(f"{folder}: {why_no_adapter_weights({path.name for path in folder.iterdir()})}")
    reader = TensorReader(folder, WeightFiles([ADAPTER_WEIGHTS], None, {}, False))
    try:
        modules = _modules(reader.stored)
        for module, (a, b) in modules.items():
            _check_shapes(module, reader.stored[a], reader.stored[b], said)
        needed = 4 * sum(math.prod(one.shape) for one in reader.stored.values())
        free = cpu_room().free
        if needed > free:
            raise UnusableModel(
                f"{ADAPTER_WEIGHTS}: takes {gigabytes(needed)} of memory, and {gigabytes(free)} are free"
            )
        pairs = {
            module: _pair(reader, a, b, said.scale_of(module), module) for module, (a, b) in modules.items()
        }
        for names, what in (
            (reader.not_numbers, "NaN or infinite numbers"),
            (reader.too_large, "numbers too large for fp32"),
        ):
            if names:
                only = [name.removesuffix(f" ({ADAPTER_WEIGHTS})") for name in names]
                raise UnusableModel(f"{ADAPTER_WEIGHTS}: {what} in {listed(only, 3)}")
    finally:
        reader.close()
    return Adapter(name, digest_of(folder), pairs, said.base)


def _modules(stored: dict[str, Stored]) -> dict[str, tuple[str, str]]:
    """Modules, and the names of their A and B."""
    if not stored:
        raise UnusableModel(f"{ADAPTER_WEIGHTS}: no tensors in it")
    sides: dict[str, dict[str, str]] = {}
    for tensor in stored:
        key = KEY.fullmatch(tensor)
        if key is None:
            raise UnusableModel(f"{ADAPTER_WEIGHTS}: {tensor[:200]}: {_what_it_is(tensor)}")
        module = key["module"]
        if len(module) > LONGEST_MODULE:
            raise UnusableModel(
                f"{ADAPTER_WEIGHTS}: {module[:80]}...: names of modules have at most {LONGEST_MODULE} characters"
            )
        both = sides.setdefault(module, {})
        if key["side"] in both:
            raise UnusableModel(f"{ADAPTER_WEIGHTS}: {module} has two of lora_{key['side']}")
        both[key["side"]] = tensor
    if len(sides) > MOST_MODULES:
        raise UnusableModel(f"{ADAPTER_WEIGHTS}: {len(sides)} modules, and at most {MOST_MODULES} are read")
    for module, both in sides.items():
        for side, other in (("A", "B"), ("B", "A")):
            if side not in both:
                raise UnusableModel(f"{ADAPTER_WEIGHTS}: {module} has lora_{other} without lora_{side}")
    return {module: (both["A"], both["B"]) for module, both in sides.items()}


def _what_it_is(tensor: str) -> str:
    """A tensor that is of no pair."""
    for pattern, why in OTHERS:
        if pattern.search(tensor):
            return why
    if not tensor.startswith(PREFIX):
        return f"names begin with {PREFIX}, as PEFT saves them"
    return "it is neither lora_A.weight nor lora_B.weight of a module"


def _check_shapes(module: str, a: Stored, b: Stored, said: AdapterConfig) -> None:
    for side, one in (("A", a), ("B", b)):
        if one.dtype not in FLOATS:
            raise UnusableModel(
                f"{ADAPTER_WEIGHTS}: lora_{side} of {module} is in {one.dtype}, and {', '.join(FLOATS)} are read"
            )
        if len(one.shape) != 2 or 0 in one.shape:
            raise UnusableModel(
                f"{ADAPTER_WEIGHTS}: lora_{side} of {module} is {list(one.shape)}, which is no matrix"
            )
    rank = said.rank_of(module)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise UnusableModel(
            f"{ADAPTER_WEIGHTS}: lora_A of {module} is {list(a.shape)} and lora_B {list(b.shape)}, and the rank is {rank} "
            f"by {ADAPTER} (r, rank_pattern)"
        )


def _pair(reader: TensorReader, a: str, b: str, scale: float, module: str) -> Pair:
    both = []
    for tensor in (a, b):
        made = tensors.empty(reader.stored[tensor].shape, tensors.float32)
        reader.copy(made, tensor, None, None)
        both.append(tensors.host(made))
    a_RI, b_OR = both
    with np.errstate(over="ignore"):
        b_OR *= np.float32(scale)
    if not np.isfinite(b_OR).all() and not reader.not_numbers and not reader.too_large:
        raise UnusableModel(
            f"{ADAPTER_WEIGHTS}: lora_B of {module} is too large for fp32 when it is scaled by lora_alpha ({scale:g})"
        )
    return Pair(a_RI, b_OR)


def digest_of(folder: Path) -> str:
    """Of the digests of both files, so that bytes of one are none of the other."""
    whole = hashlib.sha256()
    for name in (ADAPTER, ADAPTER_WEIGHTS):
        with os.fdopen(open_regular(folder / name), "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
