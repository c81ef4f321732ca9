"""What Prepare measures: steps that its budget allows, and those without which nothing is known."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import checkpoints
import test_recurrent
from penstock.engine import preparation
from penstock.engine.cache_size import GIB, SHORTEST_CONTEXT, longest_that_fits, spare
from penstock.engine.engine import Engine
from penstock.engine.step_memory import engine_working_bytes
from penstock.errors import TooLittleMemory
from penstock.loading.checks import check_folder
from penstock.loading.memory import Room
from penstock.models.packed_cache import PackedCache
from penstock.parallel.group import TensorGroup
from penstock.proto import penstock_pb2 as pb


def served_length(folder: Path, longest: int) -> int:
    """The longest sequence that is served where so much is asked for; 0: nothing."""
    engine = Engine(check_folder(folder), folder, torch.float32, torch.device("cpu"))
    request = pb.PrepareRequest(max_slots=2, max_step_tokens=32, max_sequence_tokens=longest)
    request.max_cache_tokens, request.memory_fraction = 512, 0.9
    preparation.prepare(engine, request)
    return engine.limits.max_sequence_tokens


def test_a_dynamic_rotary_table_is_stretched_as_far_as_its_factor_and_only_if_asked(tmp_path: Path) -> None:
    config = checkpoints.config(
        max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    )
    folder = checkpoints.write(tmp_path, config)
    assert served_length(folder, 0) == 64 and served_length(folder, 256) == 256
    with pytest.raises(ValueError, match="max_sequence_tokens is 257, and the model was made for 256"):
        served_length(folder, 257)


@pytest.mark.parametrize(
    ("tokenizer", "usual"),
    [
        (None, 256),
        ({}, 256),
        ({"model_max_length": int(1e30)}, 256),  # as transformers saves what nobody has set
        ({"model_max_length": 64}, 64),  # DeepSeek-Coder: trained that long, with this stretch
        ({"model_max_length": 96}, 96),
        ({"model_max_length": 32}, 64),
        ({"model_max_length": "long"}, 256),
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_linear_rotary_table_goes_on_behind_the_tokenizers_length_only_if_asked(
    name: str, tokenizer: dict[str, Any] | None, usual: int, tmp_path: Path
) -> None:
    config = checkpoints.config(
        max_position_embeddings=64, **{name: {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
    )
    folder = checkpoints.write(tmp_path, config)
    if tokenizer is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert served_length(folder, 0) == usual and served_length(folder, 256) == 256
    with pytest.raises(ValueError, match="max_sequence_tokens is 257, and the model was made for 256"):
        served_length(folder, 257)


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


MOST = 1 << 20


def longer(folder: Path) -> Path:
    """The same model, made for a million positions."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MOST}))
    return folder


def prepared(engine: Engine, **limits: Any) -> pb.Prepared:
    asked = {"max_slots": 4, "max_step_tokens": 64, "memory_fraction": 0.9, "max_step_drafts": 4, **limits}
    return preparation.prepare(engine, pb.PrepareRequest(**asked))


@pytest.mark.parametrize(("kind", "mib"), [("engine", 64), ("torch", 512), ("recurrent", 64)])
def test_where_nobody_asks_for_a_length_it_is_what_fits(
    kind: str, mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "recurrent":
        folder = longer(test_recurrent.write(tmp_path))
    else:
        folder = longer(checkpoints.write(tmp_path, checkpoints.config()))
    dtype = torch.float32 if kind == "torch" else torch.bfloat16
    engine = Engine(check_folder(folder), folder, dtype, torch.device("cpu"))
    monkeypatch.setattr(preparation, "device_room", lambda _: Room(4 * GIB, GIB + (mib << 20)))
    found = prepared(engine)
    longest = found.max_sequence_tokens
    assert SHORTEST_CONTEXT < longest < MOST and engine.limits.max_sequence_tokens == longest
    assert engine.limits.tables.pages(longest, 64) <= found.pages
    said = [line for line in capsys.readouterr().err.splitlines() if f"up to {longest} tokens" in line]
    assert len(said) == 1 and '"WARN"' in said[0]
    engine.release()
    assert prepared(engine, max_sequence_tokens=longest).max_sequence_tokens == longest
    for asked in (MOST, longest + longest // 8):
        with pytest.raises(TooLittleMemory, match="lower --max-"):
            prepared(engine, max_sequence_tokens=asked)
    # A cache of a size that was asked for holds no more, and is not made smaller.
    engine.release()
    found = prepared(engine, max_cache_tokens=4096)
    assert found.max_sequence_tokens == 4096
    assert found.pages == 256 * engine.limits.tables.count
    with pytest.raises(TooLittleMemory, match="lower --max-batch-total-tokens"):
        prepared(engine, max_cache_tokens=MOST)
    with pytest.raises(TooLittleMemory, match="raise --max-batch-total-tokens to 8192"):
        prepared(engine, max_cache_tokens=4096, max_sequence_tokens=8192)
    monkeypatch.setattr(preparation, "device_room", lambda _: Room(4 * GIB, GIB + (1 << 10)))
    with pytest.raises(TooLittleMemory):
        prepared(engine)


@pytest.mark.parametrize("threads", [2, 64])
@pytest.mark.parametrize("longest", [2048, 131_072])
def test_what_the_engine_needs_can_be_told_before_it_has_a_program(
    longest: int, threads: int, tmp_path: Path
) -> None:
    made = checkpoints.config(
        hidden_size=512, intermediate_size=1408, num_attention_heads=8, vocab_size=8000, num_hidden_layers=2
    )
    folder = checkpoints.write(tmp_path, {**made, "max_position_embeddings": longest})
    engine = Engine(check_folder(folder), folder, torch.bfloat16, torch.device("cpu"), threads=threads)
    if engine.native is None:
        pytest.skip("there is no CPU engine here")
    needs = preparation._step_bytes(engine, 128, 2048, longest, 0)
    told = engine_working_bytes(engine.model.config, threads, 128, 2048, longest)
    assert needs <= told <= 3 * needs


def test_of_a_length_that_fits_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    engine = Engine(check_folder(folder), folder, torch.bfloat16, torch.device("cpu"))
    assert prepared(engine).max_sequence_tokens == 512
    assert '"WARN"' not in capsys.readouterr().err


def test_what_fits_is_found_to_within_a_64th_and_what_the_cache_holds_exactly() -> None:
    for most in (SHORTEST_CONTEXT, 1025, 5000, 131_072, 10_485_760):
        for limit in (0, 1000, 1024, 1100, 4097, 34_567, 9_999_999):
            tried: list[int] = []

            def fits(length: int, limit: int = limit, tried: list[int] = tried) -> bool:
                tried.append(length)
                return length <= limit

            best = max(min(limit, most), SHORTEST_CONTEXT)
            found = longest_that_fits(SHORTEST_CONTEXT, most, lambda _: True, fits)
            assert best - max(best // 32, 32) <= found <= best and len(tried) < 24
            exact = longest_that_fits(SHORTEST_CONTEXT, most, fits, lambda _: True)
            assert exact == (best if best == most else best // 16 * 16)
    assert longest_that_fits(SHORTEST_CONTEXT, 512, lambda _: False, lambda _: False) == 512


def test_what_all_ranks_of_a_machine_have_mapped_is_free_for_no_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two ranks has 20 GiB mapped, which the system counts as free."""
    monkeypatch.setattr(preparation, "device_room", lambda _: Room(64 * GIB, 50 * GIB))
    ranks, mapped = TensorGroup(0, 2, neighbours=2), PackedCache(Path(), keeps_all=True)
    mapped.mapped_bytes = 20 * GIB
    engine: Any = SimpleNamespace(device=torch.device("cpu"), group=ranks, packed_cache=mapped)
    room = preparation._free_room(engine)
    assert room == Room(64 * GIB, 10 * GIB)
    caches = 2 * spare(room, engine.device, 0.9, mapped.mapped_bytes, 0, ranks.neighbours)
    assert 2 * mapped.mapped_bytes + caches < 50 * GIB
