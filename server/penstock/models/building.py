"""A model made from its checkpoint: a recipe of ours where there is one, else the fallback. Torch is imported for what torch runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.loading.host import threads_of
from penstock.models import choice, encoder_decoder_recorder, native, native_choice, native_models, recipes
from penstock.models.adapting import number_matrices
from penstock.models.decoder import Decoder
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.model import Model
from penstock.models.packed_cache import PackedCache
from penstock.models.recorder import record
from penstock.parallel.group import TensorGroup


def load(
    config: dict[str, Any],
    folder: Path,
    dtype: Any,
    device: Any,
    group: TensorGroup,
    trusted: bool,
    implementation: str,
    quantize: str = "",
    quantize_head: bool = False,
    packed_cache: PackedCache | None = None,
    cache_dtype: str = "auto",
    threads: int = 0,
) -> tuple[str, Model]:
    """The name of what serves the model, and a rank's part of it. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights and to code of the repository (--trust-remote-code). `quantize`: of
    `packing.FORMATS`, the weights of layers and, with `quantize_head`, of the head; "" leaves those that are published in 4 bits what they are, and none
    does not. `packed_cache`: where packed weights are kept, if they are.
    `dtype` and `device` are torch's, or of `tensors` and `host`. `threads`: of the CPU engine; 0: all.
    """
    threads = threads_of(threads)
    shape = None if choice.uses_fallback(config, implementation) else recipes.read_config(config)
    native_choice.refuse_cache(cache_dtype, shape, dtype, device, group)
    quantizer = None
    if quantize not in ("", quantization.NONE):
        quantizer = native_choice.quantizer(shape, dtype, device, group, quantize, quantize_head, threads)
    elif not quantize:
        quantizer = native_choice.published(config, shape, dtype, device, group, threads)
    if shape is None:
        from penstock.models import fallback_loader

        return fallback_loader.RECIPE, fallback_loader.load(config, folder, dtype, device, group, trusted)
    name = recipes.served_architecture(config)
    runs = native_choice.instruction_set(shape, dtype, device, group)
    entry = None
    if runs is not None and packed_cache is not None:
        how = quantization.as_served(config, quantize) if quantizer is not None else ""
        entry = packed_cache.entry(folder, config, trusted, how, quantize_head, runs, group)
        found = None if entry is None else choice.kept_in(entry, runs, threads, group)
        if found is not None:
            return name, found
    model = recipes.load(config, folder, dtype, device, group, trusted, quantizer, in_torch=runs is None)
    if runs is None:
        if isinstance(quantizer, DeviceQuantizer) and group.rank == 0:
            native.tell(f"weights on {device}: {quantizer.in_words}")
        return name, model
    if isinstance(model, Decoder):
        number_matrices(model)
    recording = record(model) if isinstance(model, Decoder) else encoder_decoder_recorder.record(model)
    made = native_models.on_cpu_engine(model.config, model.parameters, recording, runs, threads, group)
    if entry is not None:
        entry.take(recording, model.config, model.parameters)
        made.entry = entry
    return name, made
