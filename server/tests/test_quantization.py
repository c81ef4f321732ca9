"""Quantized checkpoints of schemes that are not served (`test_codes` has those that are) are refused by name, wherever it is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder


def refusal(folder: Path) -> str:
    with pytest.raises(UnusableModel) as caught:
        check_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", checkpoints.config())


@pytest.mark.parametrize(
    ("changes", "scheme"),
    [
        ({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "marlin"}}, "marlin"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"quantization_config": {"quant_method": "fp_quant"}}, "fp-quant"),
        ({"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "exl2", "bits": 3.5}}, "exl2"),
        ({"quantization_config": {"quant_method": "eetq"}}, "eetq"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"compression_config": {"format": "nvfp4-pack-quantized"}}, "compressed-tensors"),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"bits": 2}}, "unknown"),
        ({"text_config": {"quantization_config": {"quant_method": "hqq"}}}, "hqq"),
    ],
)
def test_a_scheme_in_config_json_is_named(changes: dict[str, Any], scheme: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**changes)))
    assert f"the weights are quantized ({scheme})" in refusal(folder)


def test_a_config_that_switches_quantization_off_is_none(folder: Path) -> None:
    off = {"quantization_config": {"load_in_8bit": False, "load_in_4bit": False}}
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**off)))
    check_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "scheme"),
    [
        ("quantize_config.json", {"bits": 4, "is_marlin_format": True}, "marlin"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "modelopt nvfp4"),
    ],
)
def test_a_scheme_in_a_file_beside_it_is_named(
    name: str, content: dict[str, Any], scheme: str, folder: Path
) -> None:
    (folder / name).write_text(json.dumps(content))
    assert refusal(folder).startswith(f"{name}: the weights are quantized ({scheme})")


@pytest.mark.parametrize(
    ("ending", "scheme"),
    [
        ("SCB", "bitsandbytes"),
        ("q_scale", "exl2"),
        ("weight_scale_2", "nvfp4"),
        ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
        ("weight_packed", "compressed-tensors"),
    ],
)
def test_tensors_of_a_scheme_that_no_config_names_are_recognized(
    ending: str, scheme: str, folder: Path
) -> None:
    config = checkpoints.config()
    name = f"model.layers.0.mlp.down_proj.{ending}"
    checkpoints.write(folder, config, checkpoints.tensors(config) | {name: torch.zeros(4, dtype=torch.uint8)})
    assert refusal(folder).startswith(f"the tensor {name}: the weights are quantized ({scheme})")
