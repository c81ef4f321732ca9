"""The last position that a model was made for, for each way in which families know positions."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import LENGTH, Reference, ids, make
from test_families import LIMITS, in_pieces, prefill, ragged

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from launched import Launched

# No multiple of what groups of keys are rounded up to.
LONGEST = 2100
SHAPES = {
    "MPT": {"max_seq_len": LONGEST, "n_layers": 1},
    "OPT": {"max_position_embeddings": LONGEST},
    "Phi 4": {"max_position_embeddings": LONGEST},
}


# Linear biases have no end. What the model was made for, and where transformers is told so: its MPT computes no more.
SHORT = 40
ENDLESS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "BLOOM": ({"seq_length": SHORT}, {}),
    "MPT": ({"max_seq_len": SHORT}, {"max_seq_len": LENGTH}),
    "Falcon-RW (ALiBi)": ({"max_position_embeddings": SHORT}, {}),
}


@pytest.mark.parametrize("family", ENDLESS)
def test_linear_biases_go_on_beyond_what_the_model_was_made_for(family: str, tmp_path: Path) -> None:
    from driver import Driver

    made_for, theirs = ENDLESS[family]
    config = FAMILIES[family] | made_for
    folder = make(tmp_path, config | theirs)
    sequences = [ids(199, 1), ids(199, 2, 90)]
    reference = Reference(folder, sequences)
    (folder / "config.json").write_text(json.dumps(config))
    driver = Driver(folder, torch.float32, **LIMITS)
    shape: Any = driver.engine.model.config
    assert shape.max_positions == SHORT and shape.positions_go_on
    prefill(driver, reference, sequences, torch.float32)
    in_pieces(driver, reference, sequences, torch.float32)
    ragged(driver, reference, sequences, torch.float32)


def test_more_than_the_model_was_made_for_is_served_with_one_warning(tmp_path: Path) -> None:
    config = FAMILIES["BLOOM"] | {"seq_length": SHORT, "vocab_size": 4096}
    folder = make(tmp_path / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    flags = ("--model-id", str(folder), "--max-total-tokens", "160")
    with Launched(tmp_path / "run", *flags) as launched:
        launched.wait_ready()
        body = {"inputs": "A penstock is", "parameters": {"max_new_tokens": 100, "details": True}}
        reply = wire.post(launched.address, "/generate", body)
        assert reply.status == 200, reply.text
        assert reply.json()["details"]["generated_tokens"] == 100
        assert launched.log().count(f"this model was made for {SHORT} positions") == 1


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
