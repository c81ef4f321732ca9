"""Checkpoints whose weights are codes of 8 and 4 bits are loaded as what the codes stand for: to the last bit what torch makes of them, whole and
in parts of ranks.
"""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import checkpoints
from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder
from penstock.loading.model_files import Stored
from penstock.models import recipes
from penstock.parallel.group import ALONE, TensorGroup, ranges
from penstock.quantization import codes, words
from penstock_kernels import tensors

CPU = torch.device("cpu")
FP8, POWERS = torch.float8_e4m3fn, torch.float8_e8m0fnu
Coded = tuple[
    dict[str, Tensor], Tensor
]  # what the file has beside the weight's name, and what that stands for in fp32


def spread(scales: Tensor, weight: Tensor, block: tuple[int, int]) -> Tensor:
    """A scale for each number."""
    rows, columns = weight.shape
    wide = scales.float().repeat_interleave(block[0], 0)[:rows]
    return wide.repeat_interleave(block[1], 1)[:, :columns]


def random_scales(weight: Tensor, block: tuple[int, int], seed: int) -> Tensor:
    rows, columns = (-(-side // part) for side, part in zip(weight.shape, block, strict=True))
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) + 0.5


def blocks(weight: Tensor, seed: int) -> Coded:
    """As DeepSeek V3: the last blocks are not whole."""
    scales = random_scales(weight, (48, 40), seed)
    codes = (weight / spread(scales, weight, (48, 40))).to(FP8)
    return {"": codes, "_scale_inv": scales}, codes.float() * spread(scales, weight, (48, 40))


def rows(weight: Tensor, seed: int) -> Coded:
    scales = random_scales(weight, (1, weight.shape[1]), seed).bfloat16()
    codes = (weight / scales.float()).to(torch.float8_e5m2)
    return {"": codes, "_scale": scales, "@input_scale": torch.ones(1)}, codes.float() * scales.float()


def one(weight: Tensor, seed: int) -> Coded:
    codes = (weight * 8).to(FP8)
    return {"": codes, "_scale": torch.tensor(0.125)}, codes.float() / 8


def whole_numbers(weight: Tensor, seed: int) -> Coded:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales[:, None]).round().to(torch.int8)
    return {"": codes, "_scale": scales}, codes.float() * scales[:, None]


def pairs(weight: Tensor, seed: int) -> Coded:
    """As experts of DeepSeek V4: two numbers of fp4 in a byte, a power of two for each 32."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = weight.shape
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(119, 125, (rows, columns // 32), dtype=torch.uint8, generator=generator)
    exact = (
        convert_moe_packed_tensors(codes.view(1, rows, -1, 16), scales.view(1, rows, -1), dtype=torch.float32)
        .transpose(1, 2)[0]
        .contiguous()
    )
    return {"": codes.view(torch.int8), "@scale": scales.view(POWERS)}, exact.reshape(rows, columns)


def fp4(weight: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Random numbers of e2m1, two to a byte, the first in the lower half; and what they stand for without scales."""
    numbers = torch.randint(0, 16, weight.shape, generator=torch.Generator().manual_seed(seed))
    magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[numbers & 7]
    return (numbers[..., ::2] | numbers[..., 1::2] << 4).byte(), torch.where(
        numbers > 7, -magnitude, magnitude
    )


def nvfp4(weight: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bytes, scales in e4m3 for each 16 inputs, the one that they are multiplied with, and what it all stands for."""
    codes, numbers = fp4(weight, seed)
    generator = torch.Generator().manual_seed(seed)
    scales = (torch.rand(*weight.shape[:-1], weight.shape[-1] // 16, generator=generator) * 400 + 1).to(FP8)
    factor = torch.tensor(0.5 ** (seed % 5 + 10))  # exact, also as its reciprocal
    return codes, scales, factor, numbers * (scales.float() * factor).repeat_interleave(16, -1)


def modelopt_nvfp4(weight: Tensor, seed: int) -> Coded:
    codes, scales, factor, exact = nvfp4(weight, seed)
    return {"": codes, "_scale": scales, "_scale_2": factor, "@input_scale": torch.ones(())}, exact


def compressed_nvfp4(weight: Tensor, seed: int) -> Coded:
    codes, scales, factor, exact = nvfp4(weight, seed)
    made = {"_packed": codes, "_scale": scales, "_global_scale": (1 / factor).view(1)}
    return made | {"@input_global_scale": torch.ones(1)}, exact


def mixed(weight: Tensor, seed: int) -> Coded:
    """Matrices of NVFP4 and of fp8 in turn."""
    return modelopt_nvfp4(weight, seed) if seed % 2 else one(weight, seed)


def compressed_mxfp4(weight: Tensor, seed: int) -> Coded:
    codes, numbers = fp4(weight, seed)
    scales = mxfp8(weight, seed)[0]["_scale"]
    exact = numbers * torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    return {"_packed": codes, "_scale": scales}, exact


def mxfp8(weight: Tensor, seed: int) -> Coded:
    rows, columns = weight.shape
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(118, 122, (rows, columns // 32), dtype=torch.uint8, generator=generator)
    wide = torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    codes = (weight / wide).clamp(-448, 448).to(FP8)
    return {"": codes, "_scale": exponents}, codes.float() * wide


def modelopt_blocks(weight: Tensor, seed: int) -> Coded:
    """ModelOpt's FP8_PB_WO: scales are (o, 1, i, 1)."""
    scales = random_scales(weight, (16, 32), seed)
    codes = (weight / spread(scales, weight, (16, 32))).to(FP8)
    return {"": codes, "_scale": scales[:, None, :, None]}, codes.float() * spread(scales, weight, (16, 32))


def packed(numbers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Along the last dimension, as many as fit into words of 32 bits, the first lowest or in this order."""
    each = 32 // bits
    made = torch.zeros(*numbers.shape[:-1], numbers.shape[-1] // each, dtype=torch.int64)
    for place in range(each):
        made |= numbers[..., (order or range(each))[place] :: each].long() << (bits * place)
    return made.to(torch.uint32).view(torch.int32).contiguous()


def grouped(weight: Tensor, seed: int, bits: int, group_I: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random numbers (O, I) of so many bits, zero points and scales (G, O), and what they stand for."""
    generator = torch.Generator().manual_seed(seed)
    groups = int(group_I.max()) + 1
    numbers = torch.randint(0, 1 << bits, weight.shape, generator=generator)
    zeros = torch.randint(1, 1 << bits, (groups, len(weight)), generator=generator)
    scales = (torch.rand(groups, len(weight), generator=generator) / 50).half()
    exact = (numbers - zeros[group_I].T).float() * scales.float()[group_I].T
    return numbers, zeros, scales, exact


def in_order(weight: Tensor) -> Tensor:
    return torch.arange(weight.shape[1]) // 16


def gptq(weight: Tensor, seed: int) -> Coded:
    numbers, zeros, scales, exact = grouped(weight, seed, 4, in_order(weight))
    made = {"@qweight": packed(numbers, 4).T.contiguous(), "@qzeros": packed(zeros - 1, 4), "@scales": scales}
    return made | {"@g_idx": in_order(weight).int()}, exact


def zeros_as_they_are(weight: Tensor, seed: int) -> Coded:
    """As AutoRound's own layout has them (qlinear_torch.py): GPTQ's words, and nothing is taken of the zero points."""
    numbers, zeros, scales, exact = grouped(weight, seed, 4, in_order(weight))
    made = {"@qweight": packed(numbers, 4).T.contiguous(), "@qzeros": packed(zeros, 4), "@scales": scales}
    return made, exact


def whole_pairs(weight: Tensor, seed: int) -> Coded:
    """As ModelOpt's pack_int4_in_uint8: signed numbers of two outputs in a byte. Of some matrices inputs are scaled first."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-8, 8, weight.shape, generator=generator)
    numbers[0, :16] = torch.arange(-8, 8)
    scales = random_scales(weight, (1, 32), seed)
    made = {"": (numbers[::2] & 15 | (numbers[1::2] & 15) << 4).to(torch.uint8), "_scale": scales}
    return of_scaled_inputs(made, numbers * scales.repeat_interleave(32, 1), seed)


def of_scaled_inputs(made: dict[str, Tensor], exact: Tensor, seed: int) -> Coded:
    """With what the inputs of every other matrix are multiplied with before it."""
    if seed % 2:
        return made, exact
    scales = torch.rand(exact.shape[1], generator=torch.Generator().manual_seed(seed)).bfloat16() + 0.5
    return made | {"@pre_quant_scale": scales}, exact * scales.float()


def whole_pairs_for_fp8(weight: Tensor, seed: int) -> Coded:
    """W4A8_AWQ: beside it what a GPU divides scales by and multiplies products with."""
    made, exact = whole_pairs(weight, seed)
    return made | {"_scale_2": torch.tensor(0.25), "@input_scale": torch.tensor(2.0)}, exact


def scaled_nvfp4(weight: Tensor, seed: int) -> Coded:
    return of_scaled_inputs(*modelopt_nvfp4(weight, seed), seed)


def act_order(weight: Tensor, seed: int) -> Coded:
    """GPTQ of 8 bits in its second version, groups in any order."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(seed))
    group_I = in_order(weight)[order]
    numbers, zeros, scales, exact = grouped(weight, seed, 8, group_I)
    made = {"@qweight": packed(numbers, 8).T.contiguous(), "@qzeros": packed(zeros, 8), "@scales": scales}
    return made | {"@g_idx": group_I.int()}, exact


def awq(weight: Tensor, seed: int) -> Coded:
    numbers, zeros, scales, exact = grouped(weight, seed, 4, in_order(weight))
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    made = {"@qweight": packed(numbers.T, 4, order), "@qzeros": packed(zeros, 4, order), "@scales": scales}
    return made, exact


def compressed(weight: Tensor, seed: int) -> Coded:
    numbers, _, scales, _ = grouped(weight, seed, 4, in_order(weight))
    made = {"_packed": packed(numbers, 4), "_scale": scales.T.bfloat16().contiguous()}
    exact = (numbers - 8).float() * made["_scale"].float()[:, in_order(weight)]
    return made | {"_shape": torch.tensor(weight.shape)}, exact


def compressed_zeros(bits: int, group_I: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Coded]:
    """Numbers of so many bits, words of zero points down the outputs; `group_I` may be in any order (`actorder` `group`)."""

    def made(weight: Tensor, seed: int) -> Coded:
        numbers, zeros, scales, exact = grouped(weight, seed, bits, group_I(weight))
        codes = {"_packed": packed(numbers, bits), "_scale": scales.T.contiguous()}
        codes["_zero_point"] = packed(zeros, bits).T.contiguous()
        return codes | ({} if group_I is in_order else {"_g_idx": group_I(weight).int()}), exact

    return made


def in_any_order(weight: Tensor) -> Tensor:
    return in_order(weight)[torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5))]


KINDS: dict[str, tuple[Callable[[Tensor, int], Coded], dict[str, Any]]] = {
    "blocks": (blocks, {"quant_method": "fp8", "weight_block_size": [48, 40]}),
    "rows": (rows, {"quant_method": "fbgemm_fp8"}),
    "one": (one, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "whole numbers": (whole_numbers, {"quant_method": "compressed-tensors", "format": "int-quantized"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 16}),
    "act order": (act_order, {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "compressed": (compressed, {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "pairs": (pairs, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "compressed zeros": (
        compressed_zeros(4, in_order),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed zeros of 8 bits": (
        compressed_zeros(8, in_order),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed zeros in any order": (
        compressed_zeros(4, in_any_order),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "nvfp4": (modelopt_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4 and fp8": (
        mixed,
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "a": {"quant_algo": "FP8"},
                "b": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            },
        },
    ),
    "compressed nvfp4": (
        compressed_nvfp4,
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    ),
    "compressed mxfp4": (
        compressed_mxfp4,
        {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    ),
    "mxfp8": (mxfp8, {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
    "modelopt blocks": (modelopt_blocks, {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}),
    "auto-round": (
        gptq,
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 16},
    ),
    "auto-round with its own zero points": (
        zeros_as_they_are,
        {"quant_method": "auto-round", "packing_format": "auto_round", "bits": 4, "group_size": 16},
    ),
    "auto-round for gptqmodel": (
        zeros_as_they_are,
        {"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel", "bits": 4},
    ),
    "the first auto-round": (
        zeros_as_they_are,
        {"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2", "bits": 4, "group_size": 16},
    ),
    "the first auto-round as gptq": (
        gptq,
        {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2", "bits": 4},
    ),
    "the first auto-round as awq": (
        awq,
        {"quant_method": "intel/auto-round", "packing_format": "auto_round:auto_awq", "bits": 4},
    ),
    "auto-round that says nothing": (gptq, {"quant_method": "auto_round", "bits": 4, "group_size": 16}),
    "modelopt int4": (
        whole_pairs,
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32, "pre_quant_scale": True},
    ),
    "modelopt int4 for fp8": (whole_pairs_for_fp8, {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
    "nvfp4 with scaled inputs": (scaled_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}),
    "nvfp4 of no configuration": (modelopt_nvfp4, {}),
    "compressed nvfp4 of no configuration": (compressed_nvfp4, {}),
    "quark": (
        one,
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
            "algo_config": None,
        },
    ),
}


def written(folder: Path, kind: str) -> tuple[Path, Path]:
    """A model in codes, and one in what they stand for."""
    coded, scheme = KINDS[kind]
    config = checkpoints.config(intermediate_size=128)
    plain = checkpoints.tensors(config)
    held: dict[str, Tensor] = {}
    for seed, (name, weight) in enumerate(plain.items()):
        if "_proj." not in name:
            held[name] = weight
            continue
        made, plain[name] = coded(weight.float(), seed)
        held |= {
            name.removesuffix("weight") + ending[1:] if ending.startswith("@") else name + ending: part
            for ending, part in made.items()
        }
    says = {"quantization_config": scheme} if scheme else {}
    quantized = checkpoints.write(folder / "codes", config | says, held)
    return quantized, checkpoints.write(folder / "plain", config, plain)


@pytest.mark.parametrize("group", [ALONE, TensorGroup(1, 2)], ids=["whole", "part"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_loaded_as_what_they_stand_for(
    kind: str, dtype: torch.dtype, group: TensorGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.loading.tensor_reader.PIECE", 4096)
    folders = written(tmp_path, kind)
    coded, plain = (recipes.load(check_folder(folder), folder, dtype, CPU, group) for folder in folders)
    assert coded.parameters == plain.parameters
    assert all(map(torch.equal, coded.weights(), plain.weights()))


def test_layers_that_only_the_file_beside_config_json_has_are_loaded(tmp_path: Path) -> None:
    folders = written(tmp_path, "nvfp4 and fp8")
    config = json.loads((folders[0] / "config.json").read_text())
    layers = config["quantization_config"].pop("quantized_layers")
    (folders[0] / "config.json").write_text(json.dumps(config))
    says = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (folders[0] / "hf_quant_config.json").write_text(json.dumps(says))
    coded, plain = (recipes.load(check_folder(one), one, torch.bfloat16, CPU) for one in folders)
    assert all(map(torch.equal, coded.weights(), plain.weights()))


@pytest.mark.parametrize("kind", ["rows", "compressed"])
def test_a_head_in_codes_is_kept_though_config_ties_it_to_the_embedding(kind: str, tmp_path: Path) -> None:
    coded, plain = written(tmp_path, kind)
    held, exact = (load_file(folder / "model.safetensors") for folder in (coded, plain))
    made, exact["lm_head.weight"] = KINDS[kind][0](held.pop("lm_head.weight").float(), 77)
    config = check_folder(plain)
    checkpoints.write(plain, config, exact)
    held |= {f"lm_head.{e[1:]}" if e[0:1] == "@" else f"lm_head.weight{e}": part for e, part in made.items()}
    scheme = {"quantization_config": KINDS[kind][1]}
    checkpoints.write(coded, config | scheme | {"tie_word_embeddings": True}, held)
    found, wanted = (recipes.load(check_folder(one), one, torch.float32, CPU) for one in (coded, plain))
    assert all(torch.equal(*pair) for pair in zip(found.weights(), wanted.weights(), strict=True))


def gpt_oss(tmp_path: Path) -> tuple[Path, Path]:
    """A model with experts in blocks of fp4, and the same in bf16, where matrices are (in, out)."""
    config: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99,
        "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"], "swiglu_limit": 7.0,
        "max_position_embeddings": 64, "sliding_window": 24, "rope_theta": 1e4, "attention_bias": True,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    at = "model.layers.0."
    plain = {
        "model.embed_tokens.weight": random(99, 64),
        "lm_head.weight": random(99, 64),
        "model.norm.weight": random(64),
    }
    plain |= {f"{at}{name}_layernorm.weight": random(64) for name in ("input", "post_attention")}
    for name, width in (("q", 64), ("k", 32), ("v", 32)):
        plain |= {
            f"{at}self_attn.{name}_proj.weight": random(width, 64),
            f"{at}self_attn.{name}_proj.bias": random(width),
        }
    plain |= {f"{at}self_attn.o_proj.weight": random(64, 64), f"{at}self_attn.o_proj.bias": random(64)}
    plain |= {
        f"{at}self_attn.sinks": random(4),
        f"{at}mlp.router.weight": random(4, 64),
        f"{at}mlp.router.bias": random(4),
    }
    plain |= {
        f"{at}mlp.experts.gate_up_proj_bias": random(4, 192),
        f"{at}mlp.experts.down_proj_bias": random(4, 64),
    }
    coded = dict(plain)
    for name, rows_, columns in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
        shape = (4, rows_, columns // 32)
        parts = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 126, shape, dtype=torch.uint8, generator=generator)
        coded |= {f"{at}mlp.experts.{name}_blocks": parts, f"{at}mlp.experts.{name}_scales": scales}
        # transformers gives it back as its model has it: (in, out).
        plain[f"{at}mlp.experts.{name}"] = convert_moe_packed_tensors(parts, scales).contiguous()
    folders = [tmp_path / "coded", tmp_path / "plain"]
    for folder, held in zip(folders, (coded, plain), strict=True):
        checkpoints.write(folder, config, held)
    (folders[0] / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}})
    )
    return folders[0], folders[1]


def test_experts_as_gpt_oss_is_published(tmp_path: Path) -> None:
    folders = gpt_oss(tmp_path)
    for group in (ALONE, TensorGroup(1, 2)):
        loaded = [recipes.load(check_folder(one), one, torch.bfloat16, CPU, group) for one in folders]
        assert all(map(torch.equal, loaded[0].weights(), loaded[1].weights()))


def test_experts_of_gpt_oss_as_modelopt_leaves_them_in_nvfp4(tmp_path: Path) -> None:
    """(X, in / 2, out) with scales (X, in / 16, out), and one number for all experts or for each."""
    coded, plain = gpt_oss(tmp_path)
    exact = load_file(plain / "model.safetensors")
    held = dict(exact)
    for seed, name in enumerate(("gate_up_proj", "down_proj")):
        name = f"model.layers.0.mlp.experts.{name}"
        codes, scales, factor, numbers = nvfp4(exact[name].transpose(1, 2), seed)
        of_each = torch.exp2(torch.arange(4.0)) if seed else torch.ones(())
        exact[name] = (numbers * of_each.view(-1, 1, 1)).transpose(1, 2).contiguous()
        held |= {name: codes.transpose(1, 2).contiguous(), f"{name}_weight_scale_2": factor * of_each}
        held[f"{name}_weight_scale"] = scales.transpose(1, 2).contiguous()
    checkpoints.write(plain, json.loads((plain / "config.json").read_text()), exact)
    config = json.loads((coded / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    checkpoints.write(coded, config, held)
    for group in (ALONE, TensorGroup(1, 2)):
        loaded = [recipes.load(check_folder(one), one, torch.bfloat16, CPU, group) for one in (coded, plain)]
        assert all(map(torch.equal, loaded[0].weights(), loaded[1].weights()))


def test_experts_of_mxfp4_as_their_class_has_them(tmp_path: Path) -> None:
    """(X, in / 2, out) with powers of two (X, in / 32, out)."""
    weight = torch.zeros(2 * 48, 64)
    codes, numbers = fp4(weight, 3)
    exponents = torch.randint(
        120, 130, (96, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    exact = numbers * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    turned = [one.view(2, 48, -1).transpose(1, 2).contiguous() for one in (codes, exponents, exact)]
    save_file({"experts": turned[0], "experts_weight_scale": turned[1]}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    for mine in (None, [slice(1, 2)]):
        found = read(tmp_path, "experts", (2, 64, 48), mine)
        assert np.array_equal(found, turned[2][slice(None) if mine is None else mine[0]].numpy())


def read(folder: Path, name: str, shape: tuple[int, ...], rows: list[slice] | None = None) -> np.ndarray:
    """The one matrix of a checkpoint, in fp32."""
    with Checkpoint(folder, torch.float32) as checkpoint:
        checkpoint.tensor(name, shape, rows)
        checkpoint.check_all_used(re.compile(""))
        with checkpoint.reading(tells=False):
            found = checkpoint.tensor(name, shape, rows)
    return tensors.host(found)


def test_scales_of_inputs_that_fit_no_matrix_are_named(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "nvfp4 with scaled inputs")
    config = json.loads((folder / "config.json").read_text())
    held, module = load_file(folder / "model.safetensors"), "model.layers.0.mlp.down_proj."
    name = f"{module}pre_quant_scale"
    for wrong, says in (
        (torch.ones(64), f"{name} is [64], not [128]"),
        (torch.ones(128, dtype=torch.int32), f"{name} is of I32"),
    ):
        checkpoints.write(folder, config, held | {name: wrong})
        assert says in refusal(folder)
    # Of a matrix of numbers nobody knows whether they are in it.
    plain = {one: part for one, part in held.items() if not one.startswith(module)}
    plain |= {f"{module}weight": torch.ones(64, 128), name: torch.ones(128)}
    checkpoints.write(folder, config, plain)
    assert f"1 tensor without a place in the model: {name}" in refusal(folder)


def test_any_rows_and_columns_of_pairs_are_decoded() -> None:
    made, exact = whole_pairs(torch.zeros(32, 96), 2)
    stored = stored_as(
        weight=("U8", (16, 96)), weight_scale=("F32", (32, 3)), pre_quant_scale=("BF16", (96,))
    )
    found = codes.find("x.weight", (32, 96), stored, None)
    assert isinstance(found, codes.Matrix) and set(found.names) == stored.keys()
    inputs = made["@pre_quant_scale"].float().numpy()
    for rows_ in (slice(0, 32), slice(5, 27), slice(6, 7), slice(31, 32)):
        for columns in (slice(0, 96), slice(32, 64), slice(7, 50)):
            held = made[""].numpy()[found.stored_rows(rows_)]
            decoded = found.decoded(held, made["_scale"].numpy(), rows_, columns, inputs)
            assert np.array_equal(decoded, exact[rows_, columns].numpy())
    for wrong, says in (
        (("F32", (32, 5)), "no grid"),
        (("F32", (16, 3)), "no grid"),
        (("U8", (32, 3)), "is of U8"),
    ):
        found = codes.find("x.weight", (32, 96), stored | stored_as(weight_scale=wrong), None)
        assert isinstance(found, str) and says in found


def test_scales_of_stacked_experts_are_decoded_one_expert_at_a_time(tmp_path: Path) -> None:
    """Those of all would take a quarter of a byte for each number, in a model of 400 billion."""
    experts, outputs, inputs = 64, 128, 512
    generator = torch.Generator().manual_seed(1)
    held = {
        "experts": torch.randint(0, 256, (experts, outputs, inputs // 2), dtype=torch.uint8),
        "experts_scale": (torch.rand(experts, outputs, inputs // 16, generator=generator) + 1).to(FP8),
        "experts_scale_2": torch.rand(experts, generator=generator),
    }
    save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with Checkpoint(tmp_path, torch.bfloat16) as checkpoint:
        into = checkpoint.new((experts, outputs, inputs))
        checkpoint.fill(into, "experts", (experts, outputs, inputs))
        checkpoint.check_all_used(re.compile(""))
        with checkpoint.reading(tells=False):
            into = checkpoint.new((experts, outputs, inputs))
            tracemalloc.start()
            checkpoint.fill(into, "experts", (experts, outputs, inputs))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    of_all = experts * outputs * inputs // 16 * 4
    # An expert's numbers in fp32 pass, a few times over, and its scales.
    assert peak < of_all, f"{peak} bytes passed, and the scales of all experts are {of_all}"


def test_what_only_a_file_beside_config_json_says_is_read(tmp_path: Path) -> None:
    """The second version of GPTQ, of which zero points are as they are."""
    beside = {"bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"}
    for says in (beside, {"format": "gptq_v2"}):
        folder, plain = written(tmp_path / str(len(says)), "gptq")
        held = load_file(folder / "model.safetensors")
        ones = sum(1 << at for at in range(0, 32, 4))
        for name in (one for one in held if one.endswith("qzeros")):
            held[name] = (held[name].view(torch.uint32).long() + ones).to(torch.uint32).view(torch.int32)
        config = json.loads((folder / "config.json").read_text())
        del config["quantization_config"]
        checkpoints.write(folder, config, held)
        (folder / "quantize_config.json").write_text(json.dumps(says))
        coded, exact = (recipes.load(check_folder(one), one, torch.bfloat16, CPU) for one in (folder, plain))
        assert all(map(torch.equal, coded.weights(), exact.weights()))


def test_parts_of_a_table_have_one_scale(tmp_path: Path) -> None:
    """Qwen 4's n-grams in fp8, and in NVFP4 with a factor for all parts."""
    name = "ngram_embedding.shard_3.weight"
    table = {"weight_scale": Stored("file", "BF16", (1,), 0, 0)}
    stored = {f"ngram_embedding.{one}": part for one, part in table.items()}
    stored[name] = Stored("file", "F8_E4M3", (40, 32), 0, 0)
    found = codes.find(name, (40, 32), stored, None)
    assert isinstance(found, codes.Matrix) and found.block == (40, 32)
    stored = {
        name: Stored("file", "U8", (40, 16), 0, 0),
        f"{name}_scale": Stored("file", "F8_E4M3", (40, 2), 0, 0),
    }
    stored["ngram_embedding.weight_scale_2"] = Stored("file", "F32", (), 0, 0)
    found = codes.find(name, (40, 32), stored, None)
    assert isinstance(found, codes.Matrix) and found.factor == "ngram_embedding.weight_scale_2"


@pytest.mark.parametrize("group", [ALONE, TensorGroup(1, 2)], ids=["whole", "part"])
def test_experts_in_one_tensor_of_words(
    group: TensorGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """compressed-tensors' of Gemma 4 26B: (X, O, I / 8), and scales (X, O, G)."""
    monkeypatch.setattr("penstock.loading.tensor_reader.PIECE", 4096)
    made = [compressed(torch.zeros(48, 64), seed) for seed in range(4)]
    held = {
        f"experts{ending}": torch.stack([codes[ending] for codes, _ in made])
        for ending in ("_packed", "_scale")
    }
    save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    mine = ranges([group.share(4)])
    exact = torch.stack([numbers for _, numbers in made])[mine[0]]
    assert np.array_equal(read(tmp_path, "experts", (4, 48, 64), mine), exact.numpy())


def test_bytes_of_half_a_width_are_fp4_with_its_scales_alone() -> None:
    """Whole numbers of 4 bits with a scale for each row are not."""
    shape = (64, 64)
    for dtype, grid in (("F32", (64, 1)), ("F32", (64, 2)), ("U8", (64, 1)), ("F8_E4M3", (64, 4))):
        stored = stored_as(weight=("U8", (64, 32)), weight_scale=(dtype, grid))
        found = codes.find("x.weight", shape, stored, None)
        assert isinstance(found, str) and found.startswith("x.weight_scale is")
    held = {"weight": ("U8", (64, 32)), "weight_scale": ("F8_E4M3", (64, 4))}
    for factor, says in ((("F32", (2,)), "no grid"), (("I32", ()), "is of I32")):
        found = codes.find("x.weight", shape, stored_as(**held, weight_scale_2=factor), None)
        assert isinstance(found, str) and found.startswith("x.weight_scale_2 is") and says in found
    for wrong in (("U8", (64, 4)), ("F8_E4M3", (64, 2))):
        parts = held | {"weight_scale": wrong, "weight_scale_2": ("F32", ())}
        assert isinstance(codes.find("x.weight", shape, stored_as(**parts), None), str)


def refusal(folder: Path) -> str:
    with pytest.raises(UnusableModel) as caught:
        recipes.load(check_folder(folder), folder, torch.bfloat16, CPU)
    return str(caught.value)


def test_scales_that_fit_no_weight_are_named(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "blocks")
    held, name = load_file(folder / "model.safetensors"), "model.layers.0.self_attn.q_proj.weight_scale_inv"
    for wrong in (torch.ones(5, 2), torch.ones(0, 2), torch.ones(2, 2, 2)):
        save_file(held | {name: wrong}, folder / "model.safetensors")
        assert f"{name} is {list(wrong.shape)}, which is no grid of" in refusal(folder)
    save_file(held | {name: torch.ones(2, 2, dtype=torch.int32)}, folder / "model.safetensors")
    assert f"{name} is of I32" in refusal(folder)
    del held[name]
    save_file(held, folder / "model.safetensors")
    assert (
        "1 tensor of a dtype that cannot be used: model.layers.0.self_attn.q_proj.weight (F8_E4M3)"
        in refusal(folder)
    )


def test_codes_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "one")
    held, name = load_file(folder / "model.safetensors"), "model.layers.1.mlp.down_proj.weight"
    held[name].view(torch.uint8)[3, 5] = 0x7F
    save_file(held, folder / "model.safetensors")
    assert f"1 tensor with NaN or infinite numbers: {name}" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "scales"), [("whole numbers", "weight_scale"), ("awq", "scales"), ("gptq", "scales")]
)
def test_numbers_that_codes_stand_for_beyond_the_dtype_served_are_named(
    kind: str, scales: str, tmp_path: Path
) -> None:
    folder, _ = written(tmp_path, kind)
    path, at = folder / "model.safetensors", "model.layers.1.mlp.down_proj."
    held = load_file(path)
    held[at + scales] = held[at + scales].float()
    for scale, says in (
        (1e5, "1 tensor with numbers too large for the dtype served"),
        (float("nan"), "NaN or infinite"),
    ):
        held[at + scales].view(-1)[5] = scale
        save_file(held, path)
        with pytest.raises(UnusableModel) as caught:
            recipes.load(check_folder(folder), folder, torch.float16, CPU)
        assert says in str(caught.value) and ("choose another --dtype" in str(caught.value)) == (scale == 1e5)


SHARD = "model-00001-of-00001.safetensors"


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("compressed zeros", "weight_zero_point"),
        ("compressed zeros in any order", "weight_g_idx"),
        ("gptq", "qzeros"),
        ("act order", "g_idx"),
        ("awq", "qzeros"),
        ("gptq", "scales"),
        ("compressed", "weight_packed"),
        ("compressed", "weight_scale"),
        ("nvfp4", "weight_scale_2"),
        ("blocks", "weight_scale_inv"),
    ],
)
def test_a_part_of_a_matrix_that_index_and_file_disagree_about_is_missing(
    kind: str, part: str, tmp_path: Path
) -> None:
    """Without its zero points a matrix would be read as a symmetric one."""
    folder, _ = written(tmp_path, kind)
    path, lost = folder / "model.safetensors", f"model.layers.1.mlp.down_proj.{part}"
    index = folder / "model.safetensors.index.json"
    held = load_file(path)
    assert lost in held
    path.unlink()
    listed = dict.fromkeys(held, SHARD)
    save_file(held, folder / SHARD)
    index.write_text(json.dumps({"weight_map": listed}))
    recipes.load(check_folder(folder), folder, torch.bfloat16, CPU)
    index.write_text(json.dumps({"weight_map": {name: SHARD for name in held if name != lost}}))
    assert f"{lost} ({SHARD} has it, and the index does not list it)" in refusal(folder)
    del held[lost]
    save_file(held, folder / SHARD)
    index.write_text(json.dumps({"weight_map": listed}))
    assert f"{lost} (the index lists it in {SHARD}, and no file has it)" in refusal(folder)


def test_what_would_change_whole_numbers_of_8_bits_is_missing(tmp_path: Path) -> None:
    """Their zero points are not read, and refused where the index has them."""
    folder, _ = written(tmp_path, "whole numbers")
    name = "model.layers.1.mlp.down_proj.weight_zero_point"
    path, held = folder / "model.safetensors", load_file(folder / "model.safetensors")
    save_file(held | {name: torch.ones(64, 1, dtype=torch.int8)}, folder / SHARD)
    path.unlink()
    listed = {"weight_map": dict.fromkeys(held, SHARD)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    assert f"lacks 1 tensor: {name} ({SHARD} has it" in refusal(folder)


@pytest.mark.parametrize("kind", ["gptq", "whole numbers"])
def test_pickled_codes_are_read_as_well(kind: str, tmp_path: Path) -> None:
    folder, plain = written(tmp_path, kind)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    coded = recipes.load(check_folder(folder, True), folder, torch.bfloat16, CPU, trusted=True)
    exact = recipes.load(check_folder(plain), plain, torch.bfloat16, CPU)
    assert all(map(torch.equal, coded.weights(), exact.weights()))


def test_biases_that_older_files_have_for_all_matrices_are_passed_over_where_they_are_zeros(
    tmp_path: Path,
) -> None:
    folder, plain = written(tmp_path, "gptq")
    held, name = load_file(folder / "model.safetensors"), "model.layers.0.self_attn.q_proj.bias"
    save_file(held | {name: torch.zeros(64, dtype=torch.float16)}, folder / "model.safetensors")
    coded, exact = (recipes.load(check_folder(one), one, torch.bfloat16, CPU) for one in (folder, plain))
    assert all(map(torch.equal, coded.weights(), exact.weights()))
    save_file(held | {name: torch.full((64,), 0.5, dtype=torch.float16)}, folder / "model.safetensors")
    assert f"1 tensor without a place in the model: {name}" in refusal(folder)


def test_words_that_fit_no_weight_are_named(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "gptq")
    held, at = load_file(folder / "model.safetensors"), "model.layers.0.self_attn.q_proj."
    for name, wrong, says in (
        ("qweight", torch.zeros(6, 64, dtype=torch.int32), "numbers of 2, 4 or 8 bits are not"),
        ("qzeros", torch.zeros(4, 7, dtype=torch.int32), "not [4, 8]"),
        ("g_idx", torch.zeros(3, dtype=torch.int32), "not [64]"),
        ("scales", torch.zeros(4, 63), "which is no grid of"),
        ("g_idx", torch.zeros(64), "is of F32"),
    ):
        save_file(held | {at + name: wrong}, folder / "model.safetensors")
        assert says in refusal(folder) and at + name in refusal(folder)
    save_file(held | {f"{at}g_idx": held[f"{at}g_idx"] + 1}, folder / "model.safetensors")
    assert refusal(folder) == f"{at}g_idx names group 4, and {at}scales has 4"


def ordered(folder: Path, outputs: int, group_I: Tensor, groups: int, given: dict[str, Any]) -> Tensor:
    """A matrix of compressed-tensors with a `g_idx`; what it stands for where that says no order."""
    inputs = len(group_I)
    of_I = torch.arange(inputs) // -(-inputs // groups)
    numbers, _, scales, _ = grouped(torch.zeros(outputs, inputs), 1, 4, of_I)
    held = {"x.weight_packed": packed(numbers, 4), "x.weight_scale": scales.T.contiguous()}
    save_file(held | {"x.weight_g_idx": group_I.int()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": given}))
    return (numbers - 8).float() * scales.T.float()[:, of_I if (group_I < 0).any() else group_I % groups]


def test_groups_of_compressed_tensors_are_counted_by_inputs(tmp_path: Path) -> None:
    """Of which a gate with one output has more than outputs."""
    for outputs, inputs, groups in ((1, 128, 4), (32, 128, 4)):
        exact = ordered(tmp_path, outputs, torch.arange(inputs) // 32, groups, {})
        assert np.array_equal(read(tmp_path, "x.weight", (outputs, inputs)), exact.numpy())
    ordered(tmp_path, 32, torch.full((128,), 4), 4, {})
    with pytest.raises(UnusableModel, match=r"^x\.weight_g_idx names group 4, and x\.weight_scale has 4$"):
        read(tmp_path, "x.weight", (32, 128))


def test_an_order_of_minus_one_is_none(tmp_path: Path) -> None:
    """What compressed-tensors' modules keep where nothing has ordered them."""
    group_I = torch.full((128,), -1)
    exact = ordered(tmp_path, 32, group_I, 4, {"group_size": 32})
    assert np.array_equal(read(tmp_path, "x.weight", (32, 128)), exact.numpy())
    for groups, given, says in (
        (
            4,
            {"group_size": 64},
            "x.weight_scale has 4 groups of 128 inputs, and config.json says group_size 64",
        ),
        (3, {}, "x.weight_scale is [32, 3], which is no grid of x.weight_packed"),
    ):
        ordered(tmp_path, 32, group_I, groups, given)
        with pytest.raises(UnusableModel) as caught:
            read(tmp_path, "x.weight", (32, 128))
        assert str(caught.value) == f"x.weight_g_idx says no order, and {says}"


def stored_as(**tensors: tuple[str, tuple[int, ...]]) -> dict[str, Stored]:
    """By what follows the module's name."""
    return {f"x.{name}": Stored("file", dtype, shape, 0, 0) for name, (dtype, shape) in tensors.items()}


STRUCTURE: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128], "group_size": None}
        }
    },
}


# Quark's, of what stays the fp8 in blocks that it was published in beside fp4.
IN_BLOCKS = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]}}
IN_GROUPS = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "block_size": None}}
QUARK: dict[str, Any] = {"quant_method": "quark", "global_quant_config": IN_GROUPS}


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": STRUCTURE},
        {"compression_config": STRUCTURE},
        {"quantization_config": QUARK | {"layer_quant_config": {"*.kv_a_proj_with_mqa": IN_BLOCKS}}},
        {"quantization_config": QUARK | {"layer_type_quant_config": {"Linear": IN_BLOCKS}}},
        {"quantization_config": QUARK | {"global_quant_config": IN_BLOCKS, "layer_quant_config": {}}},
    ],
)
def test_blocks_are_of_the_size_that_config_json_says(config: dict[str, Any]) -> None:
    for rows, columns, grid in ((576, 2048, (5, 16)), (2880, 2880, (23, 23)), (192, 2048, (2, 16))):
        stored = stored_as(weight=("F8_E4M3", (rows, columns)), weight_scale=("BF16", grid))
        found = codes.find("x.weight", (rows, columns), stored, codes.block_of(config))
        assert isinstance(found, codes.Matrix) and found.block == (128, 128)
        unsaid = codes.find("x.weight", (rows, columns), stored, codes.block_of({}))
        if rows == 192:
            assert isinstance(unsaid, str) and unsaid.startswith(
                "x.weight_scale is [2, 16], blocks of 96 x 128 or of 128 x 128 of which the last are cut short"
            )
        else:
            assert unsaid == f"x.weight_scale is {list(grid)}, which is no grid of x.weight"


@pytest.mark.parametrize(
    "given",
    [
        {"quant_algo": "FP8_PB_WO"},
        {"quantization": {"quant_algo": "FP8_PB_WO", "group_size": 128}},
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo": "FP8_PB_WO"}}},
    ],
)
def test_modelopts_blocks_are_of_128_and_cut_short_at_the_end(given: dict[str, Any]) -> None:
    """ModelOpt crops weights back to their own rows and keeps the scales of the last blocks, such as of `kv_a_proj_with_mqa`
    (examples/kimi/kimi_k3/quantize_to_nvfp4.py, _quantize_weight_fp8_pb).
    """
    block = codes.block_of({"quantization_config": {"quant_method": "modelopt", **given}})
    for shape, grid in (((576, 7168), (5, 1, 56, 1)), ((960, 960), (8, 1, 8, 1))):
        stored = stored_as(weight=("F8_E4M3", shape), weight_scale=("F32", grid))
        found = codes.find("x.weight", shape, stored, block)
        assert isinstance(found, codes.Matrix) and found.block == (128, 128)
        assert isinstance(codes.find("x.weight", shape, stored, None), str), "a guess would be of 120"


def test_groups_of_another_size_than_config_json_says_are_refused() -> None:
    gptq = stored_as(
        qweight=("I32", (120, 64)), scales=("F16", (8, 64)), qzeros=("I32", (8, 8)), g_idx=("I32", (960,))
    )
    shape, plain = (64, 960), {name: one for name, one in gptq.items() if name != "x.g_idx"}
    weights = {"num_bits": 4, "group_size": 128}
    for given in (
        {"quant_method": "gptq", "group_size": 128},
        {"quant_method": "awq", "q_group_size": 128},
        {"quant_method": "gptq", "group_size": -1},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}},
    ):
        config = {"quantization_config": given}
        found = words.find("x.weight", shape, plain, config)
        size = -1 if given.get("group_size") == -1 else 128
        assert found == f"x.scales has 8 groups of 960 inputs, and config.json says group_size {size}"
        assert isinstance(words.find("x.weight", shape, gptq, config), words.Words), "g_idx says the groups"
    agreeing: list[dict[str, Any]] = [
        {},
        {"group_size": 120},
        {"group_size": 128, "dynamic": {"x": {"group_size": 120}}},
    ]
    for agrees in agreeing:
        assert isinstance(words.find("x.weight", shape, plain, {"quantization_config": agrees}), words.Words)
    one = stored_as(qweight=("I32", (120, 64)), scales=("F16", (1, 64)))
    for size in (-1, 960, 1024):
        assert isinstance(
            words.find("x.weight", shape, one, {"quantization_config": {"group_size": size}}), words.Words
        )


@pytest.mark.parametrize(
    "name",
    [
        "self_attn.kv_scale",
        "self_attn.k_proj.output_scale",
        "self_attn.prob_output_scale",
        "mlp.up_proj.input_zero_point",
        "self_attn.k_scale",
    ],
)
def test_scales_of_activations_and_caches_are_passed_over(name: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "one")
    held = load_file(folder / "model.safetensors")
    save_file(held | {f"model.layers.0.{name}": torch.ones(1)}, folder / "model.safetensors")
    recipes.load(check_folder(folder), folder, torch.bfloat16, CPU)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_of_0_borrow_from_their_neighbours_in_the_first_version_of_gptq(bits: int) -> None:
    """GPTQModel's convert_gptq_v2_to_v1_format subtracts from whole words."""
    weight = torch.zeros(32, 32)
    numbers, zeros, scales, _ = grouped(weight, 1, bits, in_order(weight))
    zeros[:, ::3] = 0
    exact = (numbers - zeros[in_order(weight)].T).float() * scales.float()[in_order(weight)].T
    ones = sum(1 << at for at in range(0, 32, bits))
    second = packed(zeros, bits).numpy().view(np.uint32)
    parts = {
        "x.qweight": packed(numbers, bits).T.contiguous().numpy().view(np.uint32),
        "x.scales": scales.float().numpy(),
    }
    stored = stored_as(qweight=("I32", (bits, 32)), scales=("F16", (2, 32)), qzeros=("I32", (2, bits)))
    for version, qzeros in (("gptq", second - np.uint32(ones)), ("gptq_v2", second)):
        config = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": version}}
        found = words.find("x.weight", (32, 32), stored, config)
        assert isinstance(found, words.Words)
        for rows in (slice(0, 32), slice(5, 27)):
            for columns in (slice(0, 32), slice(16, 32), slice(3, 21)):
                decoded = found.decoded(parts | {"x.qzeros": qzeros}, rows, columns)
                assert (torch.from_numpy(decoded) == exact[rows, columns]).all()


@pytest.mark.parametrize(
    "kind", ["gptq", "act order", "awq", "compressed zeros", "compressed zeros in any order"]
)
def test_of_columns_no_more_words_are_touched_than_hold_them(kind: str) -> None:
    """A rank reads its part of a file; of columns that are cut from words and groups as well."""
    made, exact = KINDS[kind][0](torch.zeros(48, 64), 3)
    stored, parts = {}, {}
    for ending, part in made.items():
        name = f"x.{ending[1:]}" if ending.startswith("@") else f"x.weight{ending}"
        dtype = {torch.int32: "I32", torch.float16: "F16", torch.int64: "I64"}[part.dtype]
        stored[name] = Stored("file", dtype, tuple(part.shape), 0, 0)
        parts[name] = part.view(torch.uint32).numpy() if dtype == "I32" else part.float().numpy()
    config = {"quantization_config": KINDS[kind][1]}
    found = words.find("x.weight", (48, 64), stored, config)
    assert isinstance(found, words.Words)
    inputs = 1 if found.holds_rows else 0
    for columns in (slice(16, 48), slice(5, 11), slice(0, 64)):
        decoded = found.decoded(parts, slice(8, 40), columns)
        assert np.array_equal(decoded, exact[8:40, columns].numpy())
        # What holds other inputs has no say.
        others = dict(parts)
        others[found.codes] = parts[found.codes].copy()
        each = 1 if kind == "awq" else 32 // found.bits
        side = np.moveaxis(others[found.codes], inputs, 0)
        side[: columns.start // each] = side[-(-columns.stop // each) :] = 0
        assert np.array_equal(found.decoded(others, slice(8, 40), columns), decoded)
