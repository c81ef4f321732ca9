"""Adapters of small models, as PEFT saves them, and the same models with an adapter merged into their weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.models.adapting import adaptable


def write(folder: Path, pairs: dict[str, tuple[Tensor, Tensor]], alpha: float = 16.0) -> Path:
    """An adapter of these A (R, I) and B (O, R), whose ranks are all the same."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = len(next(iter(pairs.values()))[0])
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        f"base_model.model.{module}.lora_{side}.weight": tensor.contiguous()
        for module, pair in pairs.items()
        for side, tensor in zip("AB", pair, strict=True)
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def random_pairs(
    modules: dict[str, tuple[int, int]], rank: int, seed: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each module A and B, in bf16, whose product is about as large as the weights of `models.randomize`."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for module, (outputs, inputs) in modules.items():
        a_RI = torch.randn((rank, inputs), generator=generator) * inputs**-0.5
        b_OR = torch.randn((outputs, rank), generator=generator) * rank**-0.5 / 2
        made[module] = a_RI.bfloat16(), b_OR.bfloat16()
    return made


def adapter(
    folder: Path, model: Path, rank: int, seed: int, only: str = "", scale: float = 0.5
) -> tuple[Path, Path]:
    """An adapter of all that one may change, or of modules with `only` in their names, in `folder`, and the model with it merged in."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    modules = {name: shape for name, shape in adaptable(config, model).items() if only in name}
    pairs = random_pairs(modules, rank, seed)
    merged = folder / "merged"
    shutil.copytree(model, merged)
    tensors = load_file(model / "model.safetensors")
    for module, (a_RI, b_OR) in pairs.items():
        weight = tensors[f"{module}.weight"]
        added = scale * b_OR.float() @ a_RI.float()
        tensors[f"{module}.weight"] = weight + (
            added if weight.shape == added.shape and not is_turned(config, module) else added.T
        )
    save_file(
        {name: one.contiguous() for name, one in tensors.items()},
        merged / "model.safetensors",
        {"format": "pt"},
    )
    return write(folder / "adapter", pairs, alpha=scale * rank), merged


def is_turned(config: dict[str, Any], module: str) -> bool:
    """Whether the file has inputs first, as GPT-2's do."""
    return config["model_type"] in ("gpt2", "openai-gpt") and "c_" in module
