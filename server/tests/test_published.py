"""Checkpoints that are published in 4 bits with scales for groups of inputs: on the CPU engine they stay that."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import checkpoints
import encoder_decoders
from client import row
from driver import Driver
from penstock import quantization
from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels.program import Kind
from test_codes import CPU, gpt_oss, grouped, packed
from test_native import SETS, relative_error, whole
from test_parity import LENGTH, blocks_for

pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def written(folder: Path, kind: str, group: int, left_out: str = "none", **scheme: Any) -> tuple[Path, Path]:
    """A model as `kind` publishes it, and one in what it stands for. Matrices with `left_out` in their names stay as they are."""
    config = checkpoints.config(
        hidden_size=256, intermediate_size=512, head_dim=64, torch_dtype="bfloat16", num_hidden_layers=2
    )
    plain = checkpoints.tensors(config, dtype=torch.bfloat16)
    held: dict[str, Tensor] = {}
    for seed, (name, weight) in enumerate(plain.items()):
        if "_proj." not in name or left_out in name:
            held[name] = weight
            continue
        codes, plain[name] = codes_of(kind, group, name, weight, seed)
        held |= codes
    if kind.startswith("compressed-tensors"):
        kind, weights = (
            "compressed-tensors",
            {"num_bits": 4, "type": "int", "group_size": group, "strategy": "group", "actorder": None},
        )
        scheme |= {"format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
    else:
        scheme = {"bits": 4, "group_size": group} | scheme
    quantized = config | {"quantization_config": {"quant_method": kind} | scheme}
    return checkpoints.write(folder / "codes", quantized, held), checkpoints.write(
        folder / "plain", config, plain
    )


def codes_of(kind: str, group: int, name: str, weight: Tensor, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """A matrix as `kind` publishes it, and what that stands for."""
    held: dict[str, Tensor] = {}
    of_I = torch.arange(weight.shape[1]) // group
    numbers, zeros, scales, exact = grouped(weight, seed, 4, of_I)
    scales = (scales.float() / 4 + 0.001).half()
    module = name.removesuffix("weight")
    if kind.startswith("compressed-tensors"):
        scales = scales.bfloat16().half()
        held[f"{name}_packed"], held[f"{name}_scale"] = (
            packed(numbers, 4),
            scales.T.bfloat16().contiguous(),
        )
        if kind.endswith("zeros"):
            held[f"{name}_zero_point"] = packed(zeros, 4).T.contiguous()
        else:
            zeros = torch.full_like(zeros, 8)
    else:
        words = packed(numbers.T, 4, ORDER) if kind == "awq" else packed(numbers, 4).T.contiguous()
        of_zeros = packed(zeros, 4, ORDER) if kind == "awq" else packed(zeros - 1, 4)
        held |= {f"{module}qweight": words, f"{module}qzeros": of_zeros, f"{module}scales": scales}
    exact = (numbers - zeros[of_I].T).float() * scales.float()[of_I].T
    return held, exact.bfloat16()


def formats(driver: Driver) -> set[str]:
    """Of the layers' matrices."""
    assert driver.engine.native is not None
    return {one.format.name for one in driver.engine.native.program.body if one.kind == Kind.LINEAR}


@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors", "compressed-tensors with zeros"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_of_4_bits_stay_what_they_are(
    kind: str, group: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, plain = written(tmp_path, kind, group)
    driver = Driver(codes, torch.bfloat16, max_sequence_tokens=LENGTH)
    assert formats(driver) == {f"GROUPS_{group}"}
    assert f"int4 in groups of {group}, head in bf16" in capsys.readouterr().err
    exact = whole(Driver(plain, torch.bfloat16, max_sequence_tokens=LENGTH))
    # What the layers' products read is rounded to 8 bits, as with --quantize int8.
    assert 0 < relative_error(whole(driver), exact) < 0.08
    numbers = Driver(codes, torch.bfloat16, max_sequence_tokens=LENGTH, quantize="none")
    assert formats(numbers) == {"BF16"} and torch.equal(whole(numbers), exact)


def test_what_only_a_file_beside_config_json_says_stays_4_bits(tmp_path: Path) -> None:
    codes, _ = written(tmp_path, "gptq", 128)
    config = json.loads((codes / "config.json").read_text())
    says = config.pop("quantization_config")
    (codes / "config.json").write_text(json.dumps(config))
    del says["quant_method"]
    (codes / "quantize_config.json").write_text(json.dumps(says))
    assert formats(Driver(codes, torch.bfloat16, max_sequence_tokens=LENGTH)) == {"GROUPS_128"}


def test_an_encoder_decoder_of_4_bits_stays_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {**encoder_decoders.T5, "d_model": 64, "d_ff": 128}
    monkeypatch.setitem(encoder_decoders.FAMILIES, "T5", ("T5", shape))
    plain = encoder_decoders.write(tmp_path / "plain", "T5")
    tensors = load_file(plain / "model.safetensors")
    held: dict[str, Tensor] = {}
    for seed, (name, weight) in enumerate(tensors.items()):
        if re.search(r"(Attention\.[qkvo]|DenseReluDense\.w[io])\.weight$", name):
            codes, tensors[name] = codes_of("gptq", 32, name, weight, seed)
            held |= codes
        else:
            held[name] = tensors[name] = weight.bfloat16()
    save_file(tensors, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    quantized = config | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    codes_folder = checkpoints.write(tmp_path / "codes", quantized, held)

    def logits(folder: Path) -> tuple[Tensor, set[str]]:
        driver = Driver(folder, torch.bfloat16)
        read = encoder_decoders.SHORT
        fed = [*encoder_decoders.padded(read), *encoder_decoders.SAID[:9]]
        driver.step([row(0, fed, 0, encoder_decoders.blocks(48, 0), start={"encoder": len(read)})])
        return driver.last_logits(), formats(driver)

    (exact, _), (ours, found) = logits(plain), logits(codes_folder)
    assert found == {"GROUPS_32"} and 0 < relative_error(ours, exact) < 0.1


def test_experts_of_fp4_stay_what_they_are(tmp_path: Path) -> None:
    codes, plain = gpt_oss(tmp_path)
    driver = Driver(codes, torch.bfloat16, max_sequence_tokens=64)
    native = driver.engine.native
    assert native is not None and "int8 and fp4 in groups of 32, head in bf16" in native.weight_formats
    experts = {one.format.name for one in native.program.body if one.kind == Kind.EXPERTS}
    assert experts == {"FP4_32"}
    exact = logits_of(Driver(plain, torch.bfloat16, max_sequence_tokens=64))
    assert relative_error(logits_of(driver), exact) < 0.1
    numbers = Driver(codes, torch.bfloat16, max_sequence_tokens=64, quantize="none")
    assert torch.equal(logits_of(numbers), exact)


def logits_of(driver: Driver) -> Tensor:
    """Behind every token of a short prompt."""
    ids = list(range(3, 43))
    return driver.all_logits([row(0, ids, 0, blocks_for(40), start={}, sample=False, targets=[1] * 40)])


def test_matrices_of_no_groups_are_of_8_bits_beside_them(tmp_path: Path) -> None:
    codes, plain = written(tmp_path, "gptq", 128, left_out="down_proj")
    driver = Driver(codes, torch.bfloat16, max_sequence_tokens=LENGTH)
    assert formats(driver) == {"GROUPS_128", "INT8"}
    exact = whole(Driver(plain, torch.bfloat16, max_sequence_tokens=LENGTH))
    assert relative_error(whole(driver), exact) < 0.08


def test_what_the_engine_has_no_groups_of_is_served_in_bf16(tmp_path: Path) -> None:
    ordered, _ = written(tmp_path / "ordered", "gptq", 128, desc_act=True)
    assert formats(Driver(ordered, torch.bfloat16)) == {"BF16"}
    small, _ = written(tmp_path / "small", "gptq", 16)
    assert formats(Driver(small, torch.bfloat16)) == {"BF16"}


def test_a_group_is_what_config_json_says() -> None:
    def of(**given: Any) -> str | None:
        return quantization.published({"quantization_config": given})

    assert of(quant_method="gptq", bits=4, group_size=128) == "groups_128"
    assert of(quant_method="gptq", bits=4, group_size=-1) == "groups_128"
    assert of(quant_method="awq", bits=4, group_size=64) == "groups_64"
    assert of(quant_method="gptq", bits=4, group_size=256) == "groups_128"
    assert of(quant_method="gptq", bits=8, group_size=128) is None
    assert of(quant_method="gptq", bits=4, group_size=128, desc_act=True) is None
    assert of(quant_method="fp8", bits=4, group_size=128) is None
    weights = {"num_bits": 4, "group_size": 128, "actorder": "group"}
    assert of(quant_method="compressed-tensors", config_groups={"group_0": {"weights": weights}}) is None
    weights["actorder"] = "static"
    assert (
        of(quant_method="compressed-tensors", config_groups={"group_0": {"weights": weights}}) == "groups_128"
    )
    weights["type"] = "float"
    assert of(quant_method="compressed-tensors", config_groups={"group_0": {"weights": weights}}) is None
    groups = {"group_0": {"weights": {**weights, "type": "int"}}, "group_1": {"weights": weights}}
    assert of(quant_method="compressed-tensors", config_groups=groups) is None, "NVFP4 would be rounded"
    eight = {"weights": {"num_bits": 8, "group_size": 32}}
    four = {"weights": {"num_bits": 4, "group_size": 64}}
    for first, second in ((eight, four), (four, eight)):
        mixed = {"group_0": first, "group_1": second}
        assert of(quant_method="compressed-tensors", config_groups=mixed) == "groups_64"
    assert of(quant_method="compressed-tensors", config_groups={"a": eight, "b": eight}) is None
    assert of(quant_method="auto-round", bits=4, group_size=128) == "groups_128"
    assert of(quant_method="mxfp4") == "fp4_32"
    assert quantization.published({"quantization_config": "gptq"}) is None
    assert quantization.published({}) is None


def test_memory_is_counted_as_4_bits(tmp_path: Path) -> None:
    """By the rehearsal, from which a worker knows whether it has room, and by the load."""
    from penstock.loading.checkpoint import Checkpoint
    from penstock.models import native_choice
    from penstock_kernels import tensors

    folder, plain = written(tmp_path, "gptq", 128)
    config = check_folder(folder)
    quantizer = native_choice.published(config, recipes.read_config(config), tensors.bfloat16, CPU, ALONE)
    assert quantizer is not None
    counted = []
    for one, how in ((folder, quantizer), (plain, None)):
        with Checkpoint(one, tensors.bfloat16) as checkpoint:
            recipes.load_from(check_folder(one), checkpoint, ALONE, how)
            counted.append(checkpoint.bytes_made)
    ends = 2 * 2 * 199 * 256  # embedding and head
    assert (counted[0] - ends) < 0.3 * (counted[1] - ends)
    part = native_choice.published(
        config, recipes.read_config(config), tensors.bfloat16, CPU, TensorGroup(1, 2)
    )
    assert part is not None, "shards have it, too"
