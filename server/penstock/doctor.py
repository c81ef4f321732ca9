"""Says what would become of a model on this machine: `python -m penstock.doctor --model-id X [--json]`.

Reads configuration files and the headers of the weights; the recipe is rehearsed for every rank on tensors without
numbers, as each worker does before it reads its own. `penstock doctor` runs it, and the download asks `examine`
before it fetches something large. docs/doctor.md says what the JSON holds.
"""

import argparse
import dataclasses
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from penstock import hub, quantization
from penstock.checks import check_weights
from penstock.errors import UnusableModel
from penstock.kv_cache import Room, device_room, spare
from penstock.model_files import (
    CONFIG,
    GENERATION,
    Stored,
    eos_ids,
    gigabytes,
    read_config,
    read_json,
    weight_files,
)
from penstock.models import fallback, recipes
from penstock.models.architectures import RECIPES, TEXT_ONLY, architecture_of, architectures, reads_images
from penstock.models.choice import uses_fallback
from penstock.models.config import DecoderConfig
from penstock.models.encoder_decoder import EncoderDecoderConfig
from penstock.models.fallback import FallbackConfig
from penstock.parallel import Pipeline, TensorGroup
from penstock.preparation import working_bytes
from penstock.serving import decoder_start_ids, device_of, dtype_of
from penstock.tables import BLOCK_SIZE, divide
from penstock.tokenizer import sources_of
from penstock.weights import META, Checkpoint

SHIPPED = Path(__file__).parent / "tiny" / "model"
# What the server takes at once when its flags do not say otherwise.
SLOTS, STEP_TOKENS = 128, 2048
SHORTEST_CONTEXT = 1024


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

    @property
    def processes(self) -> int:
        """Each holds a shard of a stage."""
        return self.shards * self.stages

    def group(self, rank: int) -> TensorGroup:
        """Of the process with this rank."""
        if self.stages == 1:
            return TensorGroup(rank, self.shards)
        stage, shard = divmod(rank, self.shards)
        everyone = TensorGroup(rank, self.processes)
        return TensorGroup(shard, self.shards, pipeline=Pipeline(stage, self.stages, everyone))


@dataclass
class Fit:
    """So many sequences of `context` tokens are in the cache at once."""

    context: int
    sequences: int


@dataclass
class Report:
    """What was found, None where it could not be; `docs/doctor.md` explains every name."""

    model: str = ""
    folder: str = ""
    commit: str | None = None
    architecture: str | None = None
    recipe: str | None = None
    fallback: bool = False
    quantization: str | None = None
    parameters: int | None = None
    stored_dtypes: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    device: str | None = None
    weight_files: list[str] = field(default_factory=list)
    pickled: bool = False
    weight_bytes: int | None = None
    num_shard: int = 1
    pipeline_parallel: int = 1
    weight_bytes_per_shard: list[int] = field(default_factory=list)
    kv_bytes_per_token: list[int] = field(default_factory=list)
    context: int | None = None
    longer_context: bool = False
    memory_bytes: int | None = None
    free_bytes: int | None = None
    cache_bytes_per_shard: int | None = None
    fits: list[Fit] = field(default_factory=list)
    tokenizer: str | None = None
    tokens: int | None = None
    chat_template: str | None = None
    eos_token_ids: list[int] = field(default_factory=list)
    missing_files: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def would_serve(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.doctor", description="Says what would become of a model on this machine."
    )
    parser.add_argument(
        "--model-id", help="a folder, or owner/name on the hub [default: the model that ships]"
    )
    parser.add_argument("--revision", help="branch, tag or commit [default: main]")
    parser.add_argument(
        "--cache-dir", type=Path, help="of downloads [default: as HF_HUB_CACHE and HF_HOME say]"
    )
    parser.add_argument("--folder", type=Path, help="the model's files, instead of a download")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-shard", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--model-impl", default="auto")
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    question = Question(
        arguments.num_shard,
        arguments.dtype,
        arguments.device,
        arguments.memory_fraction,
        arguments.trust_remote_code,
        arguments.pipeline_parallel,
        arguments.model_impl,
    )
    report = look_at(arguments, question)
    print(json.dumps(as_json(report)) if arguments.json else as_text(report), flush=True)
    return 0 if report.would_serve else 1


def look_at(arguments: argparse.Namespace, question: Question) -> Report:
    """Finds the model's files, on the hub if need be, and examines them."""
    named = arguments.model_id
    folder = arguments.folder or (Path(named) if named else SHIPPED)
    if folder.is_dir():
        report = examine(folder, question)
        report.model, report.folder = named or "the model that ships", str(folder)
        return report
    request = hub.Request(
        named,
        arguments.revision,
        hub.cache_folder(arguments.cache_dir),
        trusted=question.trusted,
    )
    hub.keep_libraries_quiet()
    said = io.StringIO()  # lines for the launcher
    begun: hub.Begun | None = None
    with tempfile.TemporaryDirectory() as into:

        def bring(request: hub.Request) -> Path:
            nonlocal begun
            begun = hub.begin(request)
            hub.outline(request, begun, Path(into))
            return Path(into)

        try:
            with redirect_stdout(said):
                found = hub.obtain(request, bring)
        except hub.Unavailable as error:
            return Report(
                model=named,
                num_shard=question.shards,
                pipeline_parallel=question.stages,
                problems=[str(error)],
            )
        report = examine(found, question)
    report.model, report.folder = named, str(found if begun is None else begun.folder)
    report.commit = Path(report.folder).name
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    report.warnings += [line["message"] for line in lines if line.get("level") == "WARN"]
    if begun is not None and begun.pickled:
        report.weight_bytes = sum(begun.listing.sizes[name] for name in begun.weights)
    return report


def examine(folder: Path, question: Question) -> Report:
    """What the files in `folder` say. Every problem that can be found beside another is."""
    report = Report(folder=str(folder), num_shard=question.shards, pipeline_parallel=question.stages)
    config: dict[str, Any] | None = None
    stored: dict[str, Stored] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
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
    except UnusableModel as error:
        report.problems.append(str(error))
    try:
        device = device_of(question.device)
        report.device = str(device)
    except UnusableModel as error:
        report.problems.append(str(error))
    try:
        if config is not None:
            dtype = dtype_of(config, question.dtype)
            report.dtype = str(dtype).removeprefix("torch.")
    except UnusableModel as error:
        report.problems.append(str(error))
    if config is not None:
        decoder: DecoderConfig | EncoderDecoderConfig | FallbackConfig | None
        if uses_fallback(config, question.implementation):
            decoder = fallback_shape(config, folder, dtype, question, report)
        else:
            decoder = architecture(config, folder, report)
        sound = stored is not None and report.quantization is None
        if decoder is not None and dtype is not None and sound:
            if not report.fallback:
                shards(config, folder, dtype, question, report)
            if device is not None and len(report.weight_bytes_per_shard) == question.processes:
                memory(decoder, dtype, device, question, report)
    text(folder, config or {}, report)
    return report


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
    _, stored = check_weights(folder, question.trusted)
    if files.pickled:
        with Checkpoint(folder, torch.float32, META, question.trusted) as checkpoint:
            stored = checkpoint.stored
    report.weight_bytes = sum((folder / name).stat().st_size for name in files.names)
    for one in stored.values():
        report.stored_dtypes[one.dtype] = report.stored_dtypes.get(one.dtype, 0) + one.end - one.begin
    return stored


def quantized(config: dict[str, Any], folder: Path, stored: dict[str, Stored] | None) -> str | None:
    found = quantization.scheme_of(config, folder, stored or ())
    return None if found is None else found[0]


def architecture(
    config: dict[str, Any], folder: Path, report: Report
) -> DecoderConfig | EncoderDecoderConfig | None:
    """Who serves it, and the shape of the model."""
    found = architecture_of(config)
    report.architecture = found or next(iter(architectures(config)), None)
    try:
        if found is not None:
            report.recipe = RECIPES[found]
        decoder = recipes.read_config(config)
    except UnusableModel as error:
        report.problems.append(str(error))
        return None
    report.context = longest(decoder)
    report.longer_context = isinstance(decoder, DecoderConfig) and decoder.goes_on
    if reads_images(config):
        report.warnings.append(TEXT_ONLY)
    try:
        if isinstance(decoder, EncoderDecoderConfig):
            decoder_start_ids(config, read_json(folder, GENERATION), decoder)
    except UnusableModel as error:
        report.problems.append(str(error))
    return decoder


def fallback_shape(
    config: dict[str, Any], folder: Path, dtype: torch.dtype | None, question: Question, report: Report
) -> FallbackConfig | None:
    """What a model without a recipe is made of, and whether it can be served through transformers."""
    report.architecture = next(iter(architectures(config)), None)
    if report.quantization is not None:
        return None
    try:
        examined = fallback.examine(config, folder, question.trusted)
        report.fallback = True
        fallback.refuse_division(config, question.shards, question.stages)
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
        numbers = shape.layers * 2 * shape.kv_heads * shape.head_dim
        report.kv_bytes_per_token = [numbers * dtype.itemsize]
    return shape


def shards(
    config: dict[str, Any], folder: Path, dtype: torch.dtype, question: Question, report: Report
) -> None:
    """Rehearses every rank's loading: names and shapes of tensors, and what is divided."""
    parameters = 0
    for rank in range(question.processes):
        group = question.group(rank)
        try:
            with Checkpoint(folder, dtype, META, question.trusted) as checkpoint:
                part = recipes.load_from(config, checkpoint, group)
                parameters += checkpoint.parameters - recipes.counted_before(part)
        except UnusableModel as error:
            report.problems.append(str(error))
            return
        rows, size = part.cache_shape
        layers = len(group.layers(part.config.layers))
        report.kv_bytes_per_token.append(layers * rows * size * dtype.itemsize)
        report.weight_bytes_per_shard.append(sum(t.nbytes for t in part.weights()))
    # The shards of a stage ask for the same tensors, each for its part.
    report.parameters = parameters // question.shards


def longest(decoder: DecoderConfig | EncoderDecoderConfig | FallbackConfig) -> int:
    """Positions of a sequence, where nothing else is asked for."""
    return decoder.usual_positions if isinstance(decoder, EncoderDecoderConfig) else decoder.max_positions


def memory(
    decoder: DecoderConfig | EncoderDecoderConfig | FallbackConfig,
    dtype: torch.dtype,
    device: torch.device,
    question: Question,
    report: Report,
) -> None:
    """How many sequences of which length fit, by the rules by which a worker sizes its cache."""
    count, whole_context = question.processes, longest(decoder)
    if device.type == "cuda":
        room = device_room(device)
        if count > torch.cuda.device_count():
            report.problems.append(
                f"{count} processes (--num-shard, --pipeline-parallel) need a GPU each: there are "
                f"{torch.cuda.device_count()} on this machine"
            )
    else:
        whole = device_room(device)
        room = Room(whole.total // count, whole.free // count)
    held = max(report.weight_bytes_per_shard)
    report.memory_bytes, report.free_bytes = room.total * count, room.free * count
    if held > room.free:
        report.problems.append(
            f"the weights take {gigabytes(held)} of each process's memory, and {gigabytes(room.free)} are free"
            if count > 1
            else f"the weights take {gigabytes(held)} of memory, and {gigabytes(room.free)} are free"
        )
        return
    left = Room(room.total, room.free - held)
    working = working_bytes(decoder, dtype, SLOTS, STEP_TOKENS, whole_context)
    report.cache_bytes_per_shard = spare(left, device, question.memory_fraction, held, working)
    tables = divide(decoder.layer_windows, whole_context)
    page = max(report.kv_bytes_per_token) * BLOCK_SIZE * tables.places // decoder.layers
    pages = report.cache_bytes_per_shard // page - 1
    contexts = {whole_context}
    context = SHORTEST_CONTEXT
    while context < whole_context:
        contexts.add(context)
        context *= 2
    report.fits = [Fit(size, max(0, pages // tables.pages(size))) for size in sorted(contexts)]
    if report.fits[0].sequences == 0:
        report.problems.append(
            f"memory is too small: {gigabytes(report.cache_bytes_per_shard)} are left for the KV cache, not "
            f"enough for a sequence of {report.fits[0].context} tokens"
        )
    elif report.fits[-1].sequences == 0:
        report.warnings.append(
            f"a sequence of the whole context ({whole_context} tokens) does not fit into memory; longer "
            "ones than the table says are refused"
        )


def text(folder: Path, config: dict[str, Any], report: Report) -> None:
    """Tokenizer, chat template and end-of-sequence ids."""
    for find in (tokenizer, chat_template):
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
        report.warnings.append("no chat template: chat requests are refused")


def as_json(report: Report) -> dict[str, Any]:
    """The report's fields, and the verdict."""
    return {**dataclasses.asdict(report), "would_serve": report.would_serve}


def as_text(report: Report) -> str:
    """For people."""
    lines = [f"{name:<13} {value}" for name, value in facts(report)]
    if report.fits:
        lines.append(f"{'fits':<13} {'context':>9} {'sequences at once':>18}")
        lines += [f"{'':<13} {fit.context:>9} {fit.sequences:>18}" for fit in report.fits]
    for what, found in (
        ("missing", report.missing_files),
        ("warning", report.warnings),
        ("problem", report.problems),
    ):
        lines += [f"{what:<13} {line}" for line in found]
    return "\n".join([*lines, "would be served" if report.would_serve else "would not be served"])


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What is known, in the order in which it is read."""
    yield "model", report.model + (f" at {report.commit}" if report.commit else "")
    if report.architecture is not None:
        by = f"recipe {report.recipe}" if report.recipe else "no recipe"
        by += ", served through transformers" if report.fallback else ""
        yield "architecture", f"{report.architecture}, {by}"
    if report.quantization is not None:
        yield "quantized", report.quantization
    if report.parameters is not None:
        yield "parameters", f"{report.parameters / 1e6:,.0f} million"
    if report.stored_dtypes:
        yield "stored as", ", ".join(f"{name} ({gigabytes(n)})" for name, n in report.stored_dtypes.items())
    if report.dtype is not None:
        yield "served as", f"{report.dtype} on {report.device}"
    if report.weight_bytes is not None:
        files = "1 file" if len(report.weight_files) == 1 else f"{len(report.weight_files)} files"
        each = (
            f"; {shown(report.weight_bytes_per_shard)} on each of {divided(report)}"
            if divided(report)
            else ""
        )
        yield "weights", f"{gigabytes(report.weight_bytes)} in {files}{each}"
    if report.kv_bytes_per_token:
        each = f" on each of {divided(report)}" if divided(report) else ""
        yield "KV cache", f"{shown(report.kv_bytes_per_token, 'bytes')} for a token{each}"
    if report.context is not None:
        more = "; more with --max-total-tokens, at a loss of quality" if report.longer_context else ""
        yield "context", f"{report.context} tokens{more}"
    if report.memory_bytes is not None and report.free_bytes is not None:
        yield "memory", f"{gigabytes(report.memory_bytes)}, {gigabytes(report.free_bytes)} free"
    if report.tokenizer is not None:
        yield "tokenizer", report.tokenizer + (f", {report.tokens} tokens" if report.tokens else "")
    if report.chat_template is not None:
        yield "template", report.chat_template
    if report.eos_token_ids:
        yield "end tokens", ", ".join(map(str, report.eos_token_ids))


def divided(report: Report) -> str:
    """Over what the model is divided; nothing if it is not."""
    shards, stages = report.num_shard, report.pipeline_parallel
    if stages == 1:
        return f"{shards} shards" if shards > 1 else ""
    return f"{stages} stages" + (f" of {shards} shards" if shards > 1 else "")


def shown(sizes: list[int], unit: str = "") -> str:
    """One size, or from the smallest to the largest."""
    ends = (
        [f"{size} {unit}" if unit else gigabytes(size) for size in (min(sizes), max(sizes))]
        if sizes
        else ["?"]
    )
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # No thread of a library is worth waiting for.
    os._exit(status)
