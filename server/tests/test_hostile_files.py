"""Model folders made to hurt whoever opens them: each is refused in one sentence, soon, or is what it says.

Headers of safetensors files and config.json are drawn at random (Hypothesis); what was found once is a case of its own.
"""

import json
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import checkpoints
from penstock.errors import UnusableModel
from penstock.hub import tokenizer
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder, check_numbers
from penstock.loading.model_files import read_header, read_json
from penstock.models import recipes

DRAWN = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 3, 10**9, 2**31, 2**32, 2**63, 10**30]),
    st.floats(),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "F8_E4M3", "X"]) | JSON,
        "shape": st.lists(NUMBERS, max_size=3) | JSON,
        "data_offsets": st.lists(NUMBERS, max_size=3) | JSON,
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", checkpoints.config())


def write_header(path: Path, length: int, header: bytes, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", length % 2**64) + header + data)


def look_at(path: Path) -> None:
    """Reads a header; whatever it says it holds must lie in the file."""
    try:
        found = read_header(path)
    except UnusableModel as error:
        assert "\n" not in str(error) and len(str(error)) < 2000, error
        return
    size = path.stat().st_size
    for stored in found.values():
        assert 8 <= stored.begin <= stored.end <= size


@DRAWN
@given(
    header=st.dictionaries(st.text(max_size=12), ENTRY | JSON, max_size=4) | JSON,
    lie=st.sampled_from([0, 0, 0, 1, -1, 10**6, 2**63, 2**64 - 1]),
    data=st.binary(max_size=64),
)
@example(header={"a": {"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]}}, lie=0, data=bytes(8))
@example(header={"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}, lie=0, data=b"")
@example(header={"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 2**64 + 4]}}, lie=0, data=bytes(4))
def test_a_header_made_at_random_is_refused_or_true(header: Any, lie: int, data: bytes) -> None:
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "model.safetensors"
        write_header(path, len(text) + lie, text, data)
        look_at(path)


@DRAWN
@given(content=st.binary(max_size=200))
@example(content=struct.pack("<Q", 2) + b"[]")
@example(content=struct.pack("<Q", 5) + b"[[[[[")
@example(content=struct.pack("<Q", 200_000) + b"[" * 200_000)
@example(content=struct.pack("<Q", 20_000) + b'{"a":' * 4_000)
@example(content=struct.pack("<Q", 5_010) + b'{"a":{"b":' + b"9" * 5_000)
def test_bytes_made_at_random_are_no_safetensors_file_and_no_harm(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "model.safetensors"
        path.write_bytes(content)
        look_at(path)


def rehearse(folder: Path) -> None:
    """What a worker does with a folder before a byte of the weights is read."""
    config = check_folder(folder)
    recipes.read_config(config)
    with Checkpoint(folder, torch.float32) as checkpoint:
        recipes.load_from(config, checkpoint)


@DRAWN
@given(name=st.sampled_from(sorted(checkpoints.CONFIG)), value=NUMBERS | JSON)
@example(name="num_hidden_layers", value=10**9)
@example(name="num_hidden_layers", value=60)
@example(name="num_attention_heads", value=10**9)
@example(name="num_key_value_heads", value=10**18)
@example(name="hidden_size", value=2**40)
@example(name="intermediate_size", value=2**31 - 1)
@example(name="vocab_size", value=10**30)
@example(name="architectures", value=["\n", "A" * 3000])
@example(name="max_position_embeddings", value=10**18)
@example(name="max_position_embeddings", value=2**31 - 1)
def test_a_config_with_any_value_is_refused_in_a_sentence_or_served(
    folder: Path, name: str, value: Any
) -> None:
    config = {**checkpoints.CONFIG, name: value}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        rehearse(folder)
    except UnusableModel as error:
        assert "\n" not in str(error) and len(str(error)) < 2000, error


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and the weights hold 30 tensors"),
        ({"num_attention_heads": 10**9}, "num_attention_heads is 1000000000"),
        ({"max_position_embeddings": 10**18}, "max_position_embeddings is 1000000000000000000, more than"),
        ({"vocab_size": 10**5000 % 10**200}, "vocab_size is"),
        ({"text_config": {"n_layer": 10**7}}, "n_layer is 10000000"),
        ({"num_experts": 10**7}, "num_experts is 10000000"),
    ],
)
def test_an_absurd_number_is_named(folder: Path, change: dict[str, Any], names: str) -> None:
    (folder / "config.json").write_text(json.dumps({**checkpoints.CONFIG, **change}))
    with pytest.raises(UnusableModel, match=names):
        rehearse(folder)


def test_what_models_have_is_not_absurd() -> None:
    check_numbers(
        {
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
            "n_routed_experts": 256,
            "max_window_layers": 99,
        },
        727,
    )
    check_numbers({"num_hidden_layers": 126, "rope_theta": 10**10}, None)


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/s")
        Path(f"{short}/s").rename(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
@pytest.mark.parametrize("make", [a_fifo, a_socket, a_device, a_folder])
def test_what_is_no_file_is_named_and_not_read(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(UnusableModel, match=f"{name}.*(a FIFO|a socket|a device|a folder|cannot be read)"):
        rehearse(folder)
        read_json(folder, "generation_config.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"\n<!DOCTYPE html>\n<html><title>Sign in</title>", "an HTML page"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_lies_in_place_of_a_file_is_said(folder: Path, name: str, content: bytes, words: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(UnusableModel, match=f"{name}.*{words}"):
        rehearse(folder)


def test_json_larger_than_any_model_has_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnusableModel, match="of JSON are more than any model has"):
        rehearse(folder)


@pytest.mark.parametrize("changed", range(len(tokenizer.CODE)))
def test_a_tokenizer_is_made_anew_where_our_part_of_the_conversion_has_changed(
    changed: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tokenizer.digest(folder)
    assert tokenizer.digest(folder) == before
    files = list(tokenizer.CODE)
    files[changed] = tmp_path / "later.py"
    files[changed].write_bytes(tokenizer.CODE[changed].read_bytes() + b"\n")
    monkeypatch.setattr(tokenizer, "CODE", files)
    assert tokenizer.digest(folder) != before


def test_a_tokenizer_that_somebody_else_could_have_put_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "penstock-tokenizers-0" / "name" / "tokenizer.json"
    tokenizer.put(file, "ours")
    assert tokenizer.is_ours(file) and file.read_text() == "ours"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "tokenizer.json").write_text("theirs")
    for place in (file, file.parent, file.parent.parent):
        place.rename(place.with_name("moved"))
        place.symlink_to(elsewhere / "tokenizer.json" if place == file else elsewhere)
        assert not tokenizer.is_ours(file), f"{place} is a link"
        if place != file:
            with pytest.raises(OSError, match=r"of this user alone|File exists"):
                tokenizer.put(file, "ours")
        place.unlink()
        place.with_name("moved").rename(place)
    file.parent.chmod(0o777)
    assert not tokenizer.is_ours(file)
