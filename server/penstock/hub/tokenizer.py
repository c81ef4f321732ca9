"""Makes a tokenizer.json for a model that has only older files: `python -m penstock.hub.tokenizer FOLDER`.

Run by the launcher, before any worker, when the model's folder has no tokenizer.json. transformers does the
conversion, of tekken.json with what `tekken` adds; of tiktoken.model it is `kimi`'s. Code of the model's repository is never run. The result is kept in
a cache, named by the content of what it was made of, since the model's folder may be read-only. Writes JSON lines to standard output: log lines
with `level` and `message`, and as the last one `{"tokenizer": file}` or `{"failed": one line for the user}`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from penstock.hub import kimi, tekken

# Each set alone is enough to make a tokenizer of.
SOURCES = (
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    (tekken.FILE,),
    (kimi.FILE,),
)
# What else has a say in it.
CONFIGURATION = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

# And what of our own has.
CODE = (Path(__file__), Path(tekken.__file__), Path(kimi.__file__))

# What classes have as their default: fields of tokenizer_config.json. InternLM's are in the code of repositories, which is not run; of the
# others transformers 5 documents it, and converts as if it were false.
SAID_BY_CODE = {
    "InternLM2Tokenizer": {"add_bos_token": True},
    "InternLM3Tokenizer": {"add_bos_token": True},
    "LlamaTokenizer": {"add_bos_token": True},
    "GemmaTokenizer": {"add_bos_token": True},
}
# The class where no file names one, by config.json's `model_type`, as in transformers 4.
USUAL_CLASS = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), "LlamaTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
}

# Of tiktoken's files but Moonshot's (Qwen 1, Hunyuan, GLM-4 9B as first published).
NOT_SAID = "how it cuts words is said by code of the repository only, which is not run; add a tokenizer.json"


class Unconvertible(Exception):
    """There is no tokenizer to be had; the text is one line for the user."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.hub.tokenizer",
        description="Makes a tokenizer.json of a model's older files.",
    )
    parser.add_argument("folder", type=Path, help="of the model")
    parser.add_argument("--cache-dir", type=Path, help="[default: as HF_HOME says]")
    arguments = parser.parse_args()
    # What the libraries have to say is no line of the protocol.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        file = obtain(arguments.folder, arguments.cache_dir)
    except Unconvertible as failure:
        write(failed=str(failure))
        return 1
    write(tokenizer=str(file))
    return 0


def write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def obtain(folder: Path, cache: Path | None) -> Path:
    """The tokenizer.json, from the cache or made now. Raises Unconvertible."""
    sources = sources_of(folder)
    if not sources:
        known = ", ".join(" with ".join(names) for names in SOURCES)
        why = why_none(os.listdir(folder) if folder.is_dir() else ())
        raise Unconvertible(f"{folder} has no tokenizer.json, and none of {known} to make one of{why}")
    places = [place_in(cache), Path(tempfile.gettempdir()) / f"penstock-tokenizers-{os.getuid()}"]
    name = digest(folder)
    for place in places:
        file = place / name / "tokenizer.json"
        if is_ours(file):
            write(level="INFO", message=f"using the tokenizer that was made of {sources} before: {file}")
            return file
    began = time.monotonic()
    text = convert(folder, sources)
    failure: OSError | None = None
    for place in places:
        file = place / name / "tokenizer.json"
        try:
            put(file, text)
        except OSError as error:
            failure = error
            continue
        seconds = time.monotonic() - began
        write(level="INFO", message=f"made a tokenizer.json of {sources} in {seconds:.1f} s: {file}")
        return file
    raise Unconvertible(f"the converted tokenizer cannot be written into {places[0]}: {failure}")


def sources_of(folder: Path) -> str:
    """The files that a tokenizer can be made of, for people."""
    for names in SOURCES:
        if all((folder / name).is_file() for name in names):
            return " and ".join(names)
    return ""


def why_none(names: Collection[str]) -> str:
    """What is there in place of files that a tokenizer can be made of, and the way out, as the end of a line; empty where that is not known. The
    launcher says it of a folder in the same words.
    """
    other = min((name for name in names if name.endswith(".tiktoken")), default=None)
    return f"; {other} is not read: {NOT_SAID}" if other else ""


def place_in(cache: Path | None) -> Path:
    if cache is None:
        from huggingface_hub import constants

        return Path(constants.HF_HOME).expanduser() / "penstock" / "tokenizers"
    return cache.expanduser().absolute() / "penstock-tokenizers"


def digest(folder: Path) -> str:
    """Of everything that the conversion depends on."""
    from importlib.metadata import version

    seen = hashlib.sha256(f"{version('transformers')} {version('tokenizers')}".encode())
    for file in CODE:
        seen.update(hashlib.sha256(file.read_bytes()).digest())
    for name in [*(name for names in SOURCES for name in names), *CONFIGURATION]:
        file = folder / name
        if file.is_file():  # no FIFO, no device
            seen.update(f"\0{name}\0{file.stat().st_size}\0".encode())
            seen.update(file.read_bytes())
    return seen.hexdigest()[:32]


def convert(folder: Path, sources: str) -> str:
    """The text of a tokenizer.json. Raises Unconvertible."""
    from transformers import AutoTokenizer

    try:
        if sources == tekken.FILE:
            return tekken.convert(folder / sources)
        if sources == kimi.FILE:
            return kimi.convert(folder)
        if sources == "tokenizer.model" and kimi.is_ranks(folder / sources):
            raise ValueError(f"it is a file of tiktoken's, not SentencePiece's: {NOT_SAID}")
        tokenizer = AutoTokenizer.from_pretrained(
            folder, use_fast=True, trust_remote_code=False, local_files_only=True, **said_by_code(folder)
        )
    except Exception as error:  # transformers raises nearly anything for files that it cannot read
        reason = " ".join(str(error).split()) or type(error).__name__
        if "trust_remote_code" in reason or "execute" in reason:
            reason = "it needs code from the model's repository, which Penstock does not run"
        raise Unconvertible(f"no tokenizer can be made of {sources} in {folder}: {reason[:300]}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise Unconvertible(
            f"no tokenizer can be made of {sources} in {folder}: {type(tokenizer).__name__} has no fast form"
        )
    text: str = backend.to_str()
    return text


def said_by_code(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json leaves to its class. Raises OSError and ValueError."""
    config, model = (object_in(folder / name) for name in ("tokenizer_config.json", "config.json"))
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    name = str(named or USUAL_CLASS.get(str(model.get("model_type")))).removesuffix("Fast")
    return {field: value for field, value in SAID_BY_CODE.get(name, {}).items() if config.get(field) is None}


def object_in(file: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none. Raises OSError and ValueError."""
    value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return value if isinstance(value, dict) else {}


def is_ours(file: Path) -> bool:
    """Whether a file was put there by this user."""
    try:
        found = file.lstat()
        check_private(file.parent.parent)
        check_private(file.parent)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def check_private(folder: Path) -> None:
    """Raises OSError for a folder below the system's one for temporary files that is not this user's alone. Everyone
    writes there, and may have been first, with a link that leads anywhere.
    """
    found = folder.lstat()
    if not folder.is_relative_to(tempfile.gettempdir()):
        return  # where the operator said, or the user's own
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def put(file: Path, text: str) -> None:
    """Whole or not at all, also when two servers start at once. Raises OSError."""
    for folder in (file.parent.parent, file.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_private(folder)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as partial:
        partial.write(text)
    Path(partial.name).replace(file)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
