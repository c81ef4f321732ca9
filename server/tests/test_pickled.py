"""Pickled weights, once the user has agreed to them: read without running what they hold."""

import json
import os
from pathlib import Path

import pytest
import torch

import checkpoints
from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.models.decoder import Decoder

CPU = torch.device("cpu")


def pickle(folder: Path, shards: int = 1, *, older: bool = False) -> dict[str, torch.Tensor]:
    """A folder with the same weights as `checkpoints.write` would make, pickled."""
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not older)
        return weights
    names = list(weights)
    where = {name: f"pytorch_model-{at % shards + 1}.bin" for at, name in enumerate(names)}
    for shard in set(where.values()):
        torch.save({name: weights[name] for name in names if where[name] == shard}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    return weights


def refusal(folder: Path, *, trusted: bool = True) -> str:
    with pytest.raises(UnusableModel) as caught:
        read(folder, trusted=trusted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read(folder: Path, *, trusted: bool = True) -> Decoder:
    model = recipes.load(check_folder(folder, trusted), folder, torch.float32, CPU, trusted=trusted)
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize(("shards", "older"), [(1, False), (1, True), (3, False)])
def test_pickled_weights_are_loaded_with_consent(shards: int, older: bool, tmp_path: Path) -> None:
    weights = pickle(tmp_path, shards, older=older)
    assert "only pickled ones (pytorch_model.bin" in refusal(tmp_path, trusted=False)
    decoder = read(tmp_path)
    head = decoder.ends.head
    assert head is not None and torch.equal(head.weight_OI, weights["lm_head.weight"])
    down = weights["model.layers.2.mlp.down_proj.weight"]
    feed_forward = decoder.layers[2].feed_forward
    assert feed_forward is not None and any(torch.equal(tensor, down) for tensor in feed_forward.weights())


def test_safetensors_files_go_first(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, checkpoints.config())
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    read(tmp_path)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["PENSTOCK_TEST_MARK"],)


def test_code_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = pickle(tmp_path)
    mark = tmp_path / "ran"
    monkeypatch.setenv("PENSTOCK_TEST_MARK", str(mark))
    for older in (False, True):
        file = tmp_path / "pytorch_model.bin"
        torch.save({**weights, "x": Malicious()}, file, _use_new_zipfile_serialization=not older)
        assert refusal(tmp_path).startswith("pytorch_model.bin: cannot be read as pickled weights: ")
        assert not mark.exists()
    torch.load(tmp_path / "pytorch_model.bin", weights_only=False)
    assert mark.exists()  # it would have


def test_a_pickle_that_is_cut_short_or_holds_something_else_is_named(tmp_path: Path) -> None:
    pickle(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    whole = file.read_bytes()
    for kept in (len(whole) - 100, len(whole) // 2, 10, 0):
        file.write_bytes(whole[:kept])
        assert refusal(tmp_path).startswith("pytorch_model.bin: cannot be read as pickled weights")
    torch.save([torch.zeros(2)], file)
    assert "not a table of tensors" in refusal(tmp_path)
    torch.save({"epoch": 3}, file)
    assert "'epoch' is not the name of a tensor" in refusal(tmp_path)


def test_an_index_of_pickles_is_held_against_them(tmp_path: Path) -> None:
    pickle(tmp_path, 3)
    (tmp_path / "pytorch_model-2.bin").unlink()
    assert "1 file is missing: pytorch_model-2.bin" in refusal(tmp_path)
    torch.save(torch.load(tmp_path / "pytorch_model-1.bin"), tmp_path / "pytorch_model-2.bin")
    assert "(the index lists it in pytorch_model-2.bin, and no file has it)" in refusal(tmp_path)


def test_the_index_of_pickles_decides_which_file_a_tensor_is_taken_from(tmp_path: Path) -> None:
    weights = pickle(tmp_path, 3)
    where = json.loads((tmp_path / "pytorch_model.bin.index.json").read_text())["weight_map"]
    last = "pytorch_model-3.bin"
    older = {name: torch.zeros_like(tensor) for name, tensor in weights.items() if where[name] != last}
    torch.save({**torch.load(tmp_path / last), **older}, tmp_path / last)
    decoder = read(tmp_path)
    assert where["model.embed_tokens.weight"] != last
    embedding = decoder.ends.embedding
    assert embedding is not None and torch.equal(embedding.weight_VE, weights["model.embed_tokens.weight"])
