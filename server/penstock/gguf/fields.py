"""Fields of a GGUF file's metadata, and what is wrong with one in a line. Must not import torch."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UnusableModel
from penstock.gguf.container import Header

ARCHITECTURE = "general.architecture"


class Fields:
    """The metadata of one architecture. Every method raises UnusableModel, naming the field, where it does not hold what is wanted."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = str(header.metadata.get(ARCHITECTURE))

    def has(self, name: str) -> bool:
        """Whether there is such a field of the architecture."""
        return f"{self.architecture}.{name}" in self._header.metadata

    def value(self, name: str) -> Any:
        """What it holds; None: there is none."""
        return self._header.metadata.get(f"{self.architecture}.{name}")

    def count(self, name: str, default: int | None = None, least: int = 0) -> int:
        """A whole number, this or more; of a list that has it for each layer, in all layers the same."""
        value = self.value(name)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        if value is None:
            value = default
        if type(value) is not int or not least <= value < 1 << 31:
            raise self.wrong(
                name,
                "it has to be a whole number"
                + (", the same in all layers" if isinstance(value, list) else ""),
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.value(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "it has to be a number")
        return as_written(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "it has to be true or false")
        return value

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with a value for each layer; None: there is none."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            raise self.wrong(name, f"it has to be a list of {layers}")
        return value[:layers]

    def counts(self, name: str, layers: int, default: int) -> list[int]:
        """Of each layer a whole number, which the file may say once for all of them."""
        value = self.value(name)
        if not isinstance(value, list):
            return [self.count(name, default)] * layers
        if len(value) < layers or not all(type(one) is int and 0 <= one < 1 << 31 for one in value):
            raise self.wrong(name, f"it has to be a list of {layers} whole numbers")
        return value[:layers]

    def layers(self) -> int:
        """How many there are. A file has at least one tensor for each."""
        count = self.count("block_count", least=1)
        if count > len(self._header.tensors):
            raise self.wrong("block_count", f"there are {len(self._header.tensors)} tensors")
        return count

    def wrong(self, name: str, why: str) -> UnusableModel:
        """What to raise over a field."""
        shown = repr(self.value(name))
        return UnusableModel(
            f"{self.architecture}.{name} is {shown if len(shown) <= 80 else shown[:77] + '...'}, and {why}"
        )

    def rows_of(self, tensor: str) -> int:
        """Of a tensor that every model has."""
        stored = self._header.tensors.get(tensor)
        if stored is None:
            raise UnusableModel(f"there is no tensor {tensor}")
        return stored.shape[0]

    def numbers(self, tensor: str) -> npt.NDArray[np.float32] | None:
        """Of a small tensor of fp32; None: there is none."""
        stored = self._header.tensors.get(tensor)
        if stored is None:
            return None
        if stored.dtype != "F32":
            raise UnusableModel(f"the tensor {tensor} is of {stored.dtype}, and F32 is read")
        with (self._header.folder / stored.file).open("rb") as file:
            file.seek(stored.begin)
            return np.frombuffer(file.read(stored.end - stored.begin), np.float32)

    def has_tensor(self, name: str) -> bool:
        """Whether the file holds it."""
        return name in self._header.tensors


def as_written(value: float) -> float:
    """The shortest decimal number that fp32 rounds to this one, which it was before: 0.00001 and not 9.999999747378752e-06."""
    if isinstance(value, int):
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if _fp32(short) == _fp32(value):
            return short
    return value


def _fp32(value: float) -> float:
    return float(np.float32(value))
