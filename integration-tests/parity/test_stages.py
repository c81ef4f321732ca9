"""A model of every family whose layers are divided over two stages computes what it computes in one. What was seen is
a column of docs/models.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, vocabulary_of
from models import Reference, ids, make
from page import PAGE, saw
from ranks import Ranks, RanksDriver
from test_families import DTYPES, LIMITS, greedy, in_pieces, prefix_hit, ragged
from torch import Tensor

# Over two shards in each stage, too.
DIVIDED_TWICE = ("Gemma 3", "GPT-OSS")


@dataclass(frozen=True)
class Made:
    """A model of a family, and what it should compute."""

    folder: Path
    sequences: list[list[int]]
    reference: Reference


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """The models of the tests that run: made before ranks meet, since transformers reads and saves nothing in a
    process that is not rank 0.
    """
    tests = [test for test in request.session.items if test.path == request.path]
    named = [
        str(test.callspec.params["family"])
        for test in tests
        if isinstance(test, pytest.Function) and hasattr(test, "callspec")
    ]
    found = {}
    for family in dict.fromkeys(named):
        folder = make(tmp_path_factory.mktemp("family"), FAMILIES[family])
        vocabulary = vocabulary_of(FAMILIES[family])
        sequences = [ids(vocabulary, 1), ids(vocabulary, 2, 90)]
        reference = Reference(folder, sequences)
        assert len(reference.rounded) == len(sequences)  # computed now
        found[family] = Made(folder, sequences, reference)
    return found


@pytest.fixture(scope="module")
def two_stages(
    request: pytest.FixtureRequest, made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Two stages of so many shards."""
    with Ranks(tmp_path_factory.mktemp("group"), shards=request.param, stages=2) as ranks:
        yield ranks


class Beside:
    """A divided engine and a whole one, which must agree to the last bit."""

    def __init__(self, divided: RanksDriver, whole: Any) -> None:
        self.divided, self.whole = divided, whole

    def begin(self) -> None:
        """A new Run of both."""
        self.divided.begin()
        self.whole.begin()

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> Any:
        """Executes one plan on both."""
        result = self.divided.step(rows, released)
        assert result.sampled == self.whole.step(rows, released).sampled
        return result

    def last_logits(self) -> Tensor:
        """Logits of the rows that sampled."""
        logits_SV = self.divided.last_logits()
        assert torch.equal(logits_SV, self.whole.last_logits())
        return logits_SV


def test_the_page_names_the_families_that_were_divided_twice() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"two shards in each of two stages: {', '.join(DIVIDED_TWICE)}." in text


@pytest.mark.parametrize(
    ("family", "two_stages"),
    [pytest.param(family, 1, marks=() if family == "LLaMA 2" else pytest.mark.tail) for family in FAMILIES]
    + [pytest.param(family, 2, marks=pytest.mark.tail) for family in DIVIDED_TWICE],
    indirect=["two_stages"],
    scope="module",
)
def test_stages_compute_what_one_computes(
    family: str, made: dict[str, Made], two_stages: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driver import Driver

    # Stages run on torch, and so does what they are compared with to the last bit.
    monkeypatch.setenv("PENSTOCK_CPU_ISA", "none")
    shards = two_stages.group.size
    folder, sequences, reference = made[family].folder, made[family].sequences, made[family].reference
    for short, dtype in DTYPES.items():
        divided = two_stages.driver(folder, dtype, **LIMITS)
        config: Any = divided.driver.engine.model.config
        held = [config.layers[at] for at in config.layers_of(two_stages.group)]
        own = [layer for layer in held if layer.keys_of is None]
        assert len(divided.driver.engine.layer_caches) == len(own)
        assert len(held) < config.num_layers
        # The sums of two shards are added in another order.
        driver: Any = divided if shards > 1 else Beside(divided, Driver(folder, dtype, **LIMITS))
        in_pieces(driver, reference, sequences, dtype)
        prefix_hit(driver, reference, sequences, dtype)
        ragged(driver, reference, sequences, dtype)
        if dtype == torch.float32:
            driver.begin()
            greedy(driver, vocabulary_of(FAMILIES[family]))
        if shards == 1:
            saw(family, "PP=2", short)
