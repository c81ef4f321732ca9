"""DeepSeek V4 with the rates and the window that are published, over texts that outgrow them: transformers' numbers however a text
is cut, and the same to the last bit where that is promised.
"""

from pathlib import Path
from typing import Any

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from families import FAMILIES
from models import Reference, ids, make
from test_families import blocks

torch.set_num_threads(1)

PUBLISHED: dict[str, Any] = {
    **{name: value for name, value in FAMILIES["DeepSeek V4"].items() if name != "compress_rate_hca"},
    "sliding_window": 128,
    "index_topk": 40,
    # As published, a multiple of what a processor computes at once: libraries compute what is left over otherwise.
    "moe_intermediate_size": 64,
}
LENGTH = 400
LIMITS: dict[str, Any] = {"max_slots": 8, "max_step_tokens": 900, "max_sequence_tokens": 512, "blocks": 200}
# A token before the first entry of 128 and one behind it, pieces within a window, one of several windows, and decodes.
PIECES = (3, 124, 2, 50, 131, 1, 1, 1, 1, 60, *[1] * 26)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model"), PUBLISHED)


def row(*arguments: Any, **fields: Any) -> dict[str, Any]:
    from client import row

    return row(*arguments, **fields)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_rates_give_what_transformers_gives(folder: Path, dtype: torch.dtype) -> None:
    from driver import Driver

    assert sum(PIECES) == LENGTH
    text = ids(199, 1, LENGTH)
    reference = Reference(folder, [text])
    driver = Driver(folder, dtype, **LIMITS)
    whole = driver.all_logits(
        [row(0, text, 0, blocks(LENGTH, 0), start={}, targets=[1] * LENGTH, sample=False)]
    )
    for position, logits_V in enumerate(whole):
        reference.check(logits_V, 0, position, dtype)
    position = 0
    for count in PIECES:
        new = blocks(LENGTH, 30) if position == 0 else []
        driver.step(
            [row(1, text[position : position + count], position, new, start=None if position else {})]
        )
        position += count
        reference.check(driver.last_logits()[0], 0, position - 1, dtype)


@pytest.mark.parametrize(
    ("dtype", "deterministic"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]
)
def test_a_text_is_the_same_to_the_last_bit_wherever_it_is_cut(
    folder: Path, dtype: torch.dtype, deterministic: bool
) -> None:
    from driver import Driver

    text, other = ids(199, 1, 200), ids(199, 2, 150)
    driver = Driver(folder, dtype, deterministic=deterministic, **LIMITS)
    saves = [(48, 0), (128, 1), (131, 2)]
    driver.step([row(0, text, 0, blocks(200, 0), start={}, saves=saves)])
    whole = driver.last_logits()[0]
    # Cut by a step, with another text beside it, whose pieces come to lie before and behind.
    for cut in (1, 5, 63, 127, 128, 129, 130, 199):
        driver.begin()
        fresh = blocks(200, 20)
        driver.step(
            [
                row(1, text[:cut], 0, fresh, start={}),
                row(2, other[: 150 - cut // 2], 0, blocks(150, 40), start={}),
            ]
        )
        driver.step([row(2, [7], 150 - cut // 2), row(1, text[cut:], cut)])
        assert torch.equal(driver.last_logits()[1], whole), f"cut at {cut}"
    # From what a prefix left: whole blocks of it, and a state that was kept on the way.
    for snapshot, cached in ((0, 48), (1, 128)):
        driver.begin()
        driver.step([row(0, text, 0, blocks(200, 0), start={}, saves=saves)])
        shared = [*range(cached // 16), *blocks(200 - cached, 60)]
        driver.step([row(3, text[cached:], cached, shared, start={"state_source": snapshot})])
        assert torch.equal(driver.last_logits()[0], whole), f"behind {cached} tokens"


def test_texts_that_are_decoded_together_do_not_see_each_other(folder: Path) -> None:
    """In one step some finish an entry of 4 tokens, some one of 128, and some none."""
    from driver import Driver

    lengths = (1, 3, 4, 126, 127, 128, 255, 260)
    texts = [ids(199, 10 + at, length + 4) for at, length in enumerate(lengths)]
    driver = Driver(folder, torch.float32, **LIMITS)
    alone = []
    for text, length in zip(texts, lengths, strict=True):
        driver.begin()
        driver.step([row(0, text[:length], 0, blocks(300, 0), start={})])
        for at in range(length, length + 4):
            driver.step([row(0, [text[at]], at)])
        alone.append(driver.last_logits()[0])
    driver.begin()
    for slot, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        driver.step([row(slot, text[:length], 0, blocks(length + 4, 20 * slot), start={})])
    for at in range(4):
        driver.step(
            [row(slot, [texts[slot][length + at]], length + at) for slot, length in enumerate(lengths)]
        )
    for got, wanted in zip(driver.last_logits(), alone, strict=True):
        assert torch.equal(got, wanted)
