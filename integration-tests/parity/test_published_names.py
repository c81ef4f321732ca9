"""A recipe asks for the tensors that published checkpoints have, by their names, and leaves none of them over."""

import math
import re

import pytest
from published_names import INDEXES, kind_of_name
from quoted import QUOTED

from penstock.loading.checkpoint import Checkpoint
from penstock.loading.model_files import Stored
from penstock.models.recipes import load_from
from penstock_kernels import tensors
from penstock_kernels.tensors import Dtype, Tensor


class Names(Checkpoint):
    """A checkpoint of which names are known and no shapes: what is asked for has the shape that is asked for. Nothing can be read of it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.dtype = tensors.bfloat16
        self.is_rehearsal, self.gives_back = True, False
        self.torch_device = None
        self.bytes_made = 0
        self.names = frozenset(names)
        self.asked: dict[str, tuple[int, ...]] = {}
        self.ignored = re.compile("")

    @property
    def stored(self) -> dict[str, Stored]:
        return {}

    def has(self, name: str) -> bool:
        return name in self.names or kind_of_name(name) in self.names

    def is_copy(self, name: str, of: str, shape: tuple[int, ...]) -> bool:
        return True

    def fill(
        self,
        into: Tensor,
        name: str,
        shape: tuple[int, ...],
        rows: list[slice] | None = None,
        columns: list[slice] | None = None,
    ) -> None:
        self.asked[name] = shape

    def _accepts(self, name: str, shape: tuple[int, ...], wanted: Dtype) -> bool:
        self.asked[name] = shape
        return True

    def check_all_used(self, ignored: re.Pattern[str]) -> None:
        self.ignored = ignored


@pytest.mark.tail
@pytest.mark.parametrize("index", INDEXES)
def test_a_recipe_asks_for_the_names_of_a_published_checkpoint(index: str) -> None:
    published = INDEXES[index]
    checkpoint = Names(published.names)
    load_from(published.whole_config(), checkpoint)
    asked = {kind_of_name(name) for name in checkpoint.asked}
    left = [name for name in published.names if name not in asked and name not in checkpoint.asked]
    left = [name for name in left if not checkpoint.ignored.fullmatch(name.replace("{}", "0"))]
    assert not left, "no recipe reads them or says why it need not"
    if published.is_whole:
        missing = sorted(asked - checkpoint.names)
        assert not missing, "the published checkpoint has no such tensors"
    if published.parameters is not None:
        assert sum(map(math.prod, checkpoint.asked.values())) == published.parameters


def test_names_are_of_quoted_models_and_say_where_they_were_found() -> None:
    for published in INDEXES.values():
        assert published.config in QUOTED
        assert re.fullmatch(r"[\w./-]+/[\w.-]+: \S.*", published.found_in), published.found_in
        assert len(set(published.names)) == len(published.names)
