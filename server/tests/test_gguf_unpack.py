"""The model's folder that is made of a GGUF file: what it has, when it is made anew, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import SHAPE, tensors_of_llama, tokenizer, write
from penstock.errors import UnusableModel
from penstock.gguf import unpack


def model(folder: Path, **more: Any) -> Path:
    fields = tokenizer() | {name.replace("__", "."): value for name, value in more.items()}
    return write(folder / "model.gguf", tensors_of_llama(), SHAPE, more=fields)


def file_in(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_a_folder_is_made_once_for_a_file_and_anew_when_one_beside_it_appears(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cache = model(tmp_path, tokenizer__chat_template="of the file"), tmp_path / "cache"
    first = unpack.obtain(file, cache)
    assert unpack.obtain(file, cache) == first
    assert [json.loads(line)["message"].split()[0] for line in capsys.readouterr().out.splitlines()] == ["made", "found"]  # fmt: skip
    assert (first / "model.gguf").resolve() == file.resolve()
    assert file_in(first, "tokenizer_config.json")["chat_template"] == "of the file"

    (tmp_path / "chat_template.jinja").write_text("beside it")
    (tmp_path / "tokenizer.json").write_text('{"version": "own"}')
    second = unpack.obtain(file, cache)
    assert second != first
    assert (second / "chat_template.jinja").read_text() == "beside it"
    assert "chat_template" not in file_in(second, "tokenizer_config.json")
    assert file_in(second, "tokenizer.json") == {"version": "own"}
    assert "lies beside the file" in capsys.readouterr().out


def test_what_a_file_says_of_sampling_is_the_models_default(tmp_path: Path) -> None:
    file = model(tmp_path, general__sampling__temp=0.5, general__sampling__top_k=7)
    found = file_in(unpack.obtain(file, tmp_path / "cache"), "generation_config.json")
    assert (found["temperature"], found["top_k"]) == (0.5, 7)


def test_a_token_that_a_file_says_it_has_not_is_none_of_the_configuration(tmp_path: Path) -> None:
    file = model(tmp_path, tokenizer__ggml__padding_token_id=0xFFFFFFFF)
    assert "pad_token_id" not in file_in(unpack.obtain(file, tmp_path / "cache"), "config.json")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("adapter", "a LoRA adapter in GGUF"),
        ("mmproj", "what reads a model's images"),
        ("vocab", "a vocabulary without a model"),
        ("imatrix", "a file for llama-quantize"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_what_it_is(kind: str, said: str, tmp_path: Path) -> None:
    file = model(tmp_path, general__type=kind)
    with pytest.raises(UnusableModel, match=said):
        unpack.obtain(file, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_a_type_that_is_no_text_is_no_failure_of_the_command(tmp_path: Path) -> None:
    assert unpack.obtain(model(tmp_path, general__type=["model"]), tmp_path / "cache").is_dir()
