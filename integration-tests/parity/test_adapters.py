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
from test_families import DEVICE, LIMITS, blocks

from adapted import adapter, random_pairs, write
from penstock.errors import UnusableModel
from penstock.models import recipes
from penstock.models.config import DecoderConfig

torch.set_num_threads(1)

NUMBERS = 8  # of tokens that are decoded one by one
FAR = 5  # of 100 tokens

# Falcon-H1's weights are multiplied as they are read.
SERVED = [
    name
    for name in FAMILIES
    if isinstance(recipes.read_config(FAMILIES[name]), DecoderConfig) and name != "Falcon-H1"
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks of one group."""
    with Ranks(tmp_path_factory.mktemp("group"), shards=2) as pair:
        yield pair


def check(driver: Any, references: dict[int, Reference], sequence: list[int]) -> None:
    """Of each adapter, 0 for none, logits of a prompt in two pieces and of tokens one by one, all of them in one batch."""
    from client import row

    def step(begin: int, stop: int) -> None:
        rows = []
        for slot, number in enumerate(references):
            new = [] if begin else blocks(LENGTH, 10 * slot)
            start = None if begin else {"adapter": number}
            rows.append(row(slot, sequence[begin:stop], begin, new, start=start))
        driver.step(rows)
        for logits_V, reference in zip(driver.last_logits(), references.values(), strict=True):
            reference.check(logits_V, 0, stop - 1, torch.float32)

    step(0, 37)
    step(37, LENGTH - NUMBERS)
    for position in range(LENGTH - NUMBERS, LENGTH):
        step(position, position + 1)


def check_rounded(driver: Any, references: dict[int, Reference], sequence: list[int]) -> None:
    """In bf16 logits are as close to the exact ones as transformers' are. Of a model with experts that is asked of a tenth of the tokens: a router may
    send one elsewhere for the last bit, which all that attend to it are told. Of others none is much farther off than transformers' farthest.
    """
    from client import row

    for slot, (number, reference) in enumerate(references.items()):
        places, targets = blocks(LENGTH, 10 * slot), [1] * LENGTH
        ours = driver.all_logits(
            [row(slot, sequence, 0, places, start={"adapter": number}, sample=False, targets=targets)]
        )
        exact = reference.exact[0]
        theirs_T, ours_T = (
            (made - exact).norm(dim=-1) / exact.norm(dim=-1) for made in (reference.rounded[0], ours.float())
        )
        has_experts = "expert" in (reference.folder / "config.json").read_text()
        share = 0.1 if has_experts else 0.5
        assert ours_T.quantile(share) <= 1.5 * theirs_T.quantile(share), number
        if not has_experts:
            assert (ours_T > 1.5 * theirs_T.max()).sum() <= FAR, number


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
    assert apart > 0.1, float(apart)
    options: dict[str, Any] = {**LIMITS, "adapters": [("one", str(one)), ("other", str(other))]}
    check(Driver(model, torch.float32, **options), references, sequence)
    check_rounded(Driver(model, torch.bfloat16, **options), references, sequence)
    if DEVICE == "cpu":
        check(pair.driver(model, torch.float32, **options), references, sequence)
        check_rounded(pair.driver(model, torch.bfloat16, **options), references, sequence)


def test_a_family_that_scales_its_weights_has_no_adapters(tmp_path: Path) -> None:
    from driver import Driver

    model = make(tmp_path / "model", FAMILIES["Falcon-H1"])
    name = "model.layers.0.self_attn.q_proj"
    at = write(tmp_path / "adapter", random_pairs({name: (8, 8)}, 4, 0))
    with pytest.raises(UnusableModel, match=rf"changes what adapters cannot change in this model: {name}\."):
        Driver(model, torch.float32, adapters=[("mine", str(at))])


def test_stages_have_the_adapters_of_their_layers(tmp_path: Path) -> None:
    family = "LLaMA 2"
    model = make(tmp_path / "model", FAMILIES[family])
    one, merged = adapter(tmp_path / "one", model, rank=4, seed=5)
    sequence = ids(vocabulary_of(FAMILIES[family]), 1)
    references = {number: Reference(folder, [sequence]) for number, folder in ((1, merged), (0, model))}
    with Ranks(tmp_path, stages=2) as stages:
        driver = stages.driver(model, torch.float32, **LIMITS, adapters=[("one", str(one))])
        check(driver, references, sequence)
