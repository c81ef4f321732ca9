"""Which scheme a checkpoint is quantized with, from its configuration and the names of its tensors.

Asked by the download, the doctor and the worker before weights are read. Must not import torch. What is served is read
by `codes` and `words`, in the dtype that is asked for; the others are refused by name.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import UnusableModel
from penstock.loading.model_files import CONFIG, read_json, whole_and_text

# Configuration files beside config.json, each with the scheme that is meant where the file names none.
BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
# Codes of 8 and 4 bits with scales (`codes`), and whole numbers in words (`words`).
SERVED = ("fp8", "fbgemm-fp8", "modelopt fp8", "mxfp4", "compressed-tensors", "gptq", "awq", "gptq or awq")
WORDS = ("compressed-tensors", "gptq", "awq")
COMPRESSED = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")

# How weights of 4 bits are served where the CPU engine runs the model: as they are. And the value of --quantize that
# has them, like all others, served as the numbers of bf16 that they stand for.
PUBLISHED, NONE = "published", "none"
GROUPS, FP4 = (32, 64, 128), "fp4_32"

# What the names of tensors end with that only a quantized checkpoint has. The first that fits.
TRACES = (
    (re.compile("q_scale|q_scale_max|q_groups"), "exl2"),
    (re.compile("trellis"), "exl3"),
    (re.compile("SCB|bitsandbytes__.*"), "bitsandbytes"),
    (re.compile("g_idx"), "gptq"),
    (re.compile("qweight"), "gptq or awq"),
    (re.compile("weight_packed"), "compressed-tensors"),
    (re.compile(".*_proj_blocks"), "mxfp4"),
    (re.compile("weight_scale_2"), "nvfp4"),
    (re.compile("weight_scale_inv|weight_scale|input_scale|activation_scale"), "fp8"),
    (re.compile("weight_scales"), "eetq"),
)


def scheme_of(config: dict[str, Any], folder: Path, tensors: Collection[str] = ()) -> tuple[str, str] | None:
    """(scheme, what says so), or None for weights that are plain numbers. Raises UnusableModel."""
    for key, given in _said(config):
        if given:
            scheme = _method(given, "compressed-tensors" if key == "compression_config" else None)
            if scheme is not None:
                return scheme, f"{CONFIG}: {key}"
    for name, usual in BESIDE.items():
        given = read_json(folder, name)
        if given is not None:
            return _method(given, usual) or usual, name
    endings = {tensor.rpartition(".")[2]: tensor for tensor in tensors}
    for pattern, scheme in TRACES:
        for ending, tensor in endings.items():
            if pattern.fullmatch(ending):
                return scheme, f"the tensor {tensor}"
    return None


def refuse(
    config: dict[str, Any], folder: Path, tensors: Collection[str] = (), *, has_recipe: bool = True
) -> None:
    """Raises UnusableModel, naming the scheme, when the weights are quantized as none is served. `has_recipe`: transformers do not read the model."""
    found = scheme_of(config, folder, tensors)
    if found is None or (has_recipe and is_served(found[0], config)):
        return
    scheme, says = found
    way_out = "serve a checkpoint in float32, bfloat16 or float16"
    if scheme in SERVED:
        way_out = f"of models with a recipe it is; {way_out}"
    raise UnusableModel(f"{says}: the weights are quantized ({scheme}), which is not supported; {way_out}")


def is_served(scheme: str, config: dict[str, Any]) -> bool:
    """Whether the weights of a model with a recipe are read."""
    if scheme == "mxfp4":
        return config.get("model_type") == "gpt_oss"
    if scheme != "compressed-tensors":
        return scheme in SERVED
    given = next((given for _, given in _said(config) if isinstance(given, dict)), {})
    return given.get("format") in COMPRESSED


def published(config: dict[str, Any]) -> str | None:
    """The engine's format that has a checkpoint's numbers of 4 bits as they are: fp4, or whole numbers with scales for groups of inputs that are
    beside each other; None: it is of neither.
    """
    for _, given in _said(config):
        if not isinstance(given, dict):
            continue
        method = _method(given, "compressed-tensors")
        if method == "mxfp4":
            return FP4
        size = _group_size(given) if method in WORDS else None
        if size is not None:
            return next((f"groups_{one}" for one in reversed(GROUPS) if size % one == 0), None)
    return None


def _said(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What config.json says of how weights are quantized, wherever it says it, with its key."""
    for part in whole_and_text(config):
        for key in ("quantization_config", "compression_config"):
            yield key, part.get(key)


def _group_size(given: dict[str, Any]) -> int | None:
    """How many inputs beside each other have a scale, of whole numbers of 4 bits."""
    groups = given.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    held = first.get("weights") if isinstance(first, dict) else given
    if not isinstance(held, dict) or held.get("num_bits", given.get("bits", held.get("w_bit"))) != 4:
        return None
    size = held.get("group_size", held.get("q_group_size"))
    if size in (-1, None):  # one for all inputs of an output
        return GROUPS[-1]
    # Ordered by activations, a group's inputs are anywhere.
    in_order = not given.get("desc_act") and held.get("actorder") in (None, False, "weight", "static")
    return size if type(size) is int and size > 0 and in_order else None


def as_served(config: dict[str, Any], quantize: str) -> str:
    """How weights are quantized while the CPU engine loads them, of a --quantize: "" is not at all."""
    if not quantize:
        return PUBLISHED if published(config) is not None else ""
    return "" if quantize == NONE else quantize


def _method(given: Any, usual: str | None) -> str | None:
    """The scheme that a quantization config names. None: it switches everything off."""
    if not isinstance(given, dict):
        return usual or "unknown"
    if given.get("is_marlin_format") or given.get("checkpoint_format") == "marlin":
        return "marlin"
    inner = given.get("quantization")
    if isinstance(inner, dict) and inner.get("quant_algo"):  # of NVIDIA's ModelOpt
        return f"modelopt {str(inner['quant_algo']).lower()}"
    method = given.get("quant_method") or given.get("quant_type") or given.get("quant_algo")
    if method == "modelopt" and given.get("quant_algo"):
        return f"modelopt {str(given['quant_algo']).lower()}"
    if method:
        return str(method).lower().replace("_", "-")[:40]
    loaded = [given[key] for key in ("load_in_8bit", "load_in_4bit") if key in given]
    if loaded:
        return "bitsandbytes" if any(loaded) else None
    return usual or "unknown"
