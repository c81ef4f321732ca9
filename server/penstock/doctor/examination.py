"""What a model's files say of how it would be served on this machine.

Reads configuration files and the headers of the weights; the recipe is rehearsed for every rank on tensors without
numbers, as each worker does before it reads its own. Asked by the doctor's command, and by the download before it
fetches something large.
"""

import os
from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.adapters import read, sources
from penstock.doctor.drafting import Drafting, drafts
from penstock.doctor.memory import memory
from penstock.doctor.prompt_files import text
from penstock.doctor.question import Question
from penstock.doctor.report import CPU_ENGINE, TORCH, Report
from penstock.engine.kv_cache import numbers_of
from penstock.engine.state_cache import state_bytes
from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_numbers, check_weights
from penstock.loading.host import NEEDS_TORCH, Processor, in_bf16, may_have_accelerator
from penstock.loading.model_files import (
    CONFIG,
    GENERATION,
    Stored,
    dtype_name,
    read_config,
    read_json,
    unread_adapter,
    weight_files,
)
from penstock.models import cache_format, encoder_decoder_recorder, native_choice, recipes
from penstock.models.adapting import FLAG, NO_ADAPTERS, changes
from penstock.models.architectures import RECIPES, architecture_of, architectures, left_out
from penstock.models.choice import uses_fallback
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder
from penstock.models.decoder_start import decoder_start_ids
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.family_names import NAMES
from penstock.models.model import ModelConfig
from penstock.models.packing import Quantizer
from penstock.models.recorder import record
from penstock_kernels import cpu_engine, tensors
from penstock_kernels.cpu_engine import NoCpuEngine, WrongInstructionSet


def examine(folder: Path, question: Question) -> Report:
    """What the files in `folder` say. Every problem that can be found beside another is."""
    report = Report(folder=str(folder), num_shard=question.shards, pipeline_parallel=question.stages)
    config: dict[str, Any] | None = None
    stored: dict[str, Stored] | None = None
    dtype: Any | None = None
    device: Any | None = None
    try:
        config = read_config(folder)
    except UnusableModel as error:
        report.problems.append(str(error))
        if not (folder / CONFIG).exists():
            report.missing_files.append(CONFIG)
    try:
        stored = weights(folder, question, report)
        report.quantization = quantized(config or {}, folder, stored)
        if config is not None:
            quantization.refuse(config, folder, stored or ())
            config = quantization.with_what_is_beside(config, folder)
    except UnusableModel as error:
        report.problems.append(str(error))
    try:
        if config is not None:
            check_numbers(config, None if stored is None else len(stored))
    except UnusableModel as error:
        report.problems.append(str(error))
        config = None  # no model can be built from it
    try:
        device = examined_device(question.device, report)
        report.device = str(device)
    except UnusableModel as error:
        report.problems.append(str(error))
    try:
        if config is not None:
            is_free = question.quantize not in ("", quantization.NONE) and question.dtype == "auto"
            known = {} if report.pickled else stored or {}
            named = dtype_name(config, "bfloat16" if is_free else question.dtype, lambda: known)
            if device is not None and device.type == "cpu":
                named = served_dtype(config, named, question, report)
            elif device is not None:
                how = (question.dtype, question.quantize, question.implementation)
                published, named = named, native_choice.dtype_on_gpu(config, named, *how)
                if published != named:
                    report.warnings.append(
                        f"{published} is served in {named}, as weights of 4 bits are on a GPU"
                    )
            dtype = tensors.as_dtype(named)
            report.dtype = str(dtype)
    except UnusableModel as error:
        report.problems.append(str(error))
    if config is not None:
        shape: ModelConfig | None
        if uses_fallback(config, question.implementation):
            shape = fallback_shape(config, folder, dtype, question, report)
        else:
            shape = architecture(config, folder, report)
        if shape is not None and dtype is not None and device is not None:
            engine(shape, dtype, device, question, report)
            batch_invariance(question, report)
        if shape is not None and question.longest is not None:
            length(shape, question.longest, report)
        scheme = report.quantization
        sound = stored is not None and (scheme is None or quantization.is_served(scheme, config))
        quantizer: Quantizer | DeviceQuantizer | None = None
        if shape is not None and dtype is not None and sound:
            if device is not None:
                cached(shape, dtype, device, question, report)
            if device is not None:
                quantizer = quantized_by(config, shape, dtype, device, question, report)
            if not report.fallback:
                shards(config, folder, dtype, question, report, quantizer)
            adapters(config, folder, shape, question, report)
            if question.program and device is not None:
                report.program = program(config, folder, shape, dtype, device, question, quantizer)
            drafting: Drafting | None = None
            if question.draft is not None and device is not None:
                drafting = drafts(question.draft, shape, folder, dtype, device, question, report)
            if device is not None and len(report.weight_bytes_per_shard) == question.processes:
                memory(shape, dtype, device, question, report, drafting)
    text(folder, config or {}, question, report)
    return report


def examined_device(wanted: str, report: Report) -> Any:
    """What --device stands for: torch is asked only where it could say something else than the processor. Raises UnusableModel."""
    if wanted == "cpu" or (wanted == "auto" and not may_have_accelerator()):
        return Processor()
    try:
        from penstock.loading.device import device_of
    except ImportError as error:
        if wanted == "auto":
            return Processor()
        raise UnusableModel(f"models on --device {wanted}{NEEDS_TORCH}") from error
    return device_of(wanted, tell=report.warnings.append)


def weights(folder: Path, question: Question, report: Report) -> dict[str, Stored] | None:
    """Files, bytes and dtypes of the weights. None: they are pickled, and not on this machine yet."""
    files = weight_files(folder, question.trusted)
    report.weight_files, report.pickled = files.names, files.pickled
    absent = [name for name in files.names if not (folder / name).exists()]
    if files.pickled and len(absent) == len(files.names):
        report.warnings.append(
            f"{files.source}: pickled weights say what they hold only when they are here and loaded"
        )
        return None
    report.missing_files += absent
    held = check_weights(folder, question.trusted)
    if files.pickled:
        with Checkpoint(folder, tensors.float32, question.trusted) as checkpoint:
            held = checkpoint.contents
    stored = held.stored
    for warning in (held.warning, unread_adapter(os.listdir(folder))):
        if warning is not None:
            report.warnings.append(warning)
    report.weight_bytes = sum((folder / name).stat().st_size for name in files.names)
    for one in stored.values():
        report.stored_dtypes[one.dtype] = report.stored_dtypes.get(one.dtype, 0) + one.end - one.begin
    return stored


def quantized(config: dict[str, Any], folder: Path, stored: dict[str, Stored] | None) -> str | None:
    found = quantization.scheme_of(config, folder, stored or ())
    return None if found is None else found[0]


def architecture(config: dict[str, Any], folder: Path, report: Report) -> ModelConfig | None:
    """Who serves it, and the shape of the model."""
    found = architecture_of(config)
    report.architecture = found or next(iter(architectures(config)), None)
    try:
        if found is not None:
            report.recipe, report.family = RECIPES[found], NAMES[found]
        shape = recipes.read_config(config)
    except UnusableModel as error:
        report.problems.append(str(error))
        return None
    report.context = shape.usual_positions
    report.longer_context = shape.positions_go_on
    only_text = left_out(config)
    if only_text is not None:
        report.warnings.append(only_text)
    try:
        if shape.has_encoder:
            decoder_start_ids(config, read_json(folder, GENERATION), shape)
    except UnusableModel as error:
        report.problems.append(str(error))
    return shape


def engine(shape: ModelConfig, dtype: Any, device: Any, question: Question, report: Report) -> None:
    """What computes it; where that is torch on a CPU, why the CPU engine does not."""
    report.engine = TORCH
    if device.type != "cpu" or report.fallback:
        return
    why = native_choice.why_not(shape, dtype, question.group(0))
    if why is not None:
        report.why_torch = f"the CPU engine does not serve {why}"
        return
    try:
        cpu_engine.instruction_set()
        report.engine = CPU_ENGINE
    except WrongInstructionSet as error:
        report.problems.append(str(error))
    except NoCpuEngine as error:
        report.why_torch = str(error)


def batch_invariance(question: Question, report: Report) -> None:
    """Whether --deterministic can be had of what computes it."""
    if question.deterministic and report.engine == TORCH:
        try:
            question.group(0).check_batch_invariance()
        except UnusableModel as error:
            report.problems.append(str(error))


def fallback_shape(
    config: dict[str, Any], folder: Path, dtype: Any | None, question: Question, report: Report
) -> ModelConfig | None:
    """What a model without a recipe is made of, and whether it can be served through transformers."""
    report.architecture = next(iter(architectures(config)), None)
    if report.quantization is not None and not quantization.is_served(report.quantization, config):
        return None
    try:
        from penstock.models import fallback_loader
        from penstock.models.fallback import refuse_batch_invariance
    except ImportError:
        report.problems.append("models through transformers" + NEEDS_TORCH)
        return None
    try:
        examined = fallback_loader.examine(config, folder, question.trusted)
        report.fallback = True
        fallback_loader.refuse_division(config, question.shards, question.stages)
        if question.deterministic:
            refuse_batch_invariance(report.architecture or "the model")
    except UnusableModel as error:
        report.problems.append(str(error))
        return None
    report.parameters = examined.parameters
    shape = examined.config
    if shape is None:
        report.warnings.append(
            "whether it can be served through transformers is known once its weights are loaded"
        )
    elif dtype is not None:
        report.context = shape.max_positions
        report.weight_bytes_per_shard = [examined.parameters * dtype.itemsize]
        numbers = shape.caches * 2 * shape.kv_heads * shape.head_dim
        report.kv_bytes_per_token = [numbers * dtype.itemsize]
        if shape.has_state:
            report.state_bytes = [state_bytes(shape.state_shapes(question.group(0)), dtype.itemsize)]
    return shape


def length(shape: ModelConfig, longest: int, report: Report) -> None:
    """Whether the model has positions for a sequence of that length."""
    if longest > shape.most_positions:
        report.problems.append(
            f"--max-total-tokens {longest} is more than the {shape.most_positions} positions this model was made for"
        )


def served_dtype(config: dict[str, Any], named: str, question: Question, report: Report) -> str:
    """What a CPU serves a checkpoint in, of its dtype or that of --dtype."""
    tried = in_bf16(named, question.dtype)
    if tried == named or question.stages > 1:
        return named
    try:
        if native_choice.needs_torch(config, tried, question.implementation, question.group(0)) is not None:
            return named
    except UnusableModel:  # said where it is asked for
        return named
    report.warnings.append(f"{named} weights are served in {tried}, as the CPU engine computes")
    return tried


def quantized_by(
    config: dict[str, Any], shape: ModelConfig, dtype: Any, device: Any, question: Question, report: Report
) -> Quantizer | DeviceQuantizer | None:
    """What --quantize stands for; where nothing would, that is a problem. Without it, what is published in 4 bits stays so."""
    if question.quantize == quantization.NONE:
        return None
    if not question.quantize:
        served = None if report.fallback else shape
        return native_choice.published(config, served, dtype, device, question.group(0))
    try:
        return native_choice.quantizer(
            None if report.fallback else shape,
            dtype,
            device,
            question.group(0),
            question.quantize,
            question.quantize_head,
        )
    except UnusableModel as error:
        report.problems.append(str(error))
        return None


def cached(shape: ModelConfig, dtype: Any, device: Any, question: Question, report: Report) -> None:
    """Whether the model has the cache that --kv-cache-dtype asks for."""
    served = None if report.fallback else shape
    try:
        native_choice.refuse_cache(question.cache_dtype, served, dtype, device, question.group(0))
    except UnusableModel as error:
        report.problems.append(str(error))


def shards(
    config: dict[str, Any],
    folder: Path,
    dtype: Any,
    question: Question,
    report: Report,
    quantizer: Quantizer | DeviceQuantizer | None,
) -> None:
    """Rehearses every rank's loading: names and shapes of tensors, and what is divided."""
    parameters = 0
    for rank in range(question.processes):
        group = question.group(rank)
        try:
            with Checkpoint(folder, dtype, question.trusted) as checkpoint:
                part = recipes.load_from(config, checkpoint, group, quantizer)
                quantized_bytes = checkpoint.bytes_made
                parameters += checkpoint.parameters - part.repeated_parameters
        except UnusableModel as error:
            report.problems.append(str(error))
            return
        rows, size = cache_format.held(cache_format.FORMATS[question.cache_dtype], part.cache_shape)
        layers = len(numbers_of(part.config.cached_layers(group)))
        report.kv_bytes_per_token.append(layers * rows * size * dtype.itemsize)
        if part.config.has_state:
            report.state_bytes.append(state_bytes(part.config.state_shapes(group), dtype.itemsize))
        bytes_held = sum(t.nbytes for t in part.weights()) if quantizer is None else quantized_bytes
        report.weight_bytes_per_shard.append(bytes_held)
    # The shards of a stage ask for the same tensors, each for its part.
    report.parameters = parameters // question.shards


def adapters(
    config: dict[str, Any], folder: Path, shape: ModelConfig, question: Question, report: Report
) -> None:
    """Whether each adapter fits the model: what a worker would say of it at its start."""
    for given in question.adapters:
        if "=" not in given:
            report.warnings.append(f"{FLAG} {given}: what is on the hub is looked at when it is downloaded")
            continue
        try:
            ((name, at),) = sources([given])
            adapter = read(name, at)
            if report.fallback or not isinstance(shape, DecoderConfig):
                raise UnusableModel(NO_ADAPTERS)
            for rank in range(question.processes):
                changes([adapter], config, folder, question.group(rank), question.trusted)
            report.adapters.append(name)
        except UnusableModel as error:
            report.problems.append(str(error))


def program(
    config: dict[str, Any],
    folder: Path,
    shape: ModelConfig,
    dtype: Any,
    device: Any,
    question: Question,
    quantizer: Quantizer | DeviceQuantizer | None,
) -> list[str]:
    """Each operation of what the CPU engine would run, of the first rank; or why it would run nothing."""
    group = question.group(0)
    served = None if uses_fallback(config, question.implementation) else shape
    try:
        native_choice.only_engine("no program: only the CPU engine runs one", served, dtype, device, group)
        with Checkpoint(folder, dtype, question.trusted) as checkpoint:
            part = recipes.load_from(config, checkpoint, group, quantizer)
    except UnusableModel as error:
        return [str(error)]
    recorded = record(part) if isinstance(part, Decoder) else encoder_decoder_recorder.record(part)
    return str(recorded.program).splitlines()
