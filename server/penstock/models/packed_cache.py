"""Packed weights that are kept between starts (--packed-cache): what the CPU engine reads of a model, as one file beside the hub's cache.

The file holds a recorded program, operations and tensors, so that the next start maps it and neither reads nor packs the checkpoint.
It is used where everything that it was made of is as it was: the checkpoint's files, config.json, how weights are quantized, the
instruction set that rounded them, and the code that packs. What is wrong with a file is one line in the log, and the model is
packed anew. Must not import torch: a start from here does without.
"""

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock
import penstock_kernels
from penstock.errors import UnusableModel, one_line
from penstock.loading import packed_file
from penstock.loading.memory import cpu_room
from penstock.loading.model_files import WeightFiles, gigabytes, weight_files
from penstock.loading.packed_file import NotUsable
from penstock.models import config_content
from penstock.models.config import DecoderConfig, Temperature
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.recording import Recording
from penstock.parallel.group import ALONE, TensorGroup
from penstock.telemetry import log
from penstock_kernels import cpu_engine
from penstock_kernels.program import TENSORS, Buffer, HostArray, Layout, Operation, Program

SUFFIX = ".packed"
# What another commit of the model, version or instruction set has packed is removed when no start has used it for so long, and what is of a
# folder that is not there: in a rolling update, or on a volume of several machines, each has a file of its own, and sees folders of its own.
UNUSED_DAYS = 7.0
# Beside a model, what steps took: see `Measured`.
MEASURED = ".measured"
# Of each file of a checkpoint so many pieces are compared, beside size and time: times are worth nothing where an image or an archive
# has set them all to one.
SAMPLES, SAMPLE_BYTES, MOST_SAMPLES = 16, 4096, 512
# Bytes of a checkpoint that is kept without being asked for, also where its weights stay in bf16: the next start needs no torch, whose
# import takes longer than all else.
SMALL = 1 << 30
LONGEST_MEASURED = 1 << 16


def usual_folder() -> Path:
    """Beside the hub's cache, as huggingface_hub finds that; it is not imported for this."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "penstock" / "packed"


@dataclass(frozen=True)
class Found:
    """A program whose tensors are in a mapped file."""

    config: DecoderConfig | EncoderDecoderConfig
    recording: Recording
    parameters: int


@dataclass(frozen=True)
class Measured:
    """What Prepare has measured: it holds for the same model, limits, threads and processor (`of`)."""

    fixed_ns: float
    per_token_ns: float
    per_context_token_ns: float
    threads: list[int]  # that each kind of steps has settled on; empty: nothing was to choose


class PackedCache:
    """A folder of packed models. Models that are not in it are kept by `keep`, once the server has better things to wait for."""

    def __init__(self, folder: Path, keeps_all: bool) -> None:
        """`keeps_all`: large models in bf16 as well; else small ones, and those that are quantized on load."""
        self.folder, self._keeps_all = folder, keeps_all
        self.mapped_bytes = 0
        """Of all that was found. The system counts them as free memory, and steps read them."""
        self.refused: set[Path] = set()
        """Files that are not used, as a line has said."""
        self._unkept: list[Callable[[], None]] = []

    def entry(
        self,
        model: Path,
        config: dict[str, Any],
        trusted: bool,
        quantize: str,
        quantize_head: bool,
        instruction_set: str,
        group: TensorGroup = ALONE,
    ) -> "Entry | None":
        """Where a model is, or will be; None: it is not kept. Raises UnusableModel."""
        model = model.resolve()
        files = weight_files(model, trusted)
        size = sum((model / name).stat().st_size for name in files.names)
        if not (quantize or self._keeps_all or size <= SMALL):
            return None
        how = (quantize or "bf16") + ("-head" if quantize_head else "")
        if group.size > 1:
            how += f"-{group.rank}of{group.size}"
        packer = {"code": _code(), "instruction set": instruction_set}
        made_of = {**packer, "config": config, "files": _identity(model, files)}
        key, by = (
            hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            for content in (made_of, packer)
        )
        home = _home_of(model)
        place = hashlib.sha256(f"{home}\0{how}".encode()).hexdigest()[:12]
        name = f"{_name_of(home)}-{how}-{place}"
        return Entry(self, model, self.folder / f"{name}-{by[:8]}-{key[:8]}{SUFFIX}", key, name)

    def add(self, write: Callable[[], None]) -> None:
        """Has something written by `keep`."""
        self._unkept.append(write)

    def keep(self) -> None:
        """Writes what was packed at this start, on a thread that gives way to others."""
        unkept, self._unkept = self._unkept, []
        if unkept:
            threading.Thread(target=self._write, args=(unkept,), name="packed cache", daemon=True).start()

    def _write(self, unkept: list[Callable[[], None]]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        for write in unkept:
            write()

    def remove_orphans(self) -> None:
        """Removes the files of models whose folder is gone, unless somebody uses them: who shares the volume may see a folder that this
        process does not. Of a model of the hub that is the repository's: a later commit may use what an earlier one has written.
        """
        for path in self.folder.glob(f"*{SUFFIX}"):
            model = packed_file.folder_of_model(path)
            is_gone = model is not None and not _home_of(Path(model)).exists()
            if is_gone and packed_file.remove_unused(path, UNUSED_DAYS):
                path.with_suffix(MEASURED).unlink(missing_ok=True)

    def remove_others(self, entry: "Entry", unused_days: float) -> None:
        """Removes what other versions and instruction sets have packed of the entry's model, or what was packed of other weights of it, unless
        somebody uses it.
        """
        for path in self.folder.glob(f"{entry.name}*{SUFFIX}"):
            if path != entry.path and packed_file.remove_unused(path, unused_days):
                path.with_suffix(MEASURED).unlink(missing_ok=True)


@dataclass(frozen=True)
class Entry:
    """A model's place in the cache."""

    cache: PackedCache
    model: Path
    path: Path
    key: str
    name: str
    """Of all files of the model that are packed in the same way, of whichever commit and by whichever version."""

    def find(self, group: TensorGroup = ALONE) -> Found | None:
        """What an earlier start has kept; None: nothing that can be used, and a line says so where there is a file. Raises
        UnusableModel where memory has no room for it, and for as much of each other rank of `group` on this machine.
        """
        try:
            packed = packed_file.read(self.path, self.key)
            config, recording, parameters = recording_of(packed.content, packed.tensors)
        except FileNotFoundError:
            by = self.path.stem.rpartition("-")[0]
            other = next(self.cache.folder.glob(f"{by}-*{SUFFIX}"), None)
            if other is not None:
                self._refuse(other, "is of another version of the model", "INFO")
            return None
        except NotUsable as error:
            self._refuse(self.path, str(error), "INFO" if error.is_old else "WARN")
            return None
        free, are_free = group.room(cpu_room().free)
        if packed.nbytes > free:
            raise UnusableModel(
                f"{self.model}: its packed weights take {gigabytes(packed.nbytes)} of memory, and {gigabytes(free)} {are_free}"
            )
        log("INFO", f"packed weights are mapped from {self.path}", progress=True)
        self.cache.mapped_bytes += packed.nbytes
        return Found(config, recording, parameters)

    def _refuse(self, path: Path, why: str, level: str) -> None:
        """Says it once of each file: one is looked for with torch and without."""
        if path not in self.cache.refused:
            self.cache.refused.add(path)
            log(level, f"{path} {why}: weights are packed anew", progress=True)

    def measured(self, of: dict[str, Any]) -> Measured | None:
        """What an earlier start has measured; None: nothing that holds for this one."""
        try:
            with os.fdopen(packed_file.open_own(self.path.with_suffix(MEASURED)), "rb") as file:
                content = json.loads(file.read(LONGEST_MEASURED))
            if content["key"] != self.key or content["of"] != of:
                return None
            return Measured(**content["measured"])
        except (OSError, NotUsable, KeyError, TypeError, ValueError):
            return None

    def take_measured(self, of: dict[str, Any], measured: Measured) -> None:
        """Has that kept for the next start."""
        content = {"key": self.key, "of": of, "measured": asdict(measured)}
        self.cache.add(partial(self._write_measured, json.dumps(content)))

    def _write_measured(self, text: str) -> None:
        place = self.path.with_suffix(MEASURED)
        aside = place.with_name(f"{place.name}.{os.getpid()}{packed_file.PARTIAL}")
        try:
            aside.touch(mode=0o600)
            aside.write_text(text)
            aside.rename(place)
        except OSError:  # the next start measures again
            aside.unlink(missing_ok=True)

    def take(
        self, recording: Recording, config: DecoderConfig | EncoderDecoderConfig, parameters: int
    ) -> None:
        """Has a model that was packed now kept for the next start. Its tensors must not change."""
        content, tensors = content_of(recording, config, parameters)
        self.cache.add(partial(self._write, content, tensors, recording))

    def _write(self, content: dict[str, Any], tensors: list[HostArray], recording: Recording) -> None:
        # Known once the longest sequence is.
        content["frequencies"] = [
            [*key, per_position.tolist(), magnitude]
            for key, (per_position, magnitude) in recording.frequencies.items()
        ]
        if self.path not in self.cache.refused and packed_file.key_of(self.path) == self.key:
            return  # a server that started with this one was ready earlier
        try:
            self.cache.remove_others(self, UNUSED_DAYS)
            try:
                size = packed_file.write(self.path, self.model, self.key, content, tensors)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self.cache.remove_others(self, 0)
                size = packed_file.write(self.path, self.model, self.key, content, tensors)
            self.cache.remove_orphans()
        except OSError as error:
            log(
                "WARN",
                f"packed weights are not kept in {self.path}: {error.strerror or one_line(error)}",
                progress=True,
            )
            return
        if size is not None:
            log(
                "INFO",
                f"packed weights are kept in {self.path} ({gigabytes(size)}) for the next start; --packed-cache off keeps none",
                progress=True,
            )


@cache
def _code() -> str:
    """Of everything that has a say in what is packed: any change of it packs anew."""
    seen = hashlib.sha256()
    packages = (Path(penstock.__file__).parent, Path(penstock_kernels.__file__).parent)
    files = [path for package in packages for path in sorted(package.rglob("*.py"))]
    for path in [*files, cpu_engine.LIBRARY]:
        seen.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()


def _identity(model: Path, files: WeightFiles) -> list[list[Any]]:
    """Of the weight files: name, size, time of change, and a digest of pieces of each."""
    names = [*files.names, *([] if files.index is None else [files.index])]
    samples = max(2, min(SAMPLES, MOST_SAMPLES // len(names)))
    return [[name, *_of_file(model / name, samples)] for name in names]


def _of_file(path: Path, samples: int) -> tuple[int, int, str]:
    seen = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        last = max(status.st_size - SAMPLE_BYTES, 0)
        for sample in range(samples):
            seen.update(os.pread(file.fileno(), SAMPLE_BYTES, last * sample // (samples - 1)))
    return status.st_size, status.st_mtime_ns, seen.hexdigest()


def _home_of(model: Path) -> Path:
    """What stays when a model's commit is another one: of a snapshot of the hub's cache the folder of its repository."""
    return model.parent.parent if model.parent.name == "snapshots" else model


def _name_of(home: Path) -> str:
    """For people."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in home.name)[:100]


def content_of(
    recording: Recording, config: DecoderConfig | EncoderDecoderConfig, parameters: int
) -> tuple[dict[str, Any], list[HostArray]]:
    """A recording as JSON and tensors, before it has been given its rotary tables."""
    program = recording.program
    numbers = {id(operation): number for number, operation in enumerate(program.operations)}
    tensors = program.tensors()
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    content = {
        "parameters": parameters,
        "config": config_content.content_of(config),
        "buffers": [asdict(buffer) for buffer in program.buffers],
        "encoder": [_operation_content(operation, places) for operation in program.encoder],
        "body": [_operation_content(operation, places) for operation in program.body],
        "head": [_operation_content(operation, places) for operation in program.head],
        "rotations": [[numbers[id(operation)], rope] for operation, rope in recording.rotations],
        "temperatures": [
            [numbers[id(operation)], asdict(heat)] for operation, heat in recording.temperatures
        ],
    }
    return content, tensors


def recording_of(
    content: dict[str, Any], tensors: list[HostArray]
) -> tuple[DecoderConfig | EncoderDecoderConfig, Recording, int]:
    """The other way round. Raises NotUsable."""
    try:
        buffers = [Buffer(**{**made, "layout": Layout(made["layout"])}) for made in content["buffers"]]
        parts = ("body", "head", "encoder")
        program = Program(
            buffers, *([_operation_of(made, tensors) for made in content[part]] for part in parts)
        )
        operations = program.operations
        recording = Recording(
            program,
            [(operations[number], rope) for number, rope in content["rotations"]],
            [(operations[number], Temperature(**heat)) for number, heat in content["temperatures"]],
            {
                (rope, longest): (np.array(per_position, np.float32), magnitude)
                for rope, longest, per_position, magnitude in content["frequencies"]
            },
        )
        config = config_content.value_of(content["config"])
        if not isinstance(config, DecoderConfig | EncoderDecoderConfig):
            raise NotUsable("is damaged")
        return config, recording, int(content["parameters"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise NotUsable("is damaged") from error


def _operation_content(operation: Operation, places: dict[int, int]) -> dict[str, Any]:
    """What of an operation is not as usual; tensors by their place."""
    made: dict[str, Any] = {}
    for one in fields(operation):
        value = getattr(operation, one.name)
        if one.name in TENSORS:
            if value is not None:
                made[one.name] = places[id(value)]
        elif value != one.default:
            made[one.name] = int(value) if isinstance(value, IntEnum) else value
    return made


def _operation_of(made: dict[str, Any], tensors: list[HostArray]) -> Operation:
    choices: dict[str, Any] = {}
    for name, value in made.items():
        choices[name] = tensors[value] if name in TENSORS else KINDS[name](value)
    return Operation(**choices)


KINDS: dict[str, Any] = {one.name: one.type for one in fields(Operation)}
