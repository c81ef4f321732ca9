"""Tensors on the host in numpy, with torch's words: what a model's weights are from the file to what runs them.

A loader reads, joins, reorders and now and then scales them; none of that needs torch, and the CPU engine needs nothing else. What torch
runs is handed over by `in_torch`, on a CPU as the same memory. Only the words that loading uses are here, and each does what torch
does: numbers of bf16 and fp16 are computed in fp32 and rounded to the nearest. To a type checker they are torch's own, so that one loader
can be written for both. Must not import torch.

A tensor of a *rehearsal* has a shape and a dtype, and no numbers: what is made of it has none, and nothing is written to it.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

HostArray = npt.NDArray[Any]
__all__ = [
    "Dtype",
    "HostArray",
    "Tensor",
    "are_finite",
    "as_dtype",
    "bfloat16",
    "boolean",
    "cat",
    "empty",
    "float16",
    "float32",
    "float64",
    "held_as",
    "host",
    "in_torch",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_rehearsed",
    "is_tensor",
    "of",
    "of_memory",
    "of_torch",
    "ones",
    "pad",
    "roll",
    "rounded_to_bf16",
    "softplus",
    "split",
    "stack",
    "tensor",
    "uint8",
    "zeros",
]

AT_ONCE = 1 << 16
ALIGNMENT = 64  # of what is made: the CPU engine's tiles begin with a cache line


if TYPE_CHECKING:
    from torch import (
        Tensor,
        bfloat16,
        cat,
        float16,
        float32,
        float64,
        int8,
        int16,
        int32,
        int64,
        ones,
        roll,
        split,
        stack,
        tensor,
        uint8,
        zeros,
    )
    from torch import bool as boolean
    from torch import dtype as Dtype
    from torch.nn.functional import pad, softplus
else:

    @dataclass(frozen=True)
    class Dtype:
        """Of a tensor's numbers: those of bf16 are whole numbers of 16 bits to numpy."""

        name: str
        array: str
        """What numpy holds them as."""
        computed: str
        """What they are computed in."""
        is_floating_point: bool = False

        @property
        def itemsize(self) -> int:
            """Bytes of a number."""
            return np.dtype(self.array).itemsize

        def __str__(self) -> str:
            return self.name

    float64 = Dtype("float64", "f8", "f8", True)
    float32 = Dtype("float32", "f4", "f4", True)
    bfloat16 = Dtype("bfloat16", "u2", "f4", True)
    float16 = Dtype("float16", "f2", "f4", True)
    int64, int32, int16 = Dtype("int64", "i8", "i8"), Dtype("int32", "i4", "i4"), Dtype("int16", "i2", "i2")
    int8, uint8 = Dtype("int8", "i1", "i1"), Dtype("uint8", "u1", "u1")
    boolean = Dtype("bool", "?", "?")

    class Tensor:
        """See the module. `array` is numpy's view of the same memory; of a rehearsal, one number for all."""

        __slots__ = ("array", "dtype", "is_rehearsed", "torch")

        def __init__(self, array: HostArray, dtype: Dtype, is_rehearsed: bool = False) -> None:
            self.array, self.dtype, self.is_rehearsed = array, dtype, is_rehearsed
            self.torch: Any = None

        # What it is.

        @property
        def shape(self) -> tuple[int, ...]:
            return self.array.shape

        def __len__(self) -> int:
            return len(self.array)

        def dim(self) -> int:
            return self.array.ndim

        def numel(self) -> int:
            return math.prod(self.array.shape)

        @property
        def nbytes(self) -> int:
            return self.numel() * self.dtype.itemsize

        def element_size(self) -> int:
            return self.dtype.itemsize

        def stride(self, dimension: int | None = None) -> Any:
            steps = tuple(step // self.array.itemsize for step in self.array.strides)
            return steps if dimension is None else steps[dimension]

        def data_ptr(self) -> int:
            address: int = self.array.__array_interface__["data"][0]
            return address

        def is_contiguous(self) -> bool:
            return self.is_rehearsed or bool(self.array.flags.c_contiguous)

        def __float__(self) -> float:
            return float(self._wide().item())

        def __int__(self) -> int:
            return int(self._wide().item())

        def tolist(self) -> Any:
            return self._wide().tolist()

        def __iter__(self) -> Iterator["Tensor"]:
            return (self[index] for index in range(len(self)))

        def __repr__(self) -> str:
            return f"Tensor({list(self.shape)}, {self.dtype})"

        # The same numbers in another shape.

        def _seen(self, array: HostArray) -> "Tensor":
            return Tensor(array, self.dtype, self.is_rehearsed)

        def view(self, *shape: Any) -> "Tensor":
            """In another shape, in the same memory; or, of a dtype, the same memory as its numbers."""
            if len(shape) == 1 and isinstance(shape[0], Dtype):
                return Tensor(self.array.view(shape[0].array), shape[0], self.is_rehearsed)
            made = self.reshape(*shape)
            assert self.is_rehearsed or not made.numel() or np.shares_memory(made.array, self.array), (
                "no view"
            )
            return made

        def reshape(self, *shape: Any) -> "Tensor":
            return self._seen(self.array.reshape(*shape))

        def flatten(self, first: int = 0, last: int = -1) -> "Tensor":
            shape = self.shape
            first, last = first % len(shape), last % len(shape)
            return self.reshape(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])

        def unflatten(self, dimension: int, sizes: Sequence[int]) -> "Tensor":
            shape = self.shape
            at = dimension % len(shape)
            return self.reshape(*shape[:at], *sizes, *shape[at + 1 :])

        def squeeze(self, dimension: int) -> "Tensor":
            return self._seen(self.array.squeeze(dimension))

        def unsqueeze(self, dimension: int) -> "Tensor":
            return self._seen(np.expand_dims(self.array, dimension))

        def t(self) -> "Tensor":
            return self._seen(self.array.T)

        def transpose(self, one: int, other: int) -> "Tensor":
            return self._seen(self.array.swapaxes(one, other))

        def permute(self, *dimensions: int) -> "Tensor":
            return self._seen(self.array.transpose(*dimensions))

        def narrow(self, dimension: int, begin: int, count: int) -> "Tensor":
            return self[(*[slice(None)] * (dimension % self.dim()), slice(begin, begin + count))]

        def chunk(self, count: int, dimension: int = 0) -> list["Tensor"]:
            return split(self, -(-self.shape[dimension] // count), dimension)

        def __getitem__(self, key: Any) -> "Tensor":
            parts = key if isinstance(key, tuple) else (key,)
            if self.is_rehearsed and any(isinstance(part, list) for part in parts):
                return self._picked(parts)
            found = self.array[key]
            return self._seen(np.asarray(found, self.array.dtype))

        def _picked(self, parts: tuple[Any, ...]) -> "Tensor":
            """Of a rehearsal, what slices and one list of places pick: numpy would copy it, into memory that a rehearsal does not have."""
            (at,) = (index for index, part in enumerate(parts) if isinstance(part, list))
            assert all(isinstance(part, slice) for part in parts[:at])
            before, behind = parts[:at], parts[at + 1 :]
            shape = list(self.array[(*before, slice(None), *behind)].shape)
            shape[at] = len(parts[at])
            return empty(tuple(shape), self.dtype, is_rehearsed=True)

        # The same numbers elsewhere.

        def contiguous(self) -> "Tensor":
            return self if self.is_contiguous() else self.clone()

        def clone(self) -> "Tensor":
            made = self.new_empty(self.shape)
            return made.copy_(self)

        def new_empty(self, shape: Sequence[int], dtype: Dtype | None = None) -> "Tensor":
            return empty(tuple(shape), dtype or self.dtype, is_rehearsed=self.is_rehearsed)

        def new_zeros(self, shape: Sequence[int], dtype: Dtype | None = None) -> "Tensor":
            return self.new_empty(shape, dtype).zero_()

        def to(self, dtype: Dtype) -> "Tensor":
            if dtype == self.dtype:
                return self
            return empty(self.shape, dtype, is_rehearsed=self.is_rehearsed).copy_(self)

        def float(self) -> "Tensor":
            return self.to(float32)

        def double(self) -> "Tensor":
            return self.to(float64)

        def bfloat16(self) -> "Tensor":
            return self.to(bfloat16)

        # Written in place.

        def __setitem__(self, key: Any, value: Any) -> None:
            if not self.is_rehearsed:
                made = value.to(self.dtype) if isinstance(value, Tensor) else tensor(value, dtype=self.dtype)
                self.array[key] = made.array

        def copy_(self, other: "Tensor") -> "Tensor":
            if self.is_rehearsed:
                np.broadcast_shapes(self.shape, other.shape)
            elif self.dtype == other.dtype:
                np.copyto(self.array, other.array)
            elif self.dtype == bfloat16:
                rounded_to_bf16(other._wide().astype(np.float32, copy=False), self.array)
            elif other.dtype == bfloat16:
                np.copyto(self.array, other._wide(), casting="unsafe")
            else:
                with np.errstate(over="ignore"):
                    np.copyto(self.array, other.array, casting="unsafe")
            return self

        def fill_(self, number: Any) -> "Tensor":
            if not self.is_rehearsed:
                self.array[...] = tensor(number, dtype=self.dtype).array
            return self

        def zero_(self) -> "Tensor":
            if not self.is_rehearsed:
                self.array[...] = 0
            return self

        def exp_(self) -> "Tensor":
            return self.copy_(self.exp())

        def neg_(self) -> "Tensor":
            return self.copy_(-self)

        def mul_(self, other: Any) -> "Tensor":
            return self.copy_(self * other)

        def __iadd__(self, other: Any) -> "Tensor":
            return self.copy_(self + other)

        # Computed.

        def _wide(self) -> HostArray:
            """In what they are computed in."""
            if self.dtype == bfloat16:
                return (self.array.astype(np.uint32) << np.uint32(16)).view(np.float32)
            return self.array.astype(self.dtype.computed, copy=False)

        def _computed(self, function: Any, *others: Any) -> "Tensor":
            """The function of the numbers, rounded to this dtype or to the widest of the others'."""
            tensors = [self, *(other for other in others if isinstance(other, Tensor))]
            dtype = max((one.dtype for one in tensors), key=lambda one: (one.is_floating_point, one.itemsize))
            if self.is_rehearsed:
                shape = np.broadcast_shapes(*(one.shape for one in tensors))
                return empty(shape, dtype, is_rehearsed=True)
            # A number takes the tensor's precision, as torch has it.
            given = [one._wide() if isinstance(one, Tensor) else one for one in (self, *others)]
            return of(function(*given), dtype)

        def __add__(self, other: Any) -> "Tensor":
            return self._computed(np.add, other)

        def __sub__(self, other: Any) -> "Tensor":
            return self._computed(np.subtract, other)

        def __mul__(self, other: Any) -> "Tensor":
            return self._computed(np.multiply, other)

        def __truediv__(self, other: Any) -> "Tensor":
            return self._computed(np.true_divide, other)

        __radd__, __rmul__ = __add__, __mul__

        def __neg__(self) -> "Tensor":
            return self._computed(np.negative)

        def exp(self) -> "Tensor":
            return self._computed(np.exp)

        def sum(self, dimension: int) -> "Tensor":
            """Over a dimension."""
            if self.is_rehearsed:
                return self[(*[slice(None)] * dimension, 0)]
            return of(self._wide().sum(dimension), self.dtype)

        def count_nonzero(self) -> int:
            return int(np.count_nonzero(self._wide()))

    def split(whole: Tensor, sizes: int | Sequence[int], dimension: int = 0) -> list[Tensor]:
        """Its parts along a dimension, as views: of these sizes, or each of this one."""
        total = whole.shape[dimension]
        if isinstance(sizes, int):
            sizes = [min(sizes, total - at) for at in range(0, total, sizes)]
        assert sum(sizes) == total, f"{sizes} are not {total}"
        ends = np.cumsum(sizes).tolist()
        return [whole.narrow(dimension, end - size, size) for end, size in zip(ends, sizes, strict=True)]

    def cat(parts: Sequence[Tensor], dimension: int = 0) -> Tensor:
        """One behind the other along a dimension."""
        first, at = parts[0], dimension % parts[0].dim()
        shape = list(first.shape)
        sizes = [part.shape[at] for part in parts]
        shape[at] = sum(sizes)
        made = first.new_empty(shape)
        for into, part in zip(split(made, sizes, at), parts, strict=True):
            assert part.shape[:at] == first.shape[:at] and part.shape[at + 1 :] == first.shape[at + 1 :]
            into.copy_(part)
        return made

    def stack(parts: Sequence[Tensor], dimension: int = 0) -> Tensor:
        """Along a new dimension."""
        return cat([part.unsqueeze(dimension) for part in parts], dimension)

    def zeros(*shape: Any, dtype: Dtype = float32) -> Tensor:
        """All 0."""
        shape = shape[0] if isinstance(shape[0], Sequence) else shape
        return empty(tuple(shape), dtype).zero_()

    def ones(shape: Sequence[int], dtype: Dtype = float32) -> Tensor:
        """All 1."""
        return empty(tuple(shape), dtype).fill_(1)

    def tensor(numbers: Any, dtype: Dtype | None = None) -> Tensor:
        """Of numbers, or lists of them."""
        array = np.asarray(numbers)
        if dtype is None:
            dtype = float32 if array.dtype.kind == "f" else boolean if array.dtype.kind == "b" else int64
        return of(array, dtype)

    def roll(whole: Tensor, by: int, dimension: int) -> Tensor:
        """Turned around along a dimension."""
        return whole._seen(np.roll(whole.array, by, dimension))

    def pad(whole: Tensor, more: Sequence[int]) -> Tensor:
        """With zeros: (before, behind) in the last dimension, then in the one before it."""
        pairs = [(more[at], more[at + 1]) for at in range(0, len(more), 2)][::-1]
        return whole._seen(np.pad(whole.array, [(0, 0)] * (whole.dim() - len(pairs)) + pairs))

    def softplus(whole: Tensor) -> Tensor:
        """log(1 + e^x), and x itself above 20, as torch has it."""
        return whole._computed(lambda x: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))))


def empty(shape: tuple[int, ...], dtype: Any, *, is_rehearsed: bool = False) -> Tensor:
    """Memory for numbers, aligned; of a rehearsal no memory."""
    if is_rehearsed:
        return of_memory(np.broadcast_to(np.zeros((), np.uint8), shape), dtype, is_rehearsed=True)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.__array_interface__["data"][0] % ALIGNMENT
    return of_memory(memory[begin : begin + size].view(held_as(dtype)).reshape(shape), dtype)


def of_memory(array: HostArray, dtype: Any, *, is_rehearsed: bool = False) -> Tensor:
    """The tensor in this memory, which numpy sees as such numbers."""
    made: Any = Tensor
    tensor: Tensor = made(array, dtype, is_rehearsed)
    return tensor


def of(numbers: Any, dtype: Any) -> Tensor:
    """A tensor of numbers that numpy has, rounded to this dtype."""
    array = np.asarray(numbers)
    made = empty(array.shape, dtype)
    if dtype == bfloat16:
        rounded_to_bf16(np.asarray(array, np.float32), host(made))
    else:
        np.copyto(host(made), array, casting="unsafe")
    return made


def as_dtype(dtype: Any) -> Dtype:
    """One of torch's as this module's; or by its name."""
    name = str(dtype).removeprefix("torch.")
    found: Dtype = boolean if name == "bool" else globals()[name]
    return found


def held_as(dtype: Any) -> str:
    """What numpy holds such numbers as."""
    name: str = dtype.array
    return name


def host(tensor: Tensor) -> HostArray:
    """Numpy's view of a tensor: bf16 as whole numbers."""
    array: HostArray = tensor.array  # type: ignore[attr-defined]
    return array


def is_rehearsed(tensor: Tensor) -> bool:
    """Whether it has no numbers."""
    known: bool = tensor.is_rehearsed  # type: ignore[attr-defined]
    return known


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor, of this module or of torch."""
    if isinstance(value, Tensor):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def rounded_to_bf16(numbers: npt.NDArray[np.float32], into: HostArray) -> None:
    """The nearest of bf16, of two as near the even one, as whole numbers of 16 bits. What is no number stays none."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    wrong = np.isnan(numbers)
    if wrong.any():
        rounded[wrong] = 0x7FC0
    np.copyto(into, rounded, casting="unsafe")


def are_finite(tensor: Tensor) -> bool:
    """Whether none of its numbers is infinite or none; whole numbers are."""
    if not tensor.dtype.is_floating_point:
        return True
    array = host(tensor)
    exponent = {2: 0x7F80 if tensor.dtype == bfloat16 else 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}
    kind = np.dtype(f"u{array.itemsize}")
    mask = kind.type(exponent[array.itemsize])
    bits = array.view(kind)
    if not bits.flags.c_contiguous:
        return not bits.size or (bits & mask).max() != mask
    bits = bits.reshape(-1)
    # In pieces that stay in the processor's caches, in the same memory.
    exponents = np.empty(min(AT_ONCE, bits.size), kind)
    for begin in range(0, bits.size, AT_ONCE):
        some = bits[begin : begin + AT_ONCE]
        if np.bitwise_and(some, mask, out=exponents[: some.size]).max() == mask:
            return False
    return True


def in_torch(tensor: Any, device: Any = "cpu") -> Tensor:
    """As torch's: on a CPU in the same memory. The same one whenever it is asked for; torch's own is what it is."""
    if not isinstance(tensor, Tensor):
        return tensor  # type: ignore[no-any-return]
    known: Any = tensor
    if known.torch is None:
        import torch

        is_bf16 = known.dtype == bfloat16
        if known.is_rehearsed:
            made = torch.empty(known.shape, dtype=getattr(torch, known.dtype.name), device="meta")
        else:
            made = torch.from_numpy(known.array.view(np.int16) if is_bf16 else known.array)
            made = (made.view(torch.bfloat16) if is_bf16 else made).to(device)
        known.torch = made
    return known.torch  # type: ignore[no-any-return]


def of_torch(tensor: Any) -> Tensor:
    """The same memory, of one of torch's on a CPU."""
    import torch

    is_bf16 = tensor.dtype == torch.bfloat16
    array = (tensor.detach().view(torch.int16) if is_bf16 else tensor.detach()).numpy()
    return of_memory(array.view(np.uint16) if is_bf16 else array, as_dtype(tensor.dtype))
