"""Makes a model's folder of an adapter and its base model: `python -m penstock.adapters.merging ADAPTER BASE`.

Run by the launcher, before any worker, where `--model-id` names an adapter alone. The folder has links to the base model's files, the adapter's tokenizer where it
has one, and a link to the adapter, which the worker merges while it reads the weights (`merged`). Nothing of the weights is written. Writes JSON lines to standard output, as
`penstock.hub.tokenizer` does: log lines, and as the last one `{"folder": folder}` or `{"failed": one line for the user}`. Must not import torch.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.adapters import config, merged
from penstock.adapters.names import without_text
from penstock.adapters.reading import PREFIX, digest_of
from penstock.errors import UnusableModel
from penstock.hub import made_folder
from penstock.hub.request import write
from penstock.hub.tokenizer import SOURCES
from penstock.loading.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    read_header,
    read_json,
    whole_and_text,
    why_no_adapter_weights,
)

FIELD = "penstock_merged_adapter"
"""In config.json, the adapter's digest: of what goes by the configuration nothing is the base model's."""
# All that says how text becomes tokens; of one of both, or they contradict each other.
TOKENIZER = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    *(name for names in SOURCES for name in names),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.adapters.merging",
        description="Makes a model's folder of an adapter and its base model.",
    )
    parser.add_argument("adapter", type=Path, help="its folder")
    parser.add_argument("base", type=Path, help="the base model's folder")
    parser.add_argument("--cache-dir", type=Path, help="[default: as HF_HOME says]")
    arguments = parser.parse_args()
    try:
        folder = obtain(arguments.adapter.absolute(), arguments.base.absolute(), arguments.cache_dir)
    except (UnusableModel, OSError) as failure:
        write(failed=f"{arguments.adapter}: {failure}")
        return 1
    write(folder=str(folder))
    return 0


def obtain(adapter: Path, base: Path, cache: Path | None) -> Path:
    """The folder, from the cache or made now. Raises UnusableModel and OSError."""
    fields = read_json(adapter, ADAPTER)
    if fields is None:
        raise UnusableModel(f"no {ADAPTER}")
    config.parse(fields, is_merged=True)
    if not (adapter / ADAPTER_WEIGHTS).exists():
        raise UnusableModel(why_no_adapter_weights(os.listdir(adapter)))
    digest = digest_of(adapter)
    names = sorted(path.name for path in base.iterdir())
    made_of = f"{base.resolve()}\0{adapter.resolve()}\0{digest}\0{names}\0{(base / CONFIG).read_text(encoding='utf-8')}"
    name = f"{adapter.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"

    def fill(folder: Path) -> None:
        _fill(folder, adapter, base, digest)

    folder, was_there = made_folder.obtain(cache, "merged", name, fill)
    how = "found" if was_there else "made"
    write(
        level="INFO", message=f"the adapter is merged into {base} while the weights are read: {how} {folder}"
    )
    return folder


def _fill(folder: Path, adapter: Path, base: Path, digest: str) -> None:
    brings_tokenizer = any(
        all((adapter / one).is_file() for one in names) for names in (("tokenizer.json",), *SOURCES)
    )
    for source, wanted in ((base, not brings_tokenizer), (adapter, brings_tokenizer)):
        for file in source.iterdir():
            is_tokenizer = file.name in TOKENIZER
            if (is_tokenizer and wanted) or (
                not is_tokenizer and source is base and file.name not in (CONFIG, ADAPTER)
            ):
                (folder / file.name).symlink_to(file)
    (folder / merged.FOLDER).symlink_to(adapter)
    said = read_json(base, CONFIG)
    if said is None:
        raise UnusableModel(f"{base}: no {CONFIG}")
    _take_vocabulary(said, adapter)
    said[FIELD] = digest
    (folder / CONFIG).write_text(json.dumps(said, indent=2), encoding="utf-8")


def _take_vocabulary(said: dict[str, Any], adapter: Path) -> None:
    """An adapter whose training has added tokens has embeddings with more rows."""
    stored = read_header(adapter / ADAPTER_WEIGHTS)
    for name, one in stored.items():
        whole = without_text(merged.INNER.sub("", name.removeprefix(PREFIX)))
        if whole in merged.EMBEDDINGS and len(one.shape) == 2:
            for part in whole_and_text(said):
                if "vocab_size" in part:
                    part["vocab_size"] = one.shape[0]


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
