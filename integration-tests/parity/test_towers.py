"""What a model has for images or sound is not served: server and doctor say so, and its weights are not read."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, with_text
from models import make

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from conftest import Launch, fails
from launched import BINARY
from penstock.errors import UnusableModel

WARNING = "the model reads images, too; only its text is served"


def poison(folder: Path, part: str) -> None:
    """Makes NaN of all numbers of the tensors that have `part` in their names: a loader that reads one refuses it."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    poisoned = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items() if part in name}
    assert 0 < len(poisoned) < len(tensors)
    save_file(tensors | poisoned, file, {"format": "pt"})


def test_torch_does_not_read_what_a_model_has_for_images(tmp_path: Path) -> None:
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen2.5-VL"])
    poison(folder, "visual")
    Driver(folder)
    poison(folder, "layers.1.mlp")
    with pytest.raises(UnusableModel, match="NaN"):
        Driver(folder)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.tail), "bfloat16"])
def test_a_model_that_reads_images_is_served_as_text_and_says_so(
    dtype: str, tmp_path: Path, launch: Launch
) -> None:
    folder = make(tmp_path / "model", with_text(FAMILIES["Qwen2.5-VL"], vocab_size=4096))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    run = ("--model-id", str(folder), "--dtype", dtype)
    command = [str(BINARY), "doctor", *run, "--device", "cpu"]
    poison(folder, "visual")
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    assert [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("warning")].count(
        WARNING
    ) == 1, said
    server = launch(*run).wait_ready()
    assert server.log().count(WARNING) == 1, server.log()
    body = {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    assert wire.post(server.address, "/v1/completions", body).json()["usage"]["completion_tokens"] == 8
    server.stop()
    # What is read is refused.
    poison(folder, "layers.1.mlp")
    fails(launch(*run), 1, "NaN")
