"""Sequences of 4,000 tokens: what rounding does to a recurrent state does not add up. One family for each operation, in fp32,
fed in uneven pieces, and beside transformers, which reads the whole at once.
"""

from pathlib import Path
from typing import Any

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from families import FAMILIES, vocabulary_of
from models import ids, logits_of, make

torch.set_num_threads(1)

LENGTH = 4000
# Of the spread (standard deviation) of a token's logits.
MOST = 1e-3
# Sizes of pieces, over and over; single tokens are decodes.
PIECES = (1, 700, 64, 1, 1, 333, 1, 16, 512)
OF_EACH_OPERATION: dict[str, dict[str, Any]] = {
    "Qwen 3.5": {"max_position_embeddings": 4096},
    "Kimi Linear": {"model_max_length": 4096},
    "Bamba": {"max_position_embeddings": 4096},
    "MiniMax-Text-01": {"max_position_embeddings": 4096},
    "Mamba": {},
    "RecurrentGemma": {},
    "LFM2": {"max_position_embeddings": 4096},
    "Qwen 4": {"max_position_embeddings": 4096},
}


@pytest.mark.parametrize(
    "family",
    [
        family if family == "Mamba" else pytest.param(family, marks=pytest.mark.tail)
        for family in OF_EACH_OPERATION
    ],
)
def test_a_state_does_not_drift(family: str, tmp_path: Path) -> None:
    from client import row
    from driver import Driver

    config = FAMILIES[family] | OF_EACH_OPERATION[family]
    folder = make(tmp_path, config)
    sequence = ids(vocabulary_of(config), 4, LENGTH)
    (wanted_TV,) = logits_of(folder, [sequence], torch.float32)
    driver = Driver(
        folder, torch.float32, max_slots=2, max_step_tokens=1024, max_sequence_tokens=LENGTH, blocks=256
    )
    position, turn, worst = 0, 0, 0.0
    while position < LENGTH:
        tokens = sequence[position : position + PIECES[turn % len(PIECES)]]
        new = list(range(250)) if position == 0 else []
        driver.step([row(0, tokens, position, new, start=None if position else {})])
        position, turn = position + len(tokens), turn + 1
        wanted_V = wanted_TV[position - 1]
        worst = max(worst, float((driver.last_logits()[0] - wanted_V).abs().max() / wanted_V.std()))
    assert worst <= MOST, f"{worst:.1e} of the spread"
