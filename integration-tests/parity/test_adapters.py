"""A model with an adapter beside it computes what transformers computes with the adapter merged into its weights, whichever family, on torch and on
the CPU engine, beside other adapters and none; and what adapters cannot change is refused by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, vocabulary_of
from models import LENGTH, Reference, ids, make
from ranks import Ranks
from test_families import DEVICE, DTYPES, LIMITS, blocks

from adapted import adapter
from penstock.models import recipes
from penstock.models.config import DecoderConfig

torch.set_num_threads(1)

NUMBERS = 8  # of tokens that are decoded one by one

SERVED = [name for name in FAMILIES if isinstance(recipes.read_config(FAMILIES[name]), DecoderConfig)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks of one group."""
    with Ranks(tmp_path_factory.mktemp("group"), shards=2) as pair:
        yield pair


def check(driver: Any, references: dict[int, Reference], sequence: list[int], dtype: torch.dtype) -> None:
    """Of each adapter, 0 for none, logits of a prompt in two pieces and of tokens one by one, all of them in one batch."""
    from client import row

    cut, end = 37, LENGTH - NUMBERS
    places = {number: blocks(LENGTH, 10 * slot) for slot, number in enumerate(references)}
    slots = {number: slot for slot, number in enumerate(references)}

    def step(begin: int, stop: int, starts: bool) -> None:
        driver.step(
            [
                row(
                    slots[number],
                    sequence[begin:stop],
                    begin,
                    places[number] if starts else [],
                    start={"adapter": number} if starts else None,
                )
                for number in references
            ]
        )
        for logits_V, reference in zip(driver.last_logits(), references.values(), strict=True):
            reference.check(logits_V, 0, stop - 1, dtype)

    step(0, cut, True)
    step(cut, end, False)
    for position in range(end, LENGTH):
        step(position, position + 1, False)


@pytest.mark.few(12)
@pytest.mark.parametrize("family", SERVED)
def test_a_family_with_an_adapter_computes_what_it_computes_merged(
    family: str, tmp_path: Path, pair: Ranks
) -> None:
    from driver import Driver

    config = FAMILIES[family]
    model = make(tmp_path / "model", config)
    one, merged = adapter(tmp_path / "one", model, rank=4, seed=5)
    other, other_merged = adapter(tmp_path / "other", model, rank=8, seed=6)
    sequence = ids(vocabulary_of(config), 1)
    references = {
        number: Reference(folder, [sequence])
        for number, folder in ((1, merged), (0, model), (2, other_merged))
    }
    apart = (references[0].exact[0] - references[1].exact[0]).norm() / references[0].exact[0].norm()
    assert apart > 0.2, float(apart)
    options: dict[str, Any] = {**LIMITS, "adapters": [("one", str(one)), ("other", str(other))]}
    for dtype in DTYPES.values():
        check(Driver(model, dtype, **options), references, sequence, dtype)
    if DEVICE == "cpu":
        check(pair.driver(model, torch.float32, **options), references, sequence, torch.float32)
