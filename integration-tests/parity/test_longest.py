"""The last position that a model was made for, for each way in which families know positions."""

from pathlib import Path

import pytest
import torch
from families import FAMILIES
from models import ids, make
from ranks import TESTS  # noqa: F401  (where the driver is)

# No multiple of what groups of keys are rounded up to.
LONGEST = 2100
SHAPES = {
    "MPT": {"max_seq_len": LONGEST, "n_layers": 1},
    "OPT": {"max_position_embeddings": LONGEST},
    "Phi 4": {"max_position_embeddings": LONGEST},
}


@pytest.mark.parametrize("family", SHAPES)
def test_a_sequence_may_be_as_long_as_the_model_was_made_for(family: str, tmp_path: Path) -> None:
    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES[family] | SHAPES[family])
    driver = Driver(
        folder, torch.float32, max_slots=2, max_step_tokens=LONGEST, max_sequence_tokens=LONGEST, blocks=280
    )
    assert driver.engine.model.config.max_positions == LONGEST
    tokens = ids(199, 7, LONGEST)
    blocks = list(range(-(-LONGEST // 16)))
    driver.step([row(0, tokens, 0, blocks, start={})])
    whole = driver.last_logits()
    driver.begin()
    driver.step([row(0, tokens[:-1], 0, blocks, start={}, sample=False)])
    driver.step([row(0, tokens[-1:], LONGEST - 1)])
    torch.testing.assert_close(driver.last_logits(), whole, atol=1e-4, rtol=1e-4)
