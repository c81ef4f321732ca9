"""The words of a download: what is asked for, what the hub lists of it, how it fails, and the lines that the launcher reads.

Used by every module here, and by who asks: `penstock.download` and the doctor. Must not import torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.file_download import repo_folder_name

# Files that are asked for at once, and how long an answer about one may take.
PARALLEL_FILES = 8
LOOKUP_SECONDS = 20.0


class Unavailable(Exception):
    """The model or adapter cannot be had; the text is one line for the user."""


class NoRoom(Unavailable):
    """The disk has none for what is to be fetched."""


class AdapterAlone(Unavailable):
    """It is an adapter and no model, which is to be merged into its base model."""


class GgufAlone(Unavailable):
    """It has models in GGUF files, of which one is to be chosen."""


class TransferFailed(Exception):
    """Something has answered, and not with what was asked for."""


@dataclass(frozen=True)
class Request:
    repo: str
    revision: str | None
    cache: Path
    bar: bool = False
    trusted: bool = False  # the user has agreed to pickled weights and to the repository's code
    weights: bool = True  # this machine reads them; else other hosts do, and only the rest is wanted
    adapter: bool = False  # it is a LoRA adapter, and no model
    merged: bool = False  # and it is merged into its base model, whose tokenizer may be the adapter's then
    gguf: str | None = None  # which of its models in GGUF files: a tag, a file, "" for the usual one

    @property
    def called(self) -> str:
        """What it is, in errors."""
        return f"the {'adapter' if self.adapter else 'model'} {self.repo}"

    @property
    def storage(self) -> Path:
        """Where the cache keeps this repository."""
        return self.cache / repo_folder_name(repo_id=self.repo, repo_type="model")


@dataclass(frozen=True)
class Listing:
    """What the hub has: a commit, its files with their sizes in bytes and what the cache calls their content, where the hub says
    that, and the task that it names for the model, if it does.
    """

    commit: str
    sizes: dict[str, int]
    blobs: dict[str, str]
    pipeline_tag: str | None = None


@dataclass(frozen=True)
class Begun:
    """A snapshot with all but the weights."""

    listing: Listing
    folder: Path
    weights: list[str]
    pickled: bool

    @property
    def left(self) -> list[str]:
        """Weight files that are not there yet."""
        return [name for name in self.weights if not (self.folder / name).exists()]


def write(**line: Any) -> None:
    print(json.dumps(line) + "\n", end="", flush=True)  # in one piece: several threads write
