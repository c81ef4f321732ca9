"""Sequences of 4,000 tokens: what rounding does to a recurrent state does not add up. Every family with a state, fed in uneven
pieces, beside transformers, which reads the whole at once: in fp32 next to it, in bf16 as close to fp32 as transformers is.
"""

from pathlib import Path
from typing import Any

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from families import FAMILIES, vocabulary_of
from models import ids, logits_of, make
from torch import Tensor

from penstock.models.recipes import read_config

torch.set_num_threads(1)

LENGTH = 4000
# Of the spread (standard deviation) of a token's logits.
MOST = 1e-3
# Sizes of pieces, over and over; single tokens are decodes.
PIECES = (1, 700, 64, 1, 1, 333, 1, 16, 512)
LONG = {"max_position_embeddings": 4096, "model_max_length": 4096}
STATEFUL = [
    name
    for name, config in FAMILIES.items()
    if "text_config" not in config and getattr(read_config(config), "has_state", False)
]


@pytest.fixture(
    params=[name if name == "Mamba" else pytest.param(name, marks=pytest.mark.tail) for name in STATEFUL]
)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    config = FAMILIES[request.param]
    return config | {name: value for name, value in LONG.items() if name in config}


def in_pieces(folder: Path, sequence: list[int], dtype: torch.dtype) -> Tensor:
    """Logits (T, V) behind every token."""
    from client import row
    from driver import Driver

    driver = Driver(folder, dtype, max_slots=2, max_step_tokens=1024, max_sequence_tokens=LENGTH, blocks=256)
    position, turn, logits = 0, 0, []
    while position < LENGTH:
        tokens = sequence[position : position + PIECES[turn % len(PIECES)]]
        new = list(range(250)) if position == 0 else []
        start: dict[str, Any] | None = None if position else {}
        if len(tokens) == 1:
            driver.step([row(0, tokens, position, new, start=start)])
            logits.append(driver.last_logits())
        else:
            asked = [1] * len(tokens)
            logits.append(
                driver.all_logits([row(0, tokens, position, new, start=start, sample=False, targets=asked)])
            )
        position, turn = position + len(tokens), turn + 1
    return torch.cat(logits).float()


def test_a_state_does_not_drift(config: dict[str, Any], tmp_path: Path) -> None:
    folder = make(tmp_path, config)
    sequence = ids(vocabulary_of(config), 4, LENGTH)
    (exact_TV,) = logits_of(folder, [sequence], torch.float32)
    ours_TV = in_pieces(folder, sequence, torch.float32)
    worst = float(((ours_TV - exact_TV).abs().amax(-1) / exact_TV.std(-1)).max())
    assert worst <= MOST, f"{worst:.1e} of the spread"

    def error(logits_TV: Tensor) -> float:
        """Of the last quarter, where what adds up is seen; its median, since in a near-tie either takes another expert."""
        errors_T = (logits_TV - exact_TV).norm(dim=-1) / exact_TV.norm(dim=-1)
        return float(errors_T[-LENGTH // 4 :].median())

    theirs = error(logits_of(folder, [sequence], torch.bfloat16)[0])
    ours = error(in_pieces(folder, sequence, torch.bfloat16))
    print(f"drift: fp32 {worst:.1e} of the spread; bf16 {ours:.4f}, transformers {theirs:.4f}")
    assert ours <= 1.2 * theirs, f"relative error {ours:.4f}, of transformers {theirs:.4f}"
