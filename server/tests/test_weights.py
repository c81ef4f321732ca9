"""Checkpoints that are broken, hostile or of a family that is not served: one line that names what is wrong."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from penstock.engine import Engine
from penstock.errors import UnusableModel
from penstock.models.decoder import Attention

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Engine:
    """Loads as the worker does."""
    return Engine(json.loads((folder / "config.json").read_text()), folder, dtype, CPU)


def refusal(folder: Path) -> str:
    """Why the folder is not served."""
    with pytest.raises(UnusableModel) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the JSON header of a safetensors file and leaves its data."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + size :])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", checkpoints.config())


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 100, 8, 3, 0):
        path.write_bytes(whole[:size])
        assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_huge_header_is_refused_before_it_is_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for size in (2**63, 2**40, len(data) * 2):
        path.write_bytes(struct.pack("<Q", size) + data[8:])
        assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_header_that_is_no_json_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 16) + b"\x80\x04pickled bytes!" + b"\0" * 64)
    assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


@pytest.mark.parametrize("shift", [-4, 4, 1 << 40])
def test_wrong_offsets_are_refused(shift: int, folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        entry = header["model.layers.1.mlp.down_proj.weight"]
        entry["data_offsets"] = [abs(offset + shift) for offset in entry["data_offsets"]]

    rewrite_header(folder / "model.safetensors", change)
    assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_missing_an_extra_and_a_misshapen_tensor_are_named(folder: Path) -> None:
    config = checkpoints.config()
    name = "model.layers.2.self_attn.k_proj.weight"
    weights = checkpoints.tensors(config)
    del weights[name]
    checkpoints.write(folder, config, weights)
    assert refusal(folder) == f"model.safetensors: lacks tensor {name}"

    weights = checkpoints.tensors(config)
    weights["model.layers.3.mlp.up_proj.weight"] = torch.zeros(2, 2)
    checkpoints.write(folder, config, weights)
    assert "model.layers.3.mlp.up_proj.weight has no place" in refusal(folder)

    weights = checkpoints.tensors(config)
    weights[name] = weights[name].T.contiguous()
    checkpoints.write(folder, config, weights)
    assert f"{name} has the shape [64, 32]; config.json asks for [32, 64]" in refusal(folder)


def test_a_tensor_of_whole_numbers_is_named(folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int32)
    checkpoints.write(folder, config, weights)
    assert "model.norm.weight has the dtype I32" in refusal(folder)


def test_a_bias_that_config_does_not_announce_is_refused(folder: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config(attention_bias=True))
    checkpoints.write(folder, checkpoints.config(), weights)
    assert "bias has no place" in refusal(folder)


def test_known_leftovers_are_ignored(folder: Path) -> None:
    config = checkpoints.config(tie_word_embeddings=True)
    weights = checkpoints.tensors(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    load(checkpoints.write(folder, config, weights))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"../model-00001.safetensors": "x"}, "not the name of a safetensors file"),
        ({"weights.bin": "x"}, "not the name of a safetensors file"),
        ({"model-00009.safetensors": "x"}, "model-00009.safetensors is missing"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"] |= {name: file for file, name in change.items()}
    index.write_text(json.dumps(content))
    assert words in refusal(folder)


def test_shards_that_disagree_with_the_index_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    index = folder / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    content = json.loads(index.read_text())
    del content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    assert "does not list tensor model.norm.weight" in refusal(folder)
    content = json.loads(json.dumps(whole))
    content["weight_map"]["model.extra"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    assert "lacks tensor model.extra" in refusal(folder)
    for text in ("[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000):
        index.write_text(text)
        assert "weight_map" in refusal(folder)


def test_the_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=2)
    first = "model-00001-of-00002.safetensors"
    (folder / "model-00002-of-00002.safetensors").write_bytes((folder / first).read_bytes())
    assert refusal(folder).startswith("model")


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    checkpoints.write(folder, checkpoints.config())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(folder) and "not loaded" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration"),
        ({"architectures": None}, "unsupported architecture none"),
        ({"hidden_act": "relu6"}, "relu6"),
        ({"num_attention_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"rope_scaling": {"type": "spiral", "factor": 2}}, "spiral"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "big"}}, "factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.3, "head_dim": 10}, "3 of head_dim 10 are rotated"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ],
)
def test_a_config_that_is_not_served_names_its_key(change: dict[str, Any], words: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**change)))
    assert words in refusal(folder)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_converted_to_the_dtype_served(stored: torch.dtype, folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config, dtype=stored)
    engine = load(checkpoints.write(folder, config, weights), torch.bfloat16)
    attention = engine.model.layers[1].attention
    assert isinstance(attention, Attention)
    names = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv"]
    assert torch.equal(
        attention.qkv.weight_OI, torch.cat([weights[name] for name in names]).to(torch.bfloat16)
    )
