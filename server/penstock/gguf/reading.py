"""The tensors of a GGUF model by the names that recipes ask for, and their numbers. Called by `penstock.loading`. Must not import torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UnusableModel
from penstock.gguf.architectures import architecture_of
from penstock.gguf.blocks import BLOCKS, U8
from penstock.gguf.container import PLAIN_BYTES, read_model
from penstock.gguf.layout import F32, Made, Part
from penstock.gguf.names import IN_LAYER, TOWERS
from penstock.loading.model_files import CONFIG, Contents, Stored, WeightFiles, check_present, read_json
from penstock_kernels import tensors

FLOATS = {"F64": tensors.float64, "F32": tensors.float32, "BF16": tensors.bfloat16, "F16": tensors.float16}
# What files hold whose numbers are not as they are asked for.
ARRANGED = "GGUF"
WAY_OUT = "a file of the same model in Q8_0, a K type, IQ4 or BF16 is"

# Bytes of a file, by its name.
Bytes = Callable[[str], U8]


@dataclass(frozen=True)
class Arranged:
    """A tensor whose numbers are in blocks, in another order, or changed."""

    codes: str
    """Its name, as others have it that are decoded."""
    shape: tuple[int, ...]
    made_of: Part | Made
    stored: dict[str, Stored]
    """Of the file's tensors that it is made of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors that it is."""
        return (self.codes,)

    def decoded(self, bytes_of: Bytes, rows: slice, columns: slice) -> F32:
        """These of the first dimension and these of the last one, in fp32, from `bytes_of` a file."""
        if isinstance(self.made_of, Made):
            some = rows if self.made_of.is_stack else None
            parts = [_numbers(self.stored[name], bytes_of, some, None) for name in self.made_of.parts]
            whole = self.made_of.make(*parts)
            if self.made_of.is_stack:
                return np.ascontiguousarray(whole[..., columns])
            return np.ascontiguousarray(whole[rows] if whole.ndim == 1 else whole[rows, ..., columns])
        part = self.made_of
        stored = self.stored[part.tensor]
        chosen: slice | npt.NDArray[np.int64] = rows
        if part.row_order is not None:
            chosen = part.row_order[rows]
        elif part.rows is not None:
            chosen = slice(rows.start + part.rows.start, rows.stop + part.rows.start)
        across = columns if part.column_order is None and len(self.shape) > 1 else None
        made = _numbers(stored, bytes_of, chosen, across)
        if part.column_order is not None:
            made = np.ascontiguousarray(made[..., part.column_order[columns]])
        made = made if part.change is None else part.change(made)
        return made.reshape(len(made), *self.shape[1:-1], -1) if len(self.shape) > 1 else made


def _numbers(
    stored: Stored, bytes_of: Bytes, rows: slice | npt.NDArray[np.int64] | None, columns: slice | None
) -> F32:
    """Of a tensor of the file these of the first dimension and these of the last one; None: all."""
    *leading, width = stored.shape
    raw = bytes_of(stored.file)[stored.begin : stored.end].reshape(*leading, -1)
    block = BLOCKS.get(stored.dtype)
    size, per = (PLAIN_BYTES[stored.dtype], 1) if block is None else (block.bytes, block.numbers)
    if not leading:  # a vector, whose rows are its numbers
        assert block is None, "blocks are parts of rows"
        whole = _plain(raw, stored.dtype)
        return whole if rows is None else np.ascontiguousarray(whole[rows])
    taken = raw if rows is None else raw[rows]
    columns = columns or slice(0, width)
    begin, end = columns.start // per, -(-columns.stop // per)
    taken = taken[..., begin * size : end * size]
    shape = taken.shape[:-1]
    flat = taken.reshape(math.prod(shape), -1)
    made = _plain(flat, stored.dtype) if block is None else block.decode(flat)
    cut = made[:, columns.start - begin * per : columns.stop - begin * per]
    return cut.reshape(*shape, columns.stop - columns.start)


def _plain(raw: U8, dtype: str) -> F32:
    numbers: F32 = tensors.host(
        tensors.of_memory(np.ascontiguousarray(raw), tensors.uint8).view(FLOATS[dtype]).float()
    )
    return numbers


def catalogue(folder: Path, files: WeightFiles) -> Contents:
    """Every tensor of a model's folder that was made of GGUF files. Raises UnusableModel."""
    check_present(folder, files)
    header = read_model([folder / name for name in files.names])
    found = Contents(files, {}, {})
    architecture = architecture_of(header)
    config = read_json(folder, CONFIG) or {}
    # Layers behind the last one guess more tokens than the next, which is not done here.
    of_model = {name: one for name, one in header.tensors.items() if not _is_behind(name, config)}
    layout = architecture.layout(replace(header, tensors=of_model), config)
    used: set[str] = set()
    for name, made_of in layout.items():
        parts = (made_of.tensor,) if isinstance(made_of, Part) else made_of.parts
        absent = [part for part in parts if part not in of_model]
        if absent:
            raise UnusableModel(f"{files.source}: no tensor {absent[0]}, of which {name} is made")
        used.update(parts)
        stored = {part: of_model[part] for part in parts}
        for part, one in stored.items():
            if one.dtype not in BLOCKS and one.dtype not in FLOATS:
                raise UnusableModel(
                    f"{one.file}: {part[:200]!r} is of {one.dtype}, which is not read; {WAY_OUT}"
                )
        if isinstance(made_of, Part) and made_of.place is not None:
            stored = {made_of.tensor: _place(stored[made_of.tensor], made_of.place)}
        arranged = Arranged(name, made_of.shape, made_of, stored)
        as_it_is = _as_it_is(arranged)
        if as_it_is is not None:
            found.stored[name] = as_it_is
        else:
            found.stored[name] = replace(stored[parts[0]], dtype=ARRANGED, shape=made_of.shape)
            found.arranged[name] = arranged
    unread = architecture.names.unread
    found.stored.update(
        (name, one)
        for name, one in of_model.items()
        if name not in used and name not in unread and not name.startswith(TOWERS)
    )
    return found


def _is_behind(name: str, config: dict[str, Any]) -> bool:
    at = IN_LAYER.match(name)
    return at is not None and int(at[1]) >= config.get("num_hidden_layers", 0)


def _place(stored: Stored, place: int) -> Stored:
    """One of a stack."""
    size = (stored.end - stored.begin) // stored.shape[0]
    begin = stored.begin + place * size
    return Stored(stored.file, stored.dtype, stored.shape[1:], begin, begin + size)


def _as_it_is(arranged: Arranged) -> Stored | None:
    """Where a tensor lies that is stored as it is asked for."""
    part = arranged.made_of
    if not isinstance(part, Part) or any(
        one is not None for one in (part.rows, part.row_order, part.column_order, part.change)
    ):
        return None
    stored = arranged.stored[part.tensor]
    return stored if stored.dtype in FLOATS and stored.shape == part.shape else None
