"""A small model whose layers have windows in turn, which no recipe of one family has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from driver import Driver
from penstock.models.config import DecoderConfig, Window
from penstock.models.recipes import llama


def windowed(
    windows: tuple[Window | None, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype = torch.float32,
) -> Driver:
    """Writes the model to `folder`, with window i % len(windows) in layer i."""

    def with_windows(config: dict[str, Any]) -> DecoderConfig:
        read = llama.read_config(config)
        return read.with_layers(window=[windows[i % len(windows)] for i in range(read.num_layers)])

    monkeypatch.setattr(llama, "RECIPE", replace(llama.RECIPE, read=with_windows))
    return Driver(checkpoints.write(folder, checkpoints.config()), dtype)
