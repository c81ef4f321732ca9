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
from penstock.quantization.codes import groups_of, weights_of_quark
from penstock.quantization.words import layout_of_auto_round

# Configuration files beside config.json, each with the scheme that is meant where the file names none.
BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quantization_config.json": "auto-round",
}
# Codes of 8 and 4 bits with scales (`codes`), and whole numbers in words (`words`).
SERVED = (
    "fp8",
    "mxfp8",
    "fbgemm-fp8",
    "mxfp4",
    "nvfp4",
    "compressed-tensors",
    "gptq",
    "awq",
    "gptq or awq",
    "gguf",
)
# Of NVIDIA's ModelOpt, for the whole checkpoint or (`mixed_precision`) for some layers.
MODELOPT = {
    f"modelopt {one}"
    for one in (
        *("fp8", "fp8_pb_wo", "fp8_per_channel_per_token", "mxfp8"),
        *("nvfp4", "nvfp4_awq", "w4a16_nvfp4", "w4a16_awq", "w4a8_awq"),
    )
}
MIXED = "modelopt mixed_precision"
WORDS = ("compressed-tensors", "gptq", "awq", "auto-round")
# Of compressed-tensors, for the whole checkpoint or (`mixed-precision`) for each group of matrices; `dense`: only the cache is quantized.
COMPRESSED = (
    "dense",
    "float-quantized",
    "int-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
)
# What says that activations are rotated before they are multiplied, which no tensor shows.
ROTATIONS = ("spinquant_config", "rotation_config", "hadamard_config", "transform_config")
# Of compressed-tensors' `transform_config`: what weights have been multiplied with before they were saved (TransformLocation.is_online).
IN_WEIGHTS = ("weight_input", "weight_output")
# llama.cpp's types, which no safetensors file holds: what a checkpoint of plain numbers was trained to be rounded to (Gemma's QAT).
TRAINED_FOR = re.compile(r"q\d_[01k]\w*", re.IGNORECASE)
READ = "fp8, MXFP8, MXFP4, NVFP4, int8, GPTQ and AWQ, also of compressed-tensors, ModelOpt and AutoRound, are read"

# How weights of 4 bits are served where the CPU engine runs the model: as they are. And the value of --quantize that
# has them, like all others, served as the numbers of bf16 that they stand for.
PUBLISHED, NONE = "published", "none"
GROUPS, FP4 = (32, 64, 128), "fp4_32"
# GGUF's types that are such groups.
GGUF_GROUPS = ("Q4_0", "Q4_1", "Q4_K", "MXFP4")

# What the names of tensors end with that only a quantized checkpoint has. The first that fits.
TRACES = (
    (re.compile("q_scale|q_scale_max|q_groups"), "exl2"),
    (re.compile("trellis"), "exl3"),
    (re.compile("Qidxs"), "quip#"),
    (re.compile("_data"), "quanto"),
    (re.compile("SCB|bitsandbytes__.*"), "bitsandbytes"),
    (re.compile("g_idx"), "gptq"),
    (re.compile("qweight"), "gptq or awq"),
    (re.compile("weight_scale_2|weight_global_scale"), "nvfp4"),
    (re.compile("weight_packed"), "compressed-tensors"),
    (re.compile(".*_proj_blocks"), "mxfp4"),
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
    for name, given in _beside(folder):
        scheme = _method(given, None)
        if scheme is not None:
            return scheme, name
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
    if found is None or (has_recipe and is_served(found[0], with_what_is_beside(config, folder))):
        return
    scheme, says = found
    way_out = "serve a checkpoint in float32, bfloat16 or float16"
    if is_served(scheme, with_what_is_beside(config, folder)):
        way_out = f"of models with a recipe it is; {way_out}"
    elif has_recipe:
        way_out = f"{READ}; or {way_out}"
    scheme = ", ".join((scheme, *_details(scheme, config)))
    raise UnusableModel(f"{says}: the weights are quantized ({scheme}), which is not supported; {way_out}")


def is_served(scheme: str, config: dict[str, Any]) -> bool:
    """Whether the weights of a model with a recipe are read."""
    if scheme == "mxfp4":
        return config.get("model_type") == "gpt_oss"
    given = _first(config)
    if any(_rotates(given, key) for key in ROTATIONS):
        return False
    if scheme == "compressed-tensors":
        return all(format in COMPRESSED for format in _formats(given))
    if scheme == "auto-round":
        is_whole = given.get("data_type", "int") == "int" and not _rounds_activations(given)
        return is_whole and layout_of_auto_round(given) is not None
    if scheme == "quark":
        return _is_served_quark(given)
    if scheme == MIXED:
        found = {_method(one, None) for one in _layers(given).values()}
        return bool(found) and found <= MODELOPT
    return scheme in SERVED or scheme in MODELOPT


def _details(scheme: str, config: dict[str, Any]) -> Iterator[str]:
    """What of a scheme that is served in part is not."""
    given = _first(config)
    yield from (key for key in ROTATIONS if _rotates(given, key))
    if scheme == "compressed-tensors":
        yield from dict.fromkeys(str(one) for one in _formats(given) if one and one not in COMPRESSED)
    if scheme == "auto-round":
        yield from ("act_bits",) if _rounds_activations(given) else ()
        yield from (str(given[key]) for key in ("packing_format", "backend") if given.get(key))


def _rotates(given: dict[str, Any], key: str) -> bool:
    """Whether this field says that something is rotated while the model runs."""
    value = given.get(key)
    groups = value.get("config_groups") if isinstance(value, dict) and key == "transform_config" else None
    return bool(value) if not isinstance(groups, dict) else not all(map(_is_in_weights, groups.values()))


def _is_in_weights(group: Any) -> bool:
    """Of a group of `transform_config`: whether weights alone are rotated."""
    applied = group.get("apply") if isinstance(group, dict) else None
    if not isinstance(applied, list) or not applied:
        return False
    return all(isinstance(one, dict) and one.get("location") in IN_WEIGHTS for one in applied)


def _formats(given: dict[str, Any]) -> list[Any]:
    """Of compressed-tensors: of all matrices, or of each group of them."""
    if given.get("format") != "mixed-precision":
        return [given.get("format")]
    return [one.get("format") for one in groups_of(given)] or ["mixed-precision"]


def _rounds_activations(given: dict[str, Any]) -> bool:
    """Of AutoRound, whose weights are laid out in another way then (pack_qact_layer)."""
    bits = given.get("act_bits")
    return isinstance(bits, int) and bits < 16


def _is_served_quark(given: dict[str, Any]) -> bool:
    """Of AMD's Quark: fp8, and fp4 with powers of two, with no rotation, which `codes` would not see."""
    algorithms = given.get("algo_config") or []
    for one in algorithms if isinstance(algorithms, list) else [algorithms]:
        if not isinstance(one, dict) or one.get("name") in ("rotation", "quarot"):
            return False
    dtypes = [one.get("dtype") if isinstance(one, dict) else one for one in weights_of_quark(given)]
    return bool(dtypes) and all(dtype in ("fp8_e4m3", "fp8_e5m2", "fp4") for dtype in dtypes)


def published(config: dict[str, Any]) -> str | None:
    """The engine's format that has a checkpoint's numbers of 4 bits as they are: fp4, or whole numbers with scales for groups of inputs that are
    beside each other; None: it is of neither.
    """
    for key, given in _said(config):
        if not isinstance(given, dict):
            continue
        method = _method(given, "compressed-tensors" if key == "compression_config" else None)
        if method == "mxfp4":
            return FP4
        if method == "gguf":
            return f"groups_{GROUPS[0]}"
        size = _group_size(given) if method in WORDS else None
        if size is not None:
            return next((f"groups_{one}" for one in reversed(GROUPS) if size % one == 0), None)
    return None


def share_in_4_bits(config: dict[str, Any]) -> float:
    """Of the layers' numbers of a checkpoint that is published in 4 bits: files in GGUF have others beside them."""
    given = _first(config)
    share = given.get("share_in_4_bits") if _method(given, None) == "gguf" else None
    return share if isinstance(share, float) else 1.0


def has_published_head(config: dict[str, Any]) -> bool:
    """Whether the head of a checkpoint whose layers stay in 4 bits is in few bits as well: of files in GGUF it mostly is."""
    given = _first(config)
    return _method(given, None) == "gguf" and bool(given.get("head"))


def with_what_is_beside(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """config.json, with what only a file beside it says of how the weights are quantized. Raises UnusableModel."""
    beside = _beside(folder)
    if any(given for _, given in _said(config)):
        first = _first(config)
        if _method(first, None) != MIXED or _layers(first):
            return config
        # Of ModelOpt before February 2026 (its pull request 929): which layer has what is in its own file alone.
        beside = ((name, given) for name, given in beside if _method(given, None) == MIXED and _layers(given))
    return next(({**config, "quantization_config": given} for _, given in beside), config)


def _beside(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What files beside config.json say of it, with their names."""
    for name, usual in BESIDE.items():
        given = read_json(folder, name)
        if given is not None:
            yield name, {"quant_method": usual, **given}


def _said(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What config.json says of how weights are quantized, wherever it says it, with its key."""
    for part in whole_and_text(config):
        for key in ("quantization_config", "compression_config"):
            yield key, part.get(key)
        if _is_mlx(_object(part, "quantization") or {}):
            yield "quantization", part["quantization"]


def _first(config: dict[str, Any]) -> dict[str, Any]:
    """The first object of config.json that says how weights are quantized."""
    return next((given for _, given in _said(config) if isinstance(given, dict)), {})


def _layers(given: dict[str, Any]) -> dict[str, Any]:
    """What ModelOpt's mixed checkpoints have each layer quantized with."""
    return _object(_object(given, "quantization") or given, "quantized_layers") or {}


def _object(given: dict[str, Any], key: str) -> dict[str, Any] | None:
    found = given.get(key)
    return found if isinstance(found, dict) else None


def _is_mlx(given: dict[str, Any]) -> bool:
    """Of Apple's MLX, which names no method."""
    return {"bits", "group_size"} <= given.keys()


def _group_size(given: dict[str, Any]) -> int | None:
    """How many inputs beside each other have a scale, of whole numbers of 4 bits."""
    groups = [one["weights"] for one in groups_of(given) if isinstance(one.get("weights"), dict)]
    # Of several groups of matrices, those of 4 bits: the others are of 8 bits beside them.
    held = next((one for one in groups if one.get("num_bits") == 4), groups[0] if groups else given)
    if held.get("num_bits", given.get("bits", held.get("w_bit"))) != 4:
        return None
    if any(
        one.get("type", "int") != "int" for one in groups
    ):  # of fp4, or of fp8 beside them, which would be rounded
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
    modelopt = _object(given, "quantization") or given
    if "quant_algo" in modelopt:  # NVIDIA's ModelOpt; null where only the cache is quantized
        algorithm = modelopt["quant_algo"]
        return f"modelopt {str(algorithm).lower()[:40]}" if algorithm else None
    kind = given.get("quant_type")
    if not given.get("quant_method") and isinstance(kind, str) and TRAINED_FOR.fullmatch(kind):
        return None
    method = given.get("quant_method") or ("torchao" if isinstance(kind, dict) else kind)
    if method:
        method = str(method).lower().replace("_", "-").removeprefix("intel/")[:40]
        version = str(given.get("version", "")).lower()
        return f"awq {version[:40]}" if method == "awq" and version.startswith("gemv") else method
    loaded = [given[key] for key in ("load_in_8bit", "load_in_4bit") if key in given]
    if loaded:
        return "bitsandbytes" if any(loaded) else None
    if _is_mlx(given) and usual is None:
        return "mlx"
    if any(key in given for key in ("dense_quant_type", "moe_quant_type")):
        return "paddle"
    return usual or "unknown"
