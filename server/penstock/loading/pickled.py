"""Opens pickled weights (pytorch_model.bin), which only torch's restricted reader may see.

Used by `penstock.loading.tensor_reader`, after the user's consent. The reader knows tensors and plain containers and
runs no code that a file names.
"""

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import UnusableModel


def read(path: Path) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a file, and whether they are mapped, not read: torch 1.6 and later write such files.

    Raises UnusableModel.
    """
    mapped = zipfile.is_zipfile(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        OSError,
        EOFError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        # What torch says goes on with how to switch the restriction off.
        why = " ".join(str(error).split()).partition(". ")[0]
        raise UnusableModel(f"{path.name}: cannot be read as pickled weights: {why[:200]}") from error
    if not isinstance(found, dict):
        raise UnusableModel(f"{path.name}: not a table of tensors by name")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UnusableModel(f"{path.name}: {str(name)[:80]!r} is not the name of a tensor")
    return found, mapped and bool(found)
