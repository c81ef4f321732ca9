"""Families that are published in fp8 and NVFP4, DeepSeek V4 with experts in fp4: the same model in codes and in what they stand for, to the last bit, from
the names that each family's checkpoints have.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import experts_apart, make
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.loading.checks import check_folder
from penstock.models import recipes
from penstock.parallel.group import ALONE, TensorGroup
from penstock.quantization.codes import FP4

LARGE = re.compile(r".*layers\.\d+\..*(attn|mlp|ffn|block_sparse_moe|experts).*\.weight")
ROUTES = re.compile(r".*(gate|router|norm|embed_tokens|embed|weights_proj|e_score.*)\.weight")
EXPERTS = re.compile(r".*\.experts\.\d+\..*\.weight")
BLOCK = 32


def in_fp8(weight: Tensor, scales_are_powers: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, a scale for each block, and what they stand for."""
    rows, columns = (-(-side // BLOCK) for side in weight.shape)
    exponents = torch.randint(-4, -1, (rows, columns), generator=torch.Generator().manual_seed(rows))
    scales = torch.exp2(exponents.float()) * (1.0 if scales_are_powers else 1.1)
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[
        : weight.shape[0], : weight.shape[1]
    ]
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return codes, scales.to(torch.float8_e8m0fnu) if scales_are_powers else scales, codes.float() * wide


def in_fp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two numbers in each byte, a power of two for each 32."""
    rows, columns = weight.shape
    codes = torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(rows))
    exponents = torch.randint(-6, -3, (rows, columns // 32), generator=torch.Generator().manual_seed(columns))
    numbers = torch.from_numpy(FP4)[codes] * torch.exp2(exponents.float()).repeat_interleave(32, 1)
    pairs = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    return pairs, torch.exp2(exponents.float()).to(torch.float8_e8m0fnu), numbers


def test_mistral_small_4_in_fp8_has_scales_of_activations_beside_its_experts(tmp_path: Path) -> None:
    """As published: a scale for a matrix, or for each expert of a stack."""
    config = FAMILIES["Mistral Small 4 with images"]
    folder = make(tmp_path / "plain", config)
    plain = load_file(folder / "model.safetensors")
    coded = dict(plain)
    for name, weight in list(plain.items()):
        if not re.fullmatch(r".*language_model.*layers\..*_(proj|mqa)(\.weight)?", name) or "vision" in name:
            continue
        scales = (
            weight.abs().amax((1, 2), keepdim=True) / 448 if weight.dim() == 3 else weight.abs().max() / 448
        )
        coded[name] = (weight / scales).to(torch.float8_e4m3fn)
        plain[name] = coded[name].float() * scales
        beside = name.removesuffix(".weight") + ("_" if weight.dim() == 3 else ".") + "activation_scale"
        coded |= {f"{name}_scale_inv": scales, beside: torch.ones(len(weight) if weight.dim() == 3 else ())}
    assert sum(name.endswith("_proj_activation_scale") for name in coded) > 2
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    other = tmp_path / "coded"
    other.mkdir()
    save_file(coded, other / "model.safetensors", {"format": "pt"})
    scheme = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    (other / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    loaded = [
        recipes.load(check_folder(one), one, torch.bfloat16, torch.device("cpu"), ALONE)
        for one in (folder, other)
    ]
    assert all(map(torch.equal, loaded[0].weights(), loaded[1].weights()))


def made(at: Path, family: str) -> tuple[Path, dict[str, Tensor]]:
    """A model of the family, and what whoever makes codes of it begins with."""
    folder = make(at, FAMILIES[family])
    plain = load_file(folder / "model.safetensors")
    # Its class stacks the experts, and who makes codes of them does not.
    return folder, experts_apart(plain) if family == "Qwen3-VL-MoE" else plain


@pytest.mark.parametrize(
    "family", ["DeepSeek V3", "DeepSeek V4", "MiniMax M2", "Qwen3-MoE", "Qwen3-VL-MoE", "Qwen 3.5"]
)
def test_a_family_in_codes_is_the_family(family: str, tmp_path: Path) -> None:
    config, is_v4 = FAMILIES[family], family == "DeepSeek V4"
    folder, plain = made(tmp_path / "plain", family)
    coded, count = dict(plain), 0
    for name, weight in list(plain.items()):
        if weight.dim() != 2 or not LARGE.fullmatch(name) or ROUTES.fullmatch(name):
            continue
        of_four = is_v4 and EXPERTS.fullmatch(name) and weight.shape[1] % 32 == 0
        codes, scales, plain[name] = in_fp4(weight) if of_four else in_fp8(weight.float(), is_v4)
        beside = name.removesuffix(".weight") + ".scale" if is_v4 else f"{name}_scale_inv"
        coded |= {name: codes, beside: scales}
        count += 1
    assert count > 8, sorted(plain)
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    scheme = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
    are_the_same(folder, config, coded, scheme)


def in_nvfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two numbers in each byte, a scale of e4m3 for each 16, one for all of them."""
    made = torch.Generator().manual_seed(weight.numel())
    codes = torch.randint(0, 16, weight.shape, generator=made)
    scales = (torch.rand(*weight.shape[:-1], weight.shape[-1] // 16, generator=made) * 400 + 1).to(
        torch.float8_e4m3fn
    )
    factor = torch.tensor(0.3) / 2**11
    numbers = torch.from_numpy(FP4)[codes] * (scales.float() * factor).repeat_interleave(16, -1)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), scales, factor, numbers


def are_the_same(
    folder: Path, config: dict[str, Any], coded: dict[str, Tensor], scheme: dict[str, Any]
) -> None:
    """A model of plain numbers in `folder`, and the one in codes, also as a rank of two loads them."""
    other = folder.parent / "coded"
    other.mkdir()
    save_file(coded, other / "model.safetensors", {"format": "pt"})
    (other / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    for group in (ALONE, TensorGroup(1, 2)):
        loaded = [
            recipes.load(check_folder(one), one, torch.bfloat16, torch.device("cpu"), group)
            for one in (folder, other)
        ]
        assert loaded[0].parameters == loaded[1].parameters
        assert all(map(torch.equal, loaded[0].weights(), loaded[1].weights()))


@pytest.mark.parametrize("is_compressed", [False, True], ids=["ModelOpt", "compressed-tensors"])
@pytest.mark.parametrize("family", ["DeepSeek V3", "Qwen3-MoE", "Qwen3-VL-MoE", "Qwen 3.5"])
def test_a_family_in_nvfp4_is_the_family(family: str, is_compressed: bool, tmp_path: Path) -> None:
    config = FAMILIES[family]
    folder, plain = made(tmp_path / "plain", family)
    coded, count = dict(plain), 0
    for name, weight in list(plain.items()):
        is_left_out = weight.dim() != 2 or weight.shape[1] % 16 or not LARGE.fullmatch(name)
        if is_left_out or ROUTES.fullmatch(name):
            continue
        codes, scales, factor, plain[name] = in_nvfp4(weight)
        del coded[name]
        module = name.removesuffix("weight")
        if is_compressed:
            plain[name] = plain[name] / factor / (1 / factor)
            coded |= {f"{name}_packed": codes, f"{name}_global_scale": 1 / factor.view(1)}
            coded[f"{module}input_global_scale"] = torch.ones(1)
        else:
            coded |= {name: codes, f"{name}_scale_2": factor, f"{module}input_scale": torch.ones(())}
        coded[f"{name}_scale"] = scales
        count += 1
    assert count > 8, sorted(plain)
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    scheme = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    if is_compressed:
        scheme = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    are_the_same(folder, config, coded, scheme)


def test_experts_of_llama_4_in_nvfp4_are_the_family(tmp_path: Path) -> None:
    """As ModelOpt leaves them: one tensor for all, of two inputs in a byte."""
    config = FAMILIES["Llama 4"]
    folder = make(tmp_path / "plain", config)
    plain = load_file(folder / "model.safetensors")
    coded = dict(plain)
    experts = [name for name in plain if re.search(r"experts\.(gate_up|down)_proj$", name)]
    assert experts
    for name in experts:
        codes, scales, factor, exact = in_nvfp4(plain[name].transpose(1, 2))
        plain[name] = exact.transpose(1, 2).contiguous()
        coded |= {name: codes.transpose(1, 2).contiguous(), f"{name}_weight_scale_2": factor}
        coded[f"{name}_weight_scale"] = scales.transpose(1, 2).contiguous()
        coded[f"{name}_input_scale"] = torch.ones(())
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    are_the_same(folder, config, coded, {"quant_method": "modelopt", "quant_algo": "NVFP4"})


def test_the_n_grams_of_qwen_4_in_fp8_have_one_scale(tmp_path: Path) -> None:
    config = FAMILIES["Qwen 4 with images"]
    folder = make(tmp_path / "plain", config)
    plain = load_file(folder / "model.safetensors")
    coded, scale = dict(plain), torch.tensor([0.01]).bfloat16()
    parts = [name for name in plain if "ngram_embedding.shard_" in name]
    assert parts
    for name in parts:
        coded[name] = (plain[name].float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        plain[name] = coded[name].float() * scale
        coded[re.sub(r"shard_\d+\.weight", "weight_scale", name)] = scale.clone()
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    are_the_same(folder, config, coded, {"quant_method": "fp8", "weight_block_size": [128, 128]})


def test_minimax_m3_in_mxfp8_is_the_family(tmp_path: Path) -> None:
    config = FAMILIES["MiniMax M3"]
    folder = make(tmp_path / "plain", config)
    plain = load_file(folder / "model.safetensors")
    coded, count = dict(plain), 0
    for name, weight in list(plain.items()):
        if weight.dim() != 2 or weight.shape[1] % 32 or not LARGE.fullmatch(name) or ROUTES.fullmatch(name):
            continue
        exponents = torch.randint(118, 122, (len(weight), weight.shape[1] // 32), dtype=torch.uint8)
        wide = torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
        coded[name] = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        plain[name], coded[f"{name}_scale_inv"] = coded[name].float() * wide, exponents
        count += 1
    assert count > 8
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    are_the_same(folder, config, coded, {"quant_method": "mxfp8", "weight_block_size": [1, 32]})
