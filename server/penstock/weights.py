"""Reads safetensors checkpoints, one file or sharded, and says in one line what is wrong with them.

Called by recipes, which say which tensors they want, in which shape. Never reads pickled weights.
"""

import json
import math
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.errors import UnusableModel

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Checkpoint:
    """The tensors of a model folder, by name. Every tensor's file, shape and dtype is checked before use."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._used: dict[str, int] = {}
        index = folder / "model.safetensors.index.json"
        if (folder / "model.safetensors").is_file():
            self._open("model.safetensors")
        elif index.is_file():
            self._open_shards(index)
        else:
            other = [p.name for p in sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))]
            hint = f" (pickled weights such as {other[0]} are not loaded)" if other else ""
            raise UnusableModel(f"{folder}: no model.safetensors and no model.safetensors.index.json{hint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def _open(self, name: str) -> list[str]:
        path = self.folder / name
        try:
            file = safe_open(path, framework="pt")
            names: list[str] = file.keys()  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError, ValueError) as error:
            raise UnusableModel(f"{name}: not a sound safetensors file: {_one_line(error)}") from error
        for tensor in names:
            if tensor in self._file_of:
                raise UnusableModel(f"{name}: tensor {tensor} is also in {self._file_of[tensor]}")
            self._file_of[tensor] = name
        self._files[name] = file
        return names

    def _open_shards(self, index: Path) -> None:
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            assert isinstance(weight_map, dict)
            assert all(isinstance(k, str) and isinstance(v, str) for k, v in weight_map.items())
        except (OSError, ValueError, KeyError, TypeError, AssertionError, RecursionError) as error:
            raise UnusableModel(f"{index.name}: no weight_map from tensor names to file names") from error
        shards = sorted(set(weight_map.values()))
        for shard in shards:
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise UnusableModel(
                    f"{index.name}: {shard!r} is not the name of a safetensors file beside it"
                )
            if not (self.folder / shard).is_file():
                raise UnusableModel(f"{index.name}: {shard} is missing")
        for shard in shards:
            for tensor in self._open(shard):
                if weight_map.get(tensor) != shard:
                    raise UnusableModel(f"{index.name}: does not list tensor {tensor} of {shard}")
        for tensor, shard in weight_map.items():
            if tensor not in self._file_of:
                raise UnusableModel(f"{shard}: lacks tensor {tensor}, which {index.name} lists")

    def rows(self, parts: list[tuple[str, tuple[int, ...]]]) -> Tensor:
        """One new tensor of the named ones, each of the shape given, one below the other."""
        total = sum(shape[0] for _, shape in parts)
        views = [self._checked(name, shape) for name, shape in parts]
        result = torch.empty((total, *parts[0][1][1:]), dtype=self.dtype)
        begin = 0
        for (name, shape), view in zip(parts, views, strict=True):
            try:
                result[begin : begin + shape[0]].copy_(view[:])
            except (SafetensorError, OSError, ValueError) as error:
                raise UnusableModel(f"{self._file_of[name]}: tensor {name}: {_one_line(error)}") from error
            begin += shape[0]
        return result.to(self.device)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name."""
        return name in self._file_of

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks a tensor that another rank reads."""
        self._checked(name, shape)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors that were asked for, by whichever rank."""
        return sum(self._used.values())

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None = None,
        columns: list[slice] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """A new tensor of these ranges of its first and of its last dimension, in this order; None: all of it.

        `shape` is that of the whole tensor in the file. Reads nothing else from the disk.
        """
        view = self._checked(name, shape)
        try:
            parts = [view[some] for some in ([slice(0, shape[0])] if rows is None else rows)]
            parts = parts or [view[:0]]
            if columns is not None:
                parts = [torch.cat([part[..., some] for some in columns], -1) for part in parts]
        except (SafetensorError, OSError, ValueError) as error:
            raise UnusableModel(f"{self._file_of[name]}: tensor {name}: {_one_line(error)}") from error
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.to(self.device, dtype or self.dtype, copy=True).contiguous()

    def _checked(self, name: str, shape: tuple[int, ...]) -> Any:
        if name not in self._file_of:
            raise UnusableModel(f"{self._source()}: lacks tensor {name}")
        file = self._file_of[name]
        view = self._files[file].get_slice(name)
        if view.get_dtype() not in DTYPES:
            raise UnusableModel(
                f"{file}: tensor {name} has the dtype {view.get_dtype()}; supported: {', '.join(DTYPES)}"
            )
        if tuple(view.get_shape()) != shape:
            raise UnusableModel(
                f"{file}: tensor {name} has the shape {list(view.get_shape())}; config.json asks for {list(shape)}"
            )
        self._used[name] = math.prod(shape)
        return view

    def check_all_used(self, ignored: re.Pattern[str]) -> None:
        """Refuses tensors that no part of the model asked for: the model would not be what it seems."""
        for name, file in self._file_of.items():
            if name not in self._used and not ignored.fullmatch(name):
                raise UnusableModel(
                    f"{file}: tensor {name} has no place in the model that config.json describes"
                )

    def _source(self) -> str:
        return "model.safetensors" if len(self._files) == 1 else "model.safetensors.index.json"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
