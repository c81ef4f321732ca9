"""Models that cannot be served: broken in one way each, or too large; one line that names file, key or flag. And those
that only look broken.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import wire
from checkpoints import random_llama
from conftest import Launch, fails
from launched import BINARY


def test_too_little_memory_for_the_cache_is_named(launch: Launch) -> None:
    fails(launch("--max-batch-total-tokens", "1000000000000"), 1, "--max-batch-total-tokens")


def test_too_little_memory_for_anything_is_named(launch: Launch) -> None:
    fails(launch("--memory-fraction", "0.00001"), 1, "KV cache", "MiB", "--max-total-tokens")


Break = Callable[[Path], None]


def checkpoint(folder: Path) -> Path:
    return random_llama(folder, hidden=32, layers=1, heads=2, kv_heads=1)


def remove(name: str) -> Break:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Break:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return apply


def edit_config(**changes: Any) -> Break:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return apply


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit_header(change: Callable[[dict[str, Any]], None]) -> Break:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
        change(header)
        new = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return apply


def beyond_the_end(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = [2**60, 2**60 + 128]


def overlapping(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = [0, 128]


def backwards(header: dict[str, Any]) -> None:
    start, end = header["model.norm.weight"]["data_offsets"]
    header["model.norm.weight"]["data_offsets"] = [end, start]


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Break:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def lose_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.0.mlp.up_proj.weight"]


def misshape_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(7)


def add_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.99.mlp.up_proj.weight"] = torch.ones(7)


def spoil_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = torch.nan


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


def lose_a_shard(folder: Path) -> None:
    names = list(load_file(folder / WEIGHTS))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    index["weight_map"][names[0]] = "model-00002-of-00002.safetensors"
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(32)}, folder / "pytorch_model.bin")


WEIGHTS = "model.safetensors"
BROKEN: dict[str, tuple[Break, tuple[str, ...]]] = {
    "no config": (remove("config.json"), ("config.json",)),
    "config is not JSON": (write("config.json", b"{"), ("config.json",)),
    "config is an array": (write("config.json", b"[]"), ("config.json",)),
    "config lacks a size": (edit_config(hidden_size=None), ("hidden_size",)),
    "config has a negative size": (edit_config(num_hidden_layers=-1), ("num_hidden_layers",)),
    "heads do not divide": (
        edit_config(num_attention_heads=3, num_key_value_heads=2),
        ("num_attention_heads",),
    ),
    "unsupported architecture": (
        edit_config(model_type="xlnet", architectures=["XLNetLMHeadModel"]),
        ("XLNetLMHeadModel", "no recipe", "in any order"),
    ),
    "unknown architecture": (
        edit_config(model_type="nobodys", architectures=["NobodysModelForCausalLM"]),
        ("NobodysModelForCausalLM", "no recipe", "does not know"),
    ),
    "a version that nobody knows": (
        edit_config(model_type="qwen9", architectures=["Qwen9ForCausalLM"]),
        ("Qwen9ForCausalLM", "model_type (qwen9)", "Qwen2ForCausalLM, Qwen3ForCausalLM"),
    ),
    "no weights": (remove(WEIGHTS), ("safetensors",)),
    "only pickled weights": (only_pickled, ("pytorch_model.bin", "--trust-remote-code")),
    "quantized": (edit_config(quantization_config={"quant_method": "exl2"}), ("quantized (exl2)",)),
    "no tokenizer": (remove("tokenizer.json"), ("tokenizer.json",)),
    "tokenizer is broken": (write("tokenizer.json", b'{"version": 1}'), ("tokenizer.json",)),
    "truncated weights": (truncate_weights, (WEIGHTS,)),
    "empty weights": (write(WEIGHTS, b""), (WEIGHTS,)),
    "huge header": (write(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), (WEIGHTS,)),
    "header beyond the file": (write(WEIGHTS, struct.pack("<Q", 5000) + b"{}"), (WEIGHTS,)),
    "header is not JSON": (write(WEIGHTS, struct.pack("<Q", 8) + b"garbage!"), (WEIGHTS,)),
    "offsets beyond the end": (edit_header(beyond_the_end), (WEIGHTS,)),
    "offsets overlap": (edit_header(overlapping), (WEIGHTS,)),
    "offsets run backwards": (edit_header(backwards), (WEIGHTS,)),
    "a tensor is missing": (edit_tensors(lose_a_tensor), ("model.layers.0.mlp.up_proj.weight",)),
    "a tensor has another shape": (edit_tensors(misshape_a_tensor), ("model.norm.weight",)),
    "a tensor too many": (edit_tensors(add_a_tensor), ("model.layers.99.mlp.up_proj.weight",)),
    "a tensor of whole numbers": (edit_tensors(whole_numbers), ("model.norm.weight (I8)",)),
    "a number that is none": (edit_tensors(spoil_a_tensor), ("NaN", "model.layers.0.mlp.up_proj.weight")),
    "a shard is missing": (lose_a_shard, ("1 file is missing: model-00002-of-00002.safetensors",)),
}


# One of each class: what the launcher sees, the configuration, the architecture, the tokenizer, weights that are not
# there, a file's header, its tensors. The rest are the long tail.
USUAL_BREAKS = {
    "config is not JSON",
    "config has a negative size",
    "unsupported architecture",
    "no weights",
    "tokenizer is broken",
    "offsets beyond the end",
    "a tensor is missing",
}
CASES = [case if case in USUAL_BREAKS else pytest.param(case, marks=pytest.mark.tail) for case in BROKEN]


@pytest.mark.parametrize("case", CASES)
def test_a_broken_checkpoint_is_one_clear_error(launch: Launch, tmp_path: Path, case: str) -> None:
    break_it, mentions = BROKEN[case]
    folder = checkpoint(tmp_path / "broken-model")
    break_it(folder)
    fails(launch("--model-id", str(folder)), 1, *mentions)


def test_pickled_weights_are_served_with_consent(launch: Launch, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "pickled")
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    launched = launch("--model-id", str(folder), "--trust-remote-code").wait_ready()
    answer = wire.post(launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}})
    assert answer.status == 200


def test_the_doctor_says_what_serving_would(tmp_path: Path) -> None:
    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = [str(BINARY), "doctor", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=inherited)

    shipped = asked()
    assert shipped.returncode == 0 and shipped.stdout.endswith("would be served\n"), shipped.stderr
    folder = checkpoint(tmp_path / "model")
    assert json.loads(asked("--model-id", str(folder), "--json").stdout)["would_serve"] is True
    edit_tensors(lose_a_tensor)(folder)
    ended = asked("--model-id", str(folder), "--json")
    assert ended.returncode == 1
    (problem,) = json.loads(ended.stdout)["problems"]
    assert "lacks 1 tensor: model.layers.0.mlp.up_proj.weight" in problem
