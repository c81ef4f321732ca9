"""Makes a model's folder of a GGUF file: `python -m penstock.gguf.unpack FILE`.

Run by the launcher, before any worker, where `--model-id` stands for GGUF files. The folder has config.json, tokenizer.json, tokenizer_config.json and
generation_config.json, and links to the files; the numbers stay where they are. Writes JSON lines to standard output, as `penstock.hub.tokenizer` does: log lines, and as the last
one `{"folder": folder}` or `{"failed": one line for the user}`. Must not import torch.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.gguf import tokenizer
from penstock.gguf.architectures import architecture_of
from penstock.gguf.blocks import BLOCKS
from penstock.gguf.container import Header, parts_of, read_model
from penstock.gguf.names import TOWERS
from penstock.hub import made_folder
from penstock.hub.request import write
from penstock.loading.model_files import CONFIG, GENERATION, GGUF, TOKENIZER

# Of what people put beside a file, in place of what would be made of it.
OWN_TOKENIZER, OWN_TEMPLATE = "tokenizer.json", "chat_template.jinja"
# What is no model, by `general.type` or the architecture.
NO_MODELS = {
    "adapter": "a LoRA adapter in GGUF: load peft's own files of it with --lora-adapters",
    "vocab": "a vocabulary without a model",
    "mmproj": "what reads a model's images, and no model",
    "clip": "what reads a model's images, and no model",
    "imatrix": "a file for llama-quantize, and no model",
}
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.gguf.unpack",
        description="Makes a model's folder of a GGUF file.",
    )
    parser.add_argument("file", type=Path, help="of a model in parts any of them")
    parser.add_argument("--cache-dir", type=Path, help="[default: as HF_HOME says]")
    arguments = parser.parse_args()
    try:
        folder = obtain(arguments.file.absolute(), arguments.cache_dir)
    except UnusableModel as failure:
        write(failed=str(failure))
        return 1
    except OSError as failure:
        write(failed=f"{arguments.file}: {failure}")
        return 1
    write(folder=str(folder))
    return 0


def obtain(file: Path, cache: Path | None) -> Path:
    """The folder, from the cache or made now. Raises UnusableModel and OSError."""
    began = time.monotonic()
    parts = parts_of(file)
    name = f"{file.stem}-{_digest(parts)}"
    folder, was_there = made_folder.obtain(cache, "gguf", name, lambda folder: fill(folder, parts))
    how = "found" if was_there else "made"
    write(level="INFO", message=f"{how} {folder} for {file} in {time.monotonic() - began:.1f} s")
    return folder


def _digest(parts: list[Path]) -> str:
    """Of which files these are, and of all that is made of them: a file that was written anew has another time."""
    seen = hashlib.sha256()
    for module in (Path(__file__).parent).glob("*.py"):
        seen.update(hashlib.sha256(module.read_bytes()).digest())
    for path in (*parts, *(parts[0].parent / name for name in (OWN_TOKENIZER, OWN_TEMPLATE))):
        if path.exists():
            found = path.stat()
            seen.update(f"{path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return seen.hexdigest()[:16]


def fill(folder: Path, parts: list[Path]) -> None:
    """Writes a model's folder. Raises UnusableModel, in a line that begins with the file."""
    header = read_model(parts)
    try:
        files = _files(header, parts[0].parent)
    except UnusableModel as error:
        raise UnusableModel(f"{parts[0].name}: {error}") from error
    for name, content in files.items():
        if isinstance(content, Path):
            (folder / name).symlink_to(content)
        else:
            (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    for number, part in enumerate(parts, 1):
        linked = GGUF if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.gguf"
        (folder / linked).symlink_to(part)


def _files(header: Header, beside: Path) -> dict[str, dict[str, Any] | Path]:
    kind = next(
        (
            str(header.metadata.get(f"general.{one}"))
            for one in ("type", "architecture")
            if str(header.metadata.get(f"general.{one}")) in NO_MODELS
        ),
        None,
    )
    if kind is not None:
        raise UnusableModel(f"it is {NO_MODELS[kind]}")
    config = architecture_of(header).config(header) | _of_numbers(header)
    towers = sum(name.startswith(TOWERS) for name in header.tensors)
    if towers:
        message = (
            f"the file has what reads images or sound beside the model ({towers} tensors): its text is served"
        )
        write(level="WARN", message=message)
    made: dict[str, dict[str, Any] | Path] = {}
    if (beside / OWN_TOKENIZER).exists():
        in_config, ends = tokenizer.config_of(header)
        made[OWN_TOKENIZER] = beside / OWN_TOKENIZER
        write(level="INFO", message=f"the tokenizer is {made[OWN_TOKENIZER]}, which lies beside the file")
    else:
        tokens = tokenizer.make(header)
        in_config, ends = tokens.config, tokens.ends
        made[OWN_TOKENIZER] = tokens.tokenizer
    if (beside / OWN_TEMPLATE).exists():
        in_config.pop("chat_template", None)
        made[OWN_TEMPLATE] = beside / OWN_TEMPLATE
        write(level="INFO", message=f"the chat template is {made[OWN_TEMPLATE]}, which lies beside the file")
    for field in ("bos", "eos", "padding"):
        at = header.metadata.get(f"tokenizer.ggml.{field}_token_id")
        if type(at) is int and at != tokenizer.NO_TOKEN:
            config["pad_token_id" if field == "padding" else f"{field}_token_id"] = at
    sampling = {ours: header.metadata.get(f"general.sampling.{theirs}") for theirs, ours in SAMPLING.items()}
    generation = {
        "eos_token_id": ends,
        **{name: value for name, value in sampling.items() if value is not None},
    }
    return {CONFIG: config, TOKENIZER: in_config, GENERATION: generation, **made}


def _of_numbers(header: Header) -> dict[str, Any]:
    """What config.json says of how numbers are stored."""
    sizes: Counter[str] = Counter()
    for one in header.tensors.values():
        if len(one.shape) > 1:
            sizes[one.dtype] += one.end - one.begin
    types = Counter(one.dtype for one in header.tensors.values() if one.dtype in BLOCKS)
    layers = {
        name: one for name, one in header.tensors.items() if name.startswith("blk.") and len(one.shape) > 1
    }
    in_groups = sum(math.prod(one.shape) for one in layers.values() if one.dtype in quantization.GGUF_GROUPS)
    numbers = sum(math.prod(one.shape) for one in layers.values())
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    made: dict[str, Any] = {"torch_dtype": {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")}
    if types:
        made["quantization_config"] = {
            "quant_method": "gguf",
            "types": dict(types.most_common()),
            "share_in_4_bits": in_groups / max(numbers, 1),
        }
        head = header.tensors.get("output.weight", header.tensors.get("token_embd.weight"))
        if head is not None and head.dtype in BLOCKS:
            made["quantization_config"]["head"] = head.dtype
    return made


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
