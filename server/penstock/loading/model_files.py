"""What lies in a model's folder: its JSON files, which files hold the weights, and what their headers say.

Read by the download, the doctor and the worker before a byte of the weights is. Must not import torch.
"""

import json
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from penstock.errors import UnusableModel

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
# As `penstock.gguf.unpack` calls the links to a model's files.
GGUF = "model.gguf"
GGUF_PART = re.compile(r"model-\d{5}-of-\d{5}\.gguf")
# How weights may be stored otherwise; only named in errors.
FOREIGN = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".nemo", ".npz")
UNREAD = {".gguf": "GGUF", ".npz": "npz", ".onnx": "ONNX", ".h5": "HDF5", ".msgpack": "Flax's"}

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_PICKLE = "adapter_model.bin"
MERGE = "merge it into its base model (merge_and_unload of peft) and serve that"
# Of what an adapter may change only where it is merged into its base model.
ALONE = "name it as --model-id, which merges it into its base model"
# What the doctor says of an adapter alone.
LOAD = "look at its base model, with --lora-adapters NAME=FOLDER; as --model-id it is served merged into that"
CONSENT = "with --trust-remote-code pickled weights are loaded, by a reader that runs no code in them"

# Bytes of a header that are read at most; the format's own limit.
LONGEST_HEADER = 100_000_000
# Bytes of a JSON file: the largest known is the index of a model of a trillion parameters, with 10 MB.
LONGEST_JSON = 100_000_000
SHOWN = 10

DTYPE_NAMES = ("float32", "bfloat16", "float16")
# What numbers are served in, by what the safetensors format calls what they are stored in.
FLOATS = {"F64": "float32", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}

# How files begin that are there in place of others, and what to say of them.
IMPOSTORS = (
    (
        b"version https://git-lfs.github.com/spec",
        "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it",
    ),
    (b"<!doctype html", "an HTML page: what was downloaded is not the file"),
    (b"<html", "an HTML page: what was downloaded is not the file"),
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one tensor of the weights lies. `begin` and `end` are bytes of the file."""

    file: str
    dtype: str  # as the safetensors format writes it
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold a model's weights, and which tensors an index promises in them."""

    names: list[str]
    index: str | None  # the file that lists them
    promised: dict[str, str]  # tensor to file
    pickled: bool

    @property
    def source(self) -> str:
        """What to call the whole in an error."""
        return self.index or self.names[0]

    def gives(self, tensor: str, file: str) -> bool:
        """Whether a tensor is taken from a file that holds it: an index decides, where there is one."""
        return self.index is None or self.promised.get(tensor) == file


@dataclass(frozen=True)
class Contents:
    """What the files of the weights hold."""

    files: WeightFiles
    stored: dict[str, Stored]  # what is taken of them
    left_out: dict[str, str]  # tensor to a file that holds it and that the index does not name for it
    arranged: dict[str, Any] = field(default_factory=dict)
    """Of GGUF files (`penstock.gguf.reading`), how the numbers of tensors are to be had that are not as they are asked for."""

    @property
    def warning(self) -> str | None:
        """How much is left out, in a sentence; None: nothing."""
        if not self.left_out:
            return None
        tensor, file = next(iter(self.left_out.items()))
        return (
            f"{self.files.index}: {counted(self.left_out, 'tensor')} left out, in files that it does not name for them; "
            f"the first is {tensor} in {file}"
        )

    def is_lost(self, tensor: str) -> bool:
        """Whether a tensor is in a file or in the index, and is not taken."""
        return tensor not in self.stored and (tensor in self.left_out or tensor in self.files.promised)

    def said_of_missing(self, tensor: str) -> str:
        """A tensor that is not taken from any file, and how the index and the files differ over it."""
        promised, held = self.files.promised.get(tensor), self.left_out.get(tensor)
        if promised is not None:
            return f"{tensor} (the index lists it in {promised}, and {'no file' if held is None else 'only ' + held} has it)"
        return tensor if held is None else f"{tensor} ({held} has it, and the index does not list it)"


def open_regular(path: Path) -> int:
    """A descriptor to read a file. Raises UnusableModel where it is something else, of which reading might wait for
    ever (a FIFO) or never end (a device), and OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise UnusableModel(f"{path}: {kind_of(mode)}, not a file")


def kind_of(mode: int) -> str:
    """What a directory entry is that is no file."""
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "something unknown")


def impostor(start: bytes) -> str | None:
    """What a file is that begins like this and is no weights, configuration or tokenizer; None: nothing known."""
    start = start.lstrip().lower()
    return next((what for prefix, what in IMPOSTORS if start.startswith(prefix)), None)


def read_text(path: Path) -> str:
    """The text of a JSON file. Raises UnusableModel, OSError and UnicodeDecodeError."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LONGEST_JSON:
            raise UnusableModel(f"{path}: {gigabytes(size)} of JSON are more than any model has")
        text = file.read(LONGEST_JSON)
    instead = impostor(text[:200])
    if instead is not None:
        raise UnusableModel(f"{path}: {instead}")
    return text.decode()


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of the model folder, or None when there is no such file. Raises UnusableModel."""
    try:
        text = read_text(folder / name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableModel(f"{folder / name}: cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableModel(f"{folder / name}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnusableModel(f"{folder / name}: not a JSON object")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, with what only tokenizer_config.json says of a linear rotary table (see `RopeConfig`): how long a sequence may be. Raises
    UnusableModel.
    """
    config = read_json(folder, CONFIG)
    if config is None:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        raise UnusableModel(f"{folder}: no {CONFIG}{why_no_config(names)}")
    linear = _linear_tables(config)
    if linear:
        longest = (read_json(folder, TOKENIZER) or {}).get("model_max_length")
        # Where nobody set it transformers saves a number beyond all lengths.
        if isinstance(longest, int) and not isinstance(longest, bool) and 0 < longest < 1 << 31:
            for table in linear:
                table["model_max_length"] = longest
    return config


def _linear_tables(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The rotary tables of config.json that are stretched at all frequencies alike; not those of single kinds of layers."""
    found = (
        part.get(name) for part in whole_and_text(config) for name in ("rope_scaling", "rope_parameters")
    )
    return [
        one for one in found if isinstance(one, dict) and "linear" in (one.get("rope_type"), one.get("type"))
    ]


def why_no_config(names: Collection[str]) -> str:
    """What the files of a model without a config.json are, and the way out, as the end of a line; empty where that is not known. Of GGUF files the launcher
    says it in the same words.
    """
    if ADAPTER in names:
        return f"; it is an adapter ({ADAPTER}): {LOAD}"
    if any(name.endswith(".gguf") for name in names):
        return "; it has GGUF files: name one of them"
    return ""


def is_adapter_alone(names: Collection[str]) -> bool:
    """Whether these are the files of an adapter, and none of them the weights of a model."""
    return ADAPTER in names and not {SINGLE, INDEX, PICKLE, PICKLE_INDEX}.intersection(names)


def unread_adapter(names: Collection[str]) -> str | None:
    """That an adapter lies beside a model's weights, in a sentence; None: there is none. It may be merged into them, or meant to be put on
    them, as transformers does where peft is installed.
    """
    if ADAPTER not in names:
        return None
    return f"{ADAPTER} is not read: the weights are served as they are; if the adapter is not in them, load it with --lora-adapters NAME=FOLDER"


def why_no_adapter_weights(names: Collection[str]) -> str:
    """What an adapter has in place of its weights, as far as names say it."""
    if ADAPTER_PICKLE in names:
        return f"only pickled weights ({ADAPTER_PICKLE}), which are not read: save it as safetensors (save_pretrained of peft does)"
    return f"no {ADAPTER_WEIGHTS}"


def dtype_name(config: dict[str, Any], wanted: str, stored: Callable[[], Mapping[str, Stored]] = dict) -> str:
    """What --dtype stands for. `stored`: the tensors, asked for where config.json says nothing; of pickled ones none are known. Raises
    UnusableModel.
    """
    if wanted != "auto":
        return wanted
    # Of models that read images, too, some say it of their text alone.
    said = [part.get(name) for part in whole_and_text(config) for name in ("dtype", "torch_dtype")]
    name = str(next(filter(None, said), None) or _dtype_of(stored()))
    if name not in DTYPE_NAMES:
        raise UnusableModel(f"config.json: unsupported dtype {name!r}; choose one by --dtype")
    return name


def _dtype_of(stored: Mapping[str, Stored]) -> str:
    """The dtype that most of the weights have, in bytes; where all are codes, that in which these are served."""
    sizes: dict[str, int] = {}
    for one in stored.values():
        if one.dtype in FLOATS:
            sizes[FLOATS[one.dtype]] = sizes.get(FLOATS[one.dtype], 0) + one.end - one.begin
    if not sizes:
        return "bfloat16" if stored else "float32"
    return max(sizes, key=lambda name: sizes[name])


def whole_and_text(config: dict[str, Any]) -> list[dict[str, Any]]:
    """config.json, and what it says of the text model where that is a part of it: the outer parts first."""
    found = [config]
    for part in found:
        inner = (
            part.get(name)
            for name in ("text_config", "llm_config", "language_config", "thinker_config", "decoder_config")
        )
        found += [one for one in inner if isinstance(one, dict)]
    return found


def eos_ids(config: dict[str, Any], generation: dict[str, Any] | None) -> list[int]:
    """Every end-of-sequence id that config.json or generation_config.json names."""
    found: set[int] = set()
    for source in (*whole_and_text(config), generation or {}):
        value = source.get("eos_token_id")
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
                found.add(entry)
    return sorted(found)


def choose(names: Collection[str], trusted: bool) -> tuple[str, bool]:
    """Which of these names leads to the weights, and whether they are pickled. Raises UnusableModel.

    `trusted`: the user has agreed to pickled weights (--trust-remote-code).
    """
    for name in (SINGLE, INDEX):
        if name in names:
            return name, False
    for name in names:
        if name == GGUF or GGUF_PART.fullmatch(name):
            return GGUF, False
    for name in (PICKLE, PICKLE_INDEX):
        if name in names:
            if trusted:
                return name, True
            raise UnusableModel(f"no weights in safetensors files, only pickled ones ({name}); {CONSENT}")
    if ADAPTER in names:
        raise UnusableModel(f"no weights but an adapter's ({ADAPTER}; no {SINGLE} and no {INDEX}): {LOAD}")
    others = sorted(name for name in names if name.endswith((*FOREIGN, ".safetensors")))
    only = f", only {listed(others, 3)}" if others else ""
    kinds = [name for ending, name in UNREAD.items() if any(one.endswith(ending) for one in others)]
    why = f"no weights in safetensors files, and {kinds[0]} files are not read: " if kinds else ""
    raise UnusableModel(f"{why}no {SINGLE} and no {INDEX}{only}")


def weight_files(folder: Path, trusted: bool = False) -> WeightFiles:
    """Which files hold the weights. Raises UnusableModel; that the files are there is not checked."""
    try:
        name, pickled = choose({path.name for path in folder.iterdir()}, trusted)
    except OSError as error:
        raise UnusableModel(f"{folder}: cannot be read: {error.strerror}") from error
    except UnusableModel as error:
        raise UnusableModel(f"{folder}: {error}") from error
    if name in (SINGLE, PICKLE):
        return WeightFiles([name], None, {}, pickled)
    if name == GGUF:
        parts = sorted(path.name for path in folder.iterdir() if GGUF_PART.fullmatch(path.name))
        return WeightFiles(parts or [GGUF], None, {}, False)
    promised = read_index(folder / name, ".bin" if pickled else ".safetensors")
    return WeightFiles(sorted(set(promised.values())), name, promised, pickled)


def read_index(path: Path, suffix: str) -> dict[str, str]:
    """Tensor to file, as an index says it. Raises UnusableModel."""
    try:
        weight_map = json.loads(read_text(path))["weight_map"]
        if not weight_map or not all(isinstance(x, str) for pair in weight_map.items() for x in pair):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableModel(f"{path.name}: no weight_map from tensor names to file names") from error
    for file in weight_map.values():
        if Path(file).name != file or not file.endswith(suffix):
            raise UnusableModel(f"{path.name}: {file!r} is not the name of a {suffix[1:]} file beside it")
    return dict(weight_map)


def catalogue(folder: Path, files: WeightFiles) -> Contents:
    """Every tensor of the safetensors `files`, by name. Raises UnusableModel.

    Finds files that are missing, cut short or unsound, and what they hold beside the tensors that the index gives to them.
    """
    check_present(folder, files)
    headers: dict[str, dict[str, Stored]] = {}
    broken: list[str] = []
    for name in files.names:
        try:
            headers[name] = read_header(folder / name)
        except UnusableModel as error:
            broken.append(str(error))
    if broken:
        raise UnusableModel(listed(broken, 3, "; "))
    every = [(tensor, stored) for header in headers.values() for tensor, stored in header.items()]
    return sort_out(files, every)


def sort_out(files: WeightFiles, every: Iterable[tuple[str, Stored]]) -> Contents:
    """Of all that the files hold, what the index gives to each of them."""
    found = Contents(files, {}, {})
    for tensor, stored in every:
        if files.gives(tensor, stored.file):
            found.stored[tensor] = stored
        else:
            found.left_out.setdefault(tensor, stored.file)
    return found


def check_present(folder: Path, files: WeightFiles) -> None:
    """Raises UnusableModel, naming the weight files that are not there or are no files."""
    absent = [name for name in files.names if not (folder / name).exists()]
    if absent:
        raise UnusableModel(f"{files.source}: {counted(absent, 'file')} missing: {listed(absent)}")
    for name in files.names:
        mode = (folder / name).stat().st_mode
        if not stat.S_ISREG(mode):
            raise UnusableModel(f"{folder / name}: {kind_of(mode)}, not a file")


def read_header(path: Path) -> dict[str, Stored]:
    """What a safetensors file holds. Raises UnusableModel when it is unsound, or shorter than it says.

    https://huggingface.co/docs/safetensors: eight bytes with the length of a JSON header, the header, the data.
    """
    name = path.name

    def unsound(why: object) -> UnusableModel:
        return UnusableModel(f"{name}: not a sound safetensors file: {' '.join(str(why).split())[:300]}")

    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            seen: set[str] = set()
            twice.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return entries

    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            instead = impostor(start + file.read(200))
            if instead is not None:
                raise UnusableModel(f"{name}: {instead}")
            if len(start) < 8:
                raise unsound(f"it has {size} bytes")
            file.seek(8)
            length = struct.unpack("<Q", start)[0]
            if length > LONGEST_HEADER:
                raise unsound("its header would be too long")
            if 8 + length > size:
                raise unsound(f"it is cut short: {size} bytes, and its header alone has {length}")
            header = json.loads(file.read(length), object_pairs_hook=unique)
        header.pop("__metadata__", None)
        found = {
            tensor: Stored(
                name,
                str(entry["dtype"]),
                tuple(entry["shape"]),
                8 + length + entry["data_offsets"][0],
                8 + length + entry["data_offsets"][1],
            )
            for tensor, entry in header.items()
        }
        needed = max((stored.end for stored in found.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise unsound(error if isinstance(error, OSError) else "its header cannot be read") from error
    if twice:
        raise UnusableModel(f"{name}: {counted(twice, 'tensor')} in it twice: {listed(twice)}")
    if needed > size:
        raise unsound(f"it is cut short: {size} bytes of {needed}")
    try:
        # The format's other rules: offsets without holes, sizes as shapes say, nothing after the end.
        safe_open(path, framework="np").__exit__(None, None, None)  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError, ValueError) as error:
        raise unsound(error) from error
    return found


def counted(things: Collection[object], what: str) -> str:
    """`1 file is`, `3 files are`."""
    return f"1 {what} is" if len(things) == 1 else f"{len(things)} {what}s are"


def listed(things: Iterable[str], most: int = SHOWN, between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    every = list(things)
    more = f"{between}and {len(every) - most} more" if len(every) > most else ""
    return between.join(every[:most]) + more


def gigabytes(count: float) -> str:
    """For people: 1.2 GB, 13.0 MB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
