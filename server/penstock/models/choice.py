"""Which implementation runs a model, as far as that can be said without torch: one that the packed cache has starts from there alone,
and `building` makes the others from their checkpoints. Must not import torch.
"""

from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.models.architectures import architecture_of
from penstock.models.native import NativeModel
from penstock.models.native_models import on_cpu_engine
from penstock.models.packed_cache import Entry, PackedCache
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine


def uses_fallback(config: dict[str, Any], implementation: str) -> bool:
    """Whether a model runs through transformers, by its config.json and --model-impl."""
    if implementation == "auto":
        return architecture_of(config) is None
    return implementation == "transformers"


def find(
    config: dict[str, Any],
    folder: Path,
    trusted: bool,
    implementation: str,
    quantize: str,
    quantize_head: bool,
    packed_cache: PackedCache,
    threads: int,
) -> tuple[str, NativeModel] | None:
    """What `building.load` finds of a model in bf16 that one rank serves on a CPU, if an earlier start has kept it: what was recorded
    then was served by the CPU engine, with the same code and the same flags. Raises UnusableModel.
    """
    name = architecture_of(config)
    if name is None or uses_fallback(config, implementation):
        return None
    try:
        runs = cpu_engine.instruction_set()
    except NoCpuEngine:  # `building` says why
        return None
    how = quantization.as_served(config, quantize)
    entry = packed_cache.entry(folder, config, trusted, how, quantize_head, runs)
    model = None if entry is None or not entry.path.exists() else kept_in(entry, runs, threads)
    return None if model is None else (name, model)


def kept_in(
    entry: Entry, instruction_set: str, threads: int, group: TensorGroup = ALONE
) -> NativeModel | None:
    """The model that an earlier start has kept there. Raises UnusableModel."""
    found = entry.find(group)
    if found is None:
        return None
    model = on_cpu_engine(found.config, found.parameters, found.recording, instruction_set, threads, group)
    model.entry = entry
    return model
