"""What operations of torch hold at once: for tests of what steps are planned to take. On the device "meta" nothing is computed and shapes
are as large as a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
Reference: Any = reductions.StorageWeakRef


class HeldMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, `most` is the most bytes of tensors that were made since and that somebody still had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._given: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation and looks at what it returns."""
        for known in (self._sizes, self._given):
            for key in [key for key, found in known.items() if self._reference(found).expired()]:
                del known[key]
        for given in self._storages((args, kwargs)):
            if given._cdata not in self._sizes:
                self._given[given._cdata] = Reference(given)
        made = func(*args, **(kwargs or {}))
        for storage in self._storages(made):
            if storage._cdata not in self._given and storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = (Reference(storage), storage.nbytes())
        self.most = max(self.most, self.held)
        return made

    @property
    def held(self) -> int:
        """Bytes that somebody has now."""
        return sum(size for reference, size in self._sizes.values() if not reference.expired())

    @staticmethod
    def _reference(found: Any) -> Any:
        return found[0] if isinstance(found, tuple) else found

    @staticmethod
    def _storages(tree: Any) -> list[torch.UntypedStorage]:
        return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def most_held(compute: Callable[..., object], *given: Any) -> int:
    """Of one computation; what it returns counts."""
    held = HeldMemory()
    with held:
        compute(*given)
    return held.most


class Unlaunched:
    """In place of a kernel of Triton's: takes the arguments, and does nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None
