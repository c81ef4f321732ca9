"""Drafts of every family: with them a text is the one without, on torch in fp32 and on the CPU engine in bf16. What encoders read has a test of
its own (`test_encoder_decoder_speculation`), models through transformers are in `test_fallback_models`.
"""

from pathlib import Path

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from drafted import same_with_drafts
from families import ENCODERS, FAMILIES, vocabulary_of
from models import make
from recurrent_families import RECURRENT

# Whose state or choice of keys is more than a cache of what was computed.
FIRST = (*RECURRENT, "DeepSeek V4", "DeepSeek V4, other rates", "MiniMax M3")
OTHERS = [family for family in FAMILIES if family not in FIRST and family not in ENCODERS]


@pytest.mark.few(14)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "family", [*FIRST, *(pytest.param(family, marks=pytest.mark.tail) for family in OTHERS)]
)
def test_a_text_is_the_same_with_drafts_right_and_wrong(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    from driver import Driver

    config = FAMILIES[family]
    driver = Driver(make(tmp_path, config), dtype)
    if dtype != torch.float32 and driver.engine.native is None:
        pytest.skip("in bf16 torch's sums depend on the batch")
    same_with_drafts(driver, vocabulary_of(config))
