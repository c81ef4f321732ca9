"""What a model's files say of how it would be served on this machine.

Reads configuration files and the headers of the weights; the recipe is rehearsed for every rank on tensors without
numbers, as each worker does before it reads its own. Asked by the doctor's command, and by the download before it
fetches something large.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.doctor.report import CPU_ENGINE, TORCH, Fit, Report
from penstock.engine import draft_model
from penstock.engine.cache_groups import cache_groups
from penstock.engine.cache_size import SHORTEST_CONTEXT, count_snapshots, longest_that_fits, spare
from penstock.engine.drafter import FLAG
from penstock.engine.kv_cache import numbers_of
from penstock.engine.state_cache import state_bytes
from penstock.engine.step_memory import engine_working_bytes, torch_step_bytes, working_bytes
from penstock.engine.tables import BLOCK_SIZE, divide
from penstock.errors import TooLittleMemory, UnusableModel
from penstock.hub.tokenizer import sources_of
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder, check_numbers, check_weights
from penstock.loading.host import NEEDS_TORCH, Processor, in_bf16, may_have_accelerator, threads_of
from penstock.loading.memory import Room, device_room
from penstock.loading.model_files import (
    CONFIG,
    GENERATION,
    Stored,
    dtype_name,
    eos_ids,
    gigabytes,
    read_config,
    read_json,
    unread_adapter,
    weight_files,
)
from penstock.models import cache_format, encoder_decoder_recorder, native_choice, recipes
from penstock.models.architectures import RECIPES, architecture_of, architectures, left_out
from penstock.models.choice import uses_fallback
from penstock.models.decoder import Decoder
from penstock.models.decoder_start import decoder_start_ids
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.family_names import NAMES
from penstock.models.model import ModelConfig
from penstock.models.packing import Quantizer
from penstock.models.recorder import record
from penstock.parallel.group import Pipeline, TensorGroup
from penstock_kernels import cpu_engine, tensors
from penstock_kernels.cpu_engine import NoCpuEngine, WrongInstructionSet

# What the server takes at once when its flags do not say otherwise.
SLOTS, STEP_TOKENS = 128, 2048
# Drafts of a step on a GPU: what grammars force. Of a model with recurrent layers there are fewer.
STEP_DRAFTS, STEP_DRAFTS_OF_STATES = 64, 16


@dataclass(frozen=True)
class Question:
    """How the model would be served."""

    shards: int = 1
    dtype: str = "auto"
    device: str = "auto"
    memory_fraction: float = 0.9
    trusted: bool = False
    stages: int = 1
    implementation: str = "auto"
    longest: int | None = None  # tokens of a sequence (--max-total-tokens); None: as the model has it
    slots: int = SLOTS  # sequences of a step
    step_tokens: int | None = None  # tokens of a step (--max-batch-prefill-tokens); None: as is usual
    # The program whose router reads the model's texts; without it they are not looked into.
    launcher: Path | None = None
    quantize: str = ""
    quantize_head: bool = False
    cache_dtype: str = "auto"
    draft: Path | None = None  # the folder of a model that makes drafts
    program: bool = False  # what the CPU engine would run is asked for
    deterministic: bool = False
    meets_elsewhere: bool = False  # its processes find each other at --master-addr

    @property
    def processes(self) -> int:
        """Each holds a shard of a stage."""
        return self.shards * self.stages

    def group(self, rank: int) -> TensorGroup:
        """Of the process with this rank."""
        if self.stages == 1:
            return TensorGroup(rank, self.shards, is_local=not self.meets_elsewhere)
        stage, shard = divmod(rank, self.shards)
        everyone = TensorGroup(rank, self.processes)
        return TensorGroup(shard, self.shards, pipeline=Pipeline(stage, self.stages, everyone))


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


@dataclass(frozen=True)
class Drafting:
    """What a draft model takes."""

    shape: ModelConfig
    weight_bytes: int
    layers: int
    row_bytes: int  # that a layer keeps of a token

    def page_bytes(self, full_tables: int) -> int:
        """See `DraftModel.page_bytes`."""
        return BLOCK_SIZE * -(-self.layers // max(full_tables, 1)) * self.row_bytes

    def too_short_for(self, longest: int) -> str:
        """That it does not draft for sequences of so many tokens."""
        return (
            f"{FLAG}: the draft model was made for {self.shape.most_positions} positions, and sequences have up to {longest}; "
            "lower --max-total-tokens"
        )


def drafts(
    draft: Path,
    served: ModelConfig,
    folder: Path,
    dtype: Any,
    device: Any,
    question: Question,
    report: Report,
) -> Drafting | None:
    """Whether the model in `draft` can make drafts for the one that is served, and what it takes."""
    try:
        if question.processes > 1:
            raise UnusableModel("it is for a model in one worker, not for shards or stages")
        config = check_folder(draft, question.trusted)
        shape = draft_model.refuse(config, served, folder, draft)
        quantizer: Quantizer | DeviceQuantizer | None = None
        if question.quantize not in ("", quantization.NONE):
            quantizer = native_choice.quantizer(
                shape, dtype, device, question.group(0), question.quantize, question.quantize_head
            )
        elif not question.quantize:
            quantizer = native_choice.published(config, shape, dtype, device, question.group(0))
        with Checkpoint(draft, dtype, question.trusted) as checkpoint:
            part = recipes.load_from(config, checkpoint, question.group(0), quantizer)
            weight_bytes = checkpoint.bytes_made
    except UnusableModel as error:
        report.problems.append(f"{FLAG}: {error}")
        return None
    rows, size = cache_format.held(cache_format.FORMATS[question.cache_dtype], part.cache_shape)
    layers = len(numbers_of(part.config.cached_layers(question.group(0))))
    found = Drafting(shape, weight_bytes, layers, rows * size * dtype.itemsize)
    report.draft_weight_bytes, report.draft_kv_bytes_per_token = weight_bytes, layers * found.row_bytes
    if question.longest is not None and question.longest > shape.most_positions:
        report.problems.append(found.too_short_for(question.longest))
    return found


def memory(
    shape: ModelConfig,
    dtype: Any,
    device: Any,
    question: Question,
    report: Report,
    drafting: Drafting | None = None,
) -> None:
    """How many sequences of which length fit, by the rules by which a worker sizes its cache."""
    count, longest = question.processes, asked_length(shape, question)
    if device.type == "cuda":
        import torch

        room = device_room(device)
        if count > torch.cuda.device_count():
            report.problems.append(
                f"{count} processes (--num-shard, --pipeline-parallel) need a GPU each: there are "
                f"{torch.cuda.device_count()} on this machine"
            )
    else:
        whole = device_room(device)
        room = Room(whole.total // count, whole.free // count)
    held = max(report.weight_bytes_per_shard) + (drafting.weight_bytes if drafting else 0)
    report.memory_bytes, report.free_bytes = room.total * count, room.free * count
    if held > room.free:
        report.problems.append(
            f"the weights take {gigabytes(held)} of each process's memory, and {gigabytes(room.free)} are free"
            if count > 1
            else f"the weights take {gigabytes(held)} of memory, and {gigabytes(room.free)} are free"
        )
        return
    left = Room(room.total, room.free - held)
    state = max(report.state_bytes, default=0)
    largest_row = max(report.kv_bytes_per_token) * BLOCK_SIZE

    def available(context: int) -> int:
        """For caches, where sequences have up to that many tokens."""
        working = step_bytes(shape, dtype, device, context, question, report)
        if drafting is not None:
            limits = step_limits(shape, question)
            working += draft_step_bytes(drafting.shape, dtype, device, limits, context, report)
        return spare(left, device, question.memory_fraction, held, working)

    def sequences(context: int, free: int, longest: int) -> int:
        """Of `context` tokens that `free` bytes hold, where none has more than `longest`."""
        tables = divide(shape.layer_windows, longest)
        page = largest_row * tables.places // max(len(shape.layer_windows), 1)
        page += drafting.page_bytes(tables.full) if drafting else 0
        # One more page holds zeros.
        return max(0, (free - page) // (tables.pages(context) * page + state))

    without_steps = spare(left, device, question.memory_fraction, held, 0)
    served = longest_that_fits(
        SHORTEST_CONTEXT,
        longest,
        lambda context: sequences(context, without_steps, context) > 0,
        lambda context: sequences(context, available(context), context) > 0,
    )
    if drafting is not None and question.longest is None and served > drafting.shape.most_positions:
        report.problems.append(drafting.too_short_for(served))
    report.cache_bytes_per_shard = available(served)
    tables = divide(shape.layer_windows, served)
    group = question.group(0)
    held_layers = len(numbers_of(shape.cached_layers(group)))
    row_bytes = report.kv_bytes_per_token[0] // max(held_layers, 1)
    report.cache_groups = cache_groups(shape, tables, group, row_bytes, dtype.itemsize)
    if state:
        try:
            count_snapshots(state, step_limits(shape, question)[0], report.cache_bytes_per_shard)
        except TooLittleMemory as error:  # only of a server that is not told otherwise
            report.warnings.append(str(error))
    contexts = {longest}
    context = SHORTEST_CONTEXT
    while context < longest:
        contexts.add(context)
        context *= 2
    report.fits = [
        Fit(size, 0 if size > served else sequences(size, report.cache_bytes_per_shard, served))
        for size in sorted(contexts)
    ]
    if report.fits[0].sequences == 0:
        report.problems.append(
            f"memory is too small: {gigabytes(report.cache_bytes_per_shard)} are left for the KV cache, not "
            f"enough for a sequence of {report.fits[0].context} tokens"
        )
    elif served < longest and question.longest is not None:
        report.problems.append(
            f"--max-total-tokens {question.longest}: memory has room for sequences of about {served} tokens"
        )
    elif served < longest:
        report.warnings.append(
            f"a sequence of the whole context ({longest} tokens) does not fit into memory: without --max-total-tokens "
            f"requests of more than about {served} tokens are refused"
        )


def asked_length(shape: ModelConfig, question: Question) -> int:
    """The longest sequence that a server would be prepared for if memory has room for it."""
    longest = question.longest or shape.usual_positions
    return longest if shape.positions_go_on else min(longest, shape.max_positions)


def step_limits(shape: ModelConfig, question: Question) -> tuple[int, int]:
    """Sequences and tokens of a step, as the router asks a worker for them (`prepare_limits`)."""
    tokens = question.step_tokens or STEP_TOKENS
    if question.step_tokens is None and not shape.has_encoder:  # which reads an input in one step
        tokens = min(tokens, asked_length(shape, question))
    return min(question.slots, tokens), tokens


def step_bytes(
    shape: ModelConfig, dtype: Any, device: Any, context: int, question: Question, report: Report
) -> int:
    """What the largest step needs, of sequences that have up to `context` tokens."""
    limits = step_limits(shape, question)
    if report.engine == CPU_ENGINE:
        return engine_working_bytes(shape, threads_of(0), *limits, context)
    drafts = 0
    if device.type == "cuda":
        drafts = STEP_DRAFTS_OF_STATES if shape.has_state else STEP_DRAFTS
    exact, ranks = question.deterministic, question.processes
    return torch_step_bytes(shape, dtype, device, exact, ranks, *limits, context, drafts)


def draft_step_bytes(
    shape: ModelConfig, dtype: Any, device: Any, limits: tuple[int, int], context: int, report: Report
) -> int:
    """The same of a draft model, with the `step_limits` of the model that it drafts for."""
    slots, tokens = limits[0], draft_model.fed_at_once(*limits)
    if report.engine == CPU_ENGINE:
        return engine_working_bytes(shape, threads_of(0), slots, tokens, context)
    return working_bytes(shape, dtype, device, slots, tokens, context)


def text(folder: Path, config: dict[str, Any], question: Question, report: Report) -> None:
    """Tokenizer, chat template and end-of-sequence ids."""
    unusable = prompt_files(folder, question)
    report.problems.extend(unusable)
    # A tokenizer that the router refuses may take all memory when it is built.
    for find in (chat_template,) if unusable else (tokenizer, chat_template):
        try:
            find(folder, config, report)
        except UnusableModel as error:
            report.problems.append(str(error))
    try:
        report.eos_token_ids = eos_ids(config, read_json(folder, GENERATION))
    except UnusableModel as error:
        report.problems.append(str(error))
        return
    if not report.eos_token_ids:
        report.warnings.append("no eos_token_id: answers end at a limit or a stop string only")


def prompt_files(folder: Path, question: Question) -> list[str]:
    """What the router says is wrong with tokenizer.json and the chat templates; one line each."""
    if question.launcher is None:
        return []
    command = [str(question.launcher), "prompt-files", str(folder)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [f"tokenizer.json and chat templates: could not be looked into: {error}"]
    lines: list[str] = json.loads(said)
    return lines


def tokenizer(folder: Path, config: dict[str, Any], report: Report) -> None:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.exists():
        older = sources_of(folder)
        if not older:
            report.missing_files.append(file.name)
            raise UnusableModel(f"{file.name}: missing, and so are the files that one can be made of")
        report.tokenizer = f"will be made of {older}"
        return
    report.tokenizer = file.name
    try:
        report.tokens = Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:  # the library has no narrower class
        raise UnusableModel(f"{file.name}: is not valid: {' '.join(str(error).split())[:200]}") from error
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and report.tokens > vocabulary:
        report.warnings.append(
            f"{file.name} has {report.tokens} tokens, and the model knows {vocabulary} (vocab_size)"
        )


def chat_template(folder: Path, config: dict[str, Any], report: Report) -> None:
    """Where the chat template is, in the order in which the router looks."""
    if (folder / "chat_template.jinja").is_file() or list(folder.glob("additional_chat_templates/*.jinja")):
        report.chat_template = "chat_template.jinja"
    elif (read_json(folder, "chat_template.json") or {}).get("chat_template"):
        report.chat_template = "chat_template.json"
    elif (read_json(folder, "tokenizer_config.json") or {}).get("chat_template"):
        report.chat_template = "tokenizer_config.json"
    else:
        report.warnings.append(
            "no chat template: chat requests are refused. A chat_template.jinja in the model's folder is one, and "
            "so is `chat_template` in the file of --tokenizer-config-path"
        )
