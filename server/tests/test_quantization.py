"""Quantized checkpoints of schemes that are not served (`test_codes` has those that are) are refused by name, wherever it is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from penstock import quantization
from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.quantization import codes


def refusal(folder: Path) -> str:
    with pytest.raises(UnusableModel) as caught:
        check_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def quantized(method: str, **given: Any) -> dict[str, Any]:
    """What config.json says of it."""
    return {"quantization_config": {"quant_method": method, **given}}


def rounded(*formats: str, **given: Any) -> dict[str, Any]:
    """Of compressed-tensors: one format, or one for each group."""
    groups = {f"group_{at}": {"format": one} for at, one in enumerate(formats)}
    format = formats[0] if len(formats) == 1 else "mixed-precision"
    return quantized("compressed-tensors", format=format, config_groups=groups, **given)


def modelopt(*algorithms: str) -> dict[str, Any]:
    layers = {f"model.layers.{at}": {"quant_algo": one} for at, one in enumerate(algorithms)}
    return quantized("modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)


def rotated(location: str) -> dict[str, Any]:
    """What compressed-tensors says of rotations, as Laguna XS.2's fp8 version has it."""
    applied: list[dict[str, Any]] = [{"targets": ["re:.*o_proj$"], "location": "weight_output"}]
    applied.append({"targets": ["re:.*q_proj$"], "location": location, "inverse": True})
    return {"config_groups": {"R1": {"type": "hadamard", "head_dim": 128, "apply": applied}}}


def auto_round(**given: Any) -> dict[str, Any]:
    return quantized("auto-round", **{"packing_format": "auto_round:auto_gptq", "bits": 4, **given})


def quark(dtype: str, **given: Any) -> dict[str, Any]:
    return quantized("quark", global_quant_config={"weight": {"dtype": dtype}}, **given)


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
        ({"compression_config": {"format": "marlin-24"}}, "compressed-tensors, marlin-24"),
        ({"quantization_config": {"quant_algo": "W4A16_GPTQ"}}, "modelopt w4a16_gptq"),
        ({"quantization_config": {"bits": 2}}, "unknown"),
        ({"quantization_config": {"bits": 4, "group_size": 64}}, "mlx"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "mlx"),
        ({"quantization_config": {"quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}}, "torchao"),
        ({"quantization_config": {"dense_quant_type": "wint8", "moe_quant_type": "wint4"}}, "paddle"),
        ({"quantization_config": {"quant_method": "awq", "version": "GEMV"}}, "awq gemv"),
        (
            rounded("float-quantized", transform_config={"config_groups": {"R4": {}}}),
            "compressed-tensors, transform_config",
        ),
        (
            rounded("float-quantized", transform_config=rotated("input")),
            "compressed-tensors, transform_config",
        ),
        (rounded("float-quantized", "marlin-24"), "compressed-tensors, marlin-24"),
        (modelopt("FP8", "W8A8_SQ_PER_CHANNEL"), "modelopt mixed_precision"),
        ({"quantization_config": {"quant_algo": "MIXED_PRECISION"}}, "modelopt mixed_precision"),
        (auto_round(packing_format="auto_round:fp8"), "auto-round, auto_round:fp8"),
        (
            quantized("intel/auto-round", backend="auto_round:marlin", bits=4),
            "auto-round, auto_round:marlin",
        ),
        (auto_round(act_bits=8), "auto-round, act_bits, auto_round:auto_gptq"),
        (auto_round(data_type="mx_fp"), "auto-round, auto_round:auto_gptq"),
        (auto_round(spinquant_config={"r1": True}), "auto-round, spinquant_config, auto_round:auto_gptq"),
        (quark("int4"), "quark"),
        (quark("fp4", layer_type_quant_config={"Linear": {"weight": {"dtype": "int4"}}}), "quark"),
        ({"quantization_config": {"quant_method": "q4_0", "quant_type": "q4_0"}}, "q4-0"),
        (quark("fp4", algo_config=[{"name": "rotation", "r4": True}]), "quark"),
        ({"quantization_config": {"quant_method": "quark"}}, "quark"),
        ({"text_config": {"quantization_config": {"quant_method": "hqq"}}}, "hqq"),
    ],
)
def test_a_scheme_in_config_json_is_named(changes: dict[str, Any], scheme: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**changes)))
    assert f"the weights are quantized ({scheme})" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        rounded("nvfp4-pack-quantized", transform_config={}),
        rounded("float-quantized", transform_config=rotated("weight_input")),
        rounded("float-quantized", "nvfp4-pack-quantized"),
        rounded("dense"),
        modelopt("FP8", "NVFP4"),
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": None, "kv_cache_scheme": "FP8"}},
        modelopt("FP8", "W4A8_AWQ"),
        {"quantization_config": {"quant_algo": "W4A16_AWQ"}},
        auto_round(packing_format="auto_round:auto_awq"),
        auto_round(packing_format="auto_round", act_bits=16),
        quantized("intel/auto-round", backend="auto_round:exllamav2", bits=4),
        quark("fp4", layer_quant_config={"*lm_head": {"weight": {"dtype": "fp8_e4m3"}}}),
    ],
)
def test_schemes_whose_parts_are_all_served_are_not_refused(changes: dict[str, Any], folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**changes)))
    check_folder(folder)


# Of ModelOpt before February 2026: config.json has no layers.
MIXED = quantized("modelopt", quant_algo="MIXED_PRECISION", ignore=["lm_head"], kv_cache_scheme="FP8")


def with_layers_beside(folder: Path, *algorithms: str, within: str | None = None) -> dict[str, Any]:
    """config.json of a folder whose hf_quant_config.json alone says what each layer is quantized with."""
    config = checkpoints.config(**(MIXED if within is None else {within: MIXED}))
    (folder / "config.json").write_text(json.dumps(config))
    layers = modelopt(*algorithms)["quantization_config"]["quantized_layers"]
    beside = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    says = {"producer": {"name": "modelopt", "version": "0.43.0"}, "quantization": beside}
    (folder / "hf_quant_config.json").write_text(json.dumps(says))
    return config


@pytest.mark.parametrize("within", [None, "text_config"])
def test_layers_that_only_the_file_beside_config_json_has_are_read(within: str | None, folder: Path) -> None:
    config = with_layers_beside(folder, "FP8_PB_WO", "NVFP4", within=within)
    check_folder(folder)
    assert codes.block_of(quantization.with_what_is_beside(config, folder)) == codes.BLOCKS_OF_128


def test_layers_in_the_file_beside_config_json_are_refused_where_one_is_not_served(folder: Path) -> None:
    with_layers_beside(folder, "FP8", "W8A8_SQ_PER_CHANNEL")
    assert "the weights are quantized (modelopt mixed_precision)" in refusal(folder)
    # What says nothing of layers is not asked.
    says = {"quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(says))
    assert "the weights are quantized (modelopt mixed_precision)" in refusal(folder)


def test_layers_in_config_json_go_before_those_in_the_file_beside_it(folder: Path) -> None:
    with_layers_beside(folder, "W8A8_SQ_PER_CHANNEL")
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**modelopt("FP8", "NVFP4"))))
    check_folder(folder)


def test_a_cache_alone_that_is_quantized_leaves_the_weights_what_they_are(tmp_path: Path) -> None:
    config = checkpoints.config()
    scales = {f"model.layers.0.self_attn.k_proj.{name}_scale": torch.ones(()) for name in "kv"}
    folder = checkpoints.write(tmp_path / "model", config, checkpoints.tensors(config) | scales)
    says: dict[str, Any] = {
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8", "exclude_modules": []}
    }
    (folder / "hf_quant_config.json").write_text(json.dumps(says))
    recipes.load(check_folder(folder), folder, torch.float32, torch.device("cpu"))


def test_a_refusal_says_what_is_read_and_does_not_ask_for_a_recipe_that_is_there(folder: Path) -> None:
    changes = {"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}}
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**changes)))
    said = refusal(folder)
    assert "NVFP4" in said and "with a recipe" not in said


def test_a_config_that_switches_quantization_off_is_none(folder: Path) -> None:
    off = {"quantization_config": {"load_in_8bit": False, "load_in_4bit": False}}
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**off)))
    check_folder(folder)


@pytest.mark.parametrize("within", [None, "text_config"])
def test_what_a_model_was_trained_to_be_rounded_to_is_no_scheme(within: str | None, folder: Path) -> None:
    """Of Gemma's QAT checkpoints in bf16, whose config.json names a type of llama.cpp and no method."""
    note = {"quantization_config": {"quant_type": "q4_0", "modules_to_not_convert": []}}
    config = checkpoints.config(**(note if within is None else {within: note}))
    plain = checkpoints.tensors(config)
    checkpoints.write(folder, config, plain)
    recipes.load(check_folder(folder), folder, torch.bfloat16, torch.device("cpu"))
    name = "model.layers.0.mlp.down_proj.weight"
    checkpoints.write(folder, config, plain | {name: plain[name].to(torch.uint8)})
    with pytest.raises(UnusableModel, match=f"of a dtype that cannot be used: {name} \\(U8\\)"):
        recipes.load(check_folder(folder), folder, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "content", "scheme"),
    [
        ("quantize_config.json", {"bits": 4, "is_marlin_format": True}, "marlin"),
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "W8A8_SQ_PER_CHANNEL"}},
            "modelopt w8a8_sq_per_channel",
        ),
        ("quantization_config.json", {"packing_format": "auto_round:fp8"}, "auto-round"),
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
        ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
        ("weight_packed", "compressed-tensors"),
        ("Qidxs", "quip#"),
        ("weight._data", "quanto"),
    ],
)
def test_tensors_of_a_scheme_that_no_config_names_are_recognized(
    ending: str, scheme: str, folder: Path
) -> None:
    config = checkpoints.config()
    name = f"model.layers.0.mlp.down_proj.{ending}"
    checkpoints.write(folder, config, checkpoints.tensors(config) | {name: torch.zeros(4, dtype=torch.uint8)})
    assert refusal(folder).startswith(f"the tensor {name}: the weights are quantized ({scheme})")
