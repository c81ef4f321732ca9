"""A model's folder that is made of a GGUF file has what every model has, is found again, and is said to be none where it is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import SHAPE, VOCABULARY, tensors_of_llama, tokenizer, write
from penstock.errors import UnusableModel
from penstock.gguf import unpack
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.parallel.group import ALONE
from penstock_kernels import tensors


def file_of(folder: Path, name: str = "small-Q8_0", **more: Any) -> Path:
    return write(folder / f"{name}.gguf", tensors_of_llama(), more={**tokenizer(), **more})


def content(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_a_folder_has_all_that_a_model_has(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}"
    more: dict[str, Any] = {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.bos_token_id": 97,
        "tokenizer.ggml.padding_token_id": 96,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
    }
    file = file_of(tmp_path, **more)
    folder = unpack.obtain(file, tmp_path / "cache")
    assert folder.parent == tmp_path / "cache" / "penstock-gguf" and folder.name.startswith("small-Q8_0-")
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.gguf"),
    }
    assert (folder / "model.gguf").resolve() == file
    config = content(folder, "config.json")
    assert config["torch_dtype"] == "float32" and "quantization_config" not in config
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (97, 97, 96)
    assert config["rms_norm_eps"] == 1e-5, "as it was before it was rounded to fp32"
    generation = content(folder, "generation_config.json")
    # <|im_end|> ends an answer whatever the file names.
    assert generation == {"eos_token_id": [96, 97], "temperature": 0.5, "top_k": 20}
    of_tokens = content(folder, "tokenizer_config.json")
    assert of_tokens["chat_template"] == template and of_tokens["bos_token"] == VOCABULARY[97]


def test_named_templates_are_kept(tmp_path: Path) -> None:
    more = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    of_tokens = content(unpack.obtain(file_of(tmp_path, **more), tmp_path / "cache"), "tokenizer_config.json")
    assert of_tokens["chat_template"] == [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
    ]


def test_it_is_made_once_and_anew_where_the_file_is_another(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    first = unpack.obtain(file, tmp_path / "cache")
    before = (first / "config.json").stat().st_mtime_ns
    assert unpack.obtain(file, tmp_path / "cache") == first
    assert (first / "config.json").stat().st_mtime_ns == before
    os.utime(file, ns=(1, 1))
    assert unpack.obtain(file, tmp_path / "cache") != first


def test_what_lies_beside_a_file_is_taken(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    # Of a vocabulary that is not read.
    file = file_of(own, **{"tokenizer.ggml.model": "t5", "tokenizer.chat_template": "a"})
    with pytest.raises(
        UnusableModel, match=r"tokenizer\.ggml\.model is 't5', and gpt2 and llama and gemma4 are read; put"
    ):
        unpack.obtain(file, tmp_path / "cache")
    (own / "tokenizer.json").write_text("{}")
    (own / "chat_template.jinja").write_text("b")
    folder = unpack.obtain(file, tmp_path / "cache")
    assert (folder / "tokenizer.json").resolve() == own / "tokenizer.json"
    assert (folder / "chat_template.jinja").read_text() == "b"
    assert "chat_template" not in content(folder, "tokenizer_config.json")


def test_parts_are_linked_in_their_order(tmp_path: Path) -> None:
    tensors = tensors_of_llama()
    names = list(tensors)
    parts = [tmp_path / f"m-{at:05}-of-00002.gguf" for at in (1, 2)]
    write(parts[0], {name: tensors[name] for name in names[:5]}, more=tokenizer())
    write(parts[1], {name: tensors[name] for name in names[5:]}, {})
    folder = unpack.obtain(parts[1], tmp_path / "cache")
    linked = sorted(path.name for path in folder.glob("*.gguf"))
    assert linked == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    assert [(folder / name).resolve() for name in linked] == parts


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"general.type": "adapter"}, "it is a LoRA adapter in GGUF: load peft's own files"),
        ({"general.type": "mmproj"}, "it is what reads a model's images, and no model"),
        ({"general.type": "vocab"}, "it is a vocabulary without a model"),
        ({"general.type": "imatrix"}, "it is a file for llama-quantize, and no model"),
        ({"tokenizer.ggml.pre": "new-words"}, "tokenizer.ggml.pre is 'new-words', and how that cuts words is not known; put"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "tokenizer.ggml.eos_token_id is 4000, and there are 99 tokens"),
        ({"tokenizer.ggml.merges": ["a"]}, "tokenizer.ggml.merges has 'a' at 0, which is no pair"),
        ({"tokenizer.ggml.merges": ["Ā zz"]}, "tokenizer.ggml.merges has Ā zz, and 'zz' is no token"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for 99 tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * 99}, "tokenizer.ggml.tokens has 'a' twice"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_said_in_a_line(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, **more)
    with pytest.raises(UnusableModel) as refused:
        unpack.obtain(file, tmp_path / "cache")
    line = str(refused.value)
    assert line.startswith("small-Q8_0.gguf: ") and says in line and "\n" not in line, line


def test_a_token_that_a_file_says_it_has_not_is_none_of_the_configuration(tmp_path: Path) -> None:
    more: dict[str, Any] = {"tokenizer.ggml.padding_token_id": 0xFFFFFFFF}
    file = file_of(tmp_path, **more)
    assert "pad_token_id" not in content(unpack.obtain(file, tmp_path / "cache"), "config.json")


def test_a_type_that_is_no_text_is_no_failure_of_the_command(tmp_path: Path) -> None:
    more: dict[str, Any] = {"general.type": ["model"]}
    file = file_of(tmp_path, **more)
    assert unpack.obtain(file, tmp_path / "cache").is_dir()


def test_what_reads_images_in_the_same_file_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Ollama keeps models, under names without an ending."""
    towers = {name: np.ones((64, 64), np.float32) for name in ("v.blk.0.attn_q.weight", "mm.0.weight")}
    file = write(tmp_path / "sha256-0d5c", tensors_of_llama() | towers, SHAPE, more=tokenizer())
    folder = unpack.obtain(file, tmp_path / "cache")
    assert "images or sound beside the model (2 tensors): its text is served" in capsys.readouterr().out
    with Checkpoint(folder, tensors.float32) as checkpoint:
        recipes.load_from(check_folder(folder), checkpoint, ALONE)
        assert not towers.keys() & checkpoint.stored.keys()


def test_the_command_answers_in_lines(tmp_path: Path) -> None:
    def run(file: Path) -> tuple[int, list[dict[str, Any]]]:
        command = [
            sys.executable,
            "-m",
            "penstock.gguf.unpack",
            str(file),
            "--cache-dir",
            str(tmp_path / "cache"),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert "Traceback" not in ended.stderr
        return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]

    code, lines = run(write(tmp_path / "a.gguf", tensors_of_llama(), SHAPE, more=tokenizer()))
    assert code == 0 and lines[0]["message"].startswith("made ") and Path(lines[-1]["folder"]).is_dir()
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    code, lines = run(tmp_path / "b.gguf")
    assert code == 1 and "cut short" in lines[-1]["failed"]
    code, lines = run(tmp_path / "none.gguf")
    assert code == 1 and "No such file" in lines[-1]["failed"]
