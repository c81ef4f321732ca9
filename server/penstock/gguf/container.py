"""Reads what a GGUF file says before its numbers: metadata, and where each tensor lies. Must not import torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.loading.model_files import Stored


@dataclass(frozen=True)
class Header:
    """Of a model's file, or of all parts of one that is in several."""

    metadata: dict[str, Any]
    """Numbers, strings, booleans, and lists of these."""
    tensors: dict[str, Stored]
    """By the names that the file has. Shapes have the outermost dimension first, as safetensors has them. `dtype`: of plain numbers as
    safetensors calls it (F32, F16, BF16, ...), of blocks as ggml does (Q4_K, IQ4_XS, MXFP4, ...)."""


def read_header(file: Path) -> Header:
    """Of one file. Raises UnusableModel."""
    raise NotImplementedError
