"""What Prepare measures: steps that its budget allows, and those without which nothing is known."""

from pathlib import Path

import pytest
import torch

import checkpoints
from penstock.engine import preparation
from penstock.engine.engine import Engine
from penstock.loading.checks import check_folder
from penstock.proto import penstock_pb2 as pb


def test_a_dynamic_rotary_table_is_stretched_as_far_as_its_factor_and_only_if_asked(tmp_path: Path) -> None:
    config = checkpoints.config(
        max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    )
    folder = checkpoints.write(tmp_path, config)

    def prepared(longest: int) -> int:
        engine = Engine(check_folder(folder), folder, torch.float32, torch.device("cpu"))
        request = pb.PrepareRequest(max_slots=2, max_step_tokens=32, max_sequence_tokens=longest)
        request.max_cache_tokens, request.memory_fraction = 512, 0.9
        preparation.prepare(engine, request)
        return engine.limits.max_sequence_tokens

    assert prepared(0) == 64 and prepared(256) == 256
    with pytest.raises(ValueError, match="max_sequence_tokens is 257, and the model was made for 256"):
        prepared(257)


def test_steps_of_several_tokens_are_measured_however_slow_a_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "WARM_UP_SECONDS", 0.0)
    fitted: list[set[int]] = []
    fit = preparation._fit

    def seen(measured: list[tuple[int, int, float]]) -> pb.CostModel:
        fitted.append({tokens for tokens, _, _ in measured})
        return fit(measured)

    monkeypatch.setattr(preparation, "_fit", seen)
    folder = checkpoints.write(tmp_path, checkpoints.config())
    engine = Engine(check_folder(folder), folder, torch.bfloat16, torch.device("cpu"))
    preparation.prepare(
        engine,
        pb.PrepareRequest(max_slots=8, max_step_tokens=64, max_sequence_tokens=64, memory_fraction=0.5),
    )
    assert fitted == [{1, 8}], "what a token costs cannot be told from steps of one"
