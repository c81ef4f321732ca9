"""What a step takes at most, measured in a fresh process, beside what Prepare keeps free for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE

MEASURE = """
import dataclasses, json, sys
from pathlib import Path
import numpy as np
import torch
from penstock.engine.engine import Engine
from penstock.engine.plan import CONTINUE, SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits
from penstock.engine.step_memory import working_bytes
from penstock.engine.tables import BLOCK_SIZE
from penstock.worker import keep_memory

def memory(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))

keep_memory()
torch.set_num_threads(1)
folder, dtype, kind = Path(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3]
slots, longest, step_tokens = int(sys.argv[4]), int(sys.argv[5]), 2048
config = json.loads((folder / "config.json").read_text())
engine = Engine(config, folder, dtype, torch.device("cpu"), deterministic=kind == "deterministic")
if kind == "score modifiers":
    engine.model.config = dataclasses.replace(engine.model.config, softcap=30.0)
    for layer in engine.model.layers:
        layer.attention.score_modifiers = dataclasses.replace(layer.attention.score_modifiers, softcap=30.0)
tables = engine.tables(longest)
pages = longest // BLOCK_SIZE
engine.allocate(
    Limits(
        max_slots=slots, max_step_tokens=step_tokens, max_sequence_tokens=longest, pages=pages, block_size=BLOCK_SIZE,
        tables=tables, vocab_size=engine.model.config.vocab_size, has_encoder=False,
        has_state=engine.model.config.has_state, snapshots=int(engine.model.config.has_state),
    )
)
for cache in engine.cache.tensors_NJD:
    cache[:] = 1
none = np.zeros(0, np.uint32)

def step(rows, fed, cached):
    blocks = -(-(fed + cached) // BLOCK_SIZE)
    starts = greedy_starts(rows)
    if engine.model.config.has_state:
        starts = dataclasses.replace(starts, state_sources=np.zeros(rows, np.uint32))
    engine.clear()
    engine.step(Plan(1, none, np.arange(rows), np.full(rows, START | SAMPLE, np.uint8), np.full(rows, cached),
        np.full(rows, fed), np.zeros(rows * fed, np.uint32), np.full(rows, blocks),
        np.tile(np.arange(blocks, dtype=np.uint32), rows), none, starts))

step(2, 1, 40)
step(1, 40, 8)
peaks = {}
half = longest // 2
for shape in [(slots, 1, longest - 1), (step_tokens // 16, 16, longest - 16), (8, 256, half), (1, half, half)]:
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    step(*shape)
    peaks[str(shape)] = memory("VmHWM") - before
kept = working_bytes(engine.model.config, dtype, engine.device, slots, step_tokens, longest)
print(json.dumps([peaks, kept]))
"""


def measured(folder: Path, dtype: str, kind: str, slots: int, longest: int) -> tuple[dict[str, int], int]:
    """What steps of several shapes took, and what is kept free."""
    command = [sys.executable, "-c", MEASURE, str(folder), dtype, kind, str(slots), str(longest)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    peaks, kept = json.loads(ended.stdout)
    return peaks, kept


@pytest.mark.few(1)
@pytest.mark.skipif(DEVICE != "cpu", reason="measures the process")
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("bfloat16", "plain"),
        pytest.param("bfloat16", "deterministic", marks=pytest.mark.tail),
        ("float32", "score modifiers"),
    ],
)
def test_no_step_takes_more_memory_than_is_kept_free(dtype: str, kind: str, tmp_path: Path) -> None:
    """128 sequences on one prompt of 4,096 tokens, decoding and in pieces, and long pieces of few: gathered at once, keys
    and values of the first would be 1 GiB in bfloat16.
    """
    config = checkpoints.config(
        num_hidden_layers=1,
        head_dim=64,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    folder = checkpoints.write(tmp_path, config)
    peaks, kept = measured(folder, dtype, kind, slots=128, longest=4096)
    assert max(peaks.values()) < kept < 600e6, (peaks, kept)


# DeepSeek V4's layers with entries, of the published sizes of a head and its parts.
COMPRESSED: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 199,
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "head_dim": 512,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 64,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 0,
    "compress_ratios": [4, 128],
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def compressed_tensors() -> dict[str, Tensor]:
    """Random weights, under the published names."""
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        made[name] = torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    for name in ("embed", "head"):
        add(f"{name}.weight", 199, 256)
    for layer, series in enumerate((2, 1)):
        at = f"layers.{layer}."
        shapes: dict[str, tuple[int, ...]] = {
            "wq_a": (64, 256),
            "wq_b": (8 * 512, 64),
            "wkv": (512, 256),
            "wo_a": (2 * 64, 4 * 512),
            "wo_b": (256, 2 * 64),
            "q_norm": (64,),
            "kv_norm": (512,),
            "compressor.wkv": (series * 512, 256),
            "compressor.wgate": (series * 512, 256),
            "compressor.norm": (512,),
        }
        if series == 2:
            shapes |= {"indexer.wq_b": (8 * 128, 64), "indexer.weights_proj": (8, 256)}
            shapes |= {f"indexer.compressor.{name}": (2 * 128, 256) for name in ("wkv", "wgate")}
            shapes["indexer.compressor.norm"] = (128,)
            add(f"{at}attn.indexer.compressor.ape", 4, 2 * 128)
        for name, shape in shapes.items():
            add(f"{at}attn.{name}.weight", *shape)
        add(f"{at}attn.attn_sink", 8)
        add(f"{at}attn.compressor.ape", *((4, 2 * 512) if series == 2 else (128, 512)))
        for name in ("attn_norm", "ffn_norm"):
            add(f"{at}{name}.weight", 256)
        for expert in (*(f"experts.{number}" for number in range(4)), "shared_experts"):
            for name, shape in (("w1", (64, 256)), ("w3", (64, 256)), ("w2", (256, 64))):
                add(f"{at}ffn.{expert}.{name}.weight", *shape)
        add(f"{at}ffn.gate.weight", 4, 256)
        add(f"{at}ffn.gate.bias", 4)
        for branch in ("attn", "ffn"):
            for name, shape in (("fn", (24, 1024)), ("base", (24,)), ("scale", (3,))):
                add(f"{at}hc_{branch}_{name}", *shape)
    add("norm.weight", 256)
    for name, shape in (("fn", (4, 1024)), ("base", (4,)), ("scale", (1,))):
        add(f"hc_head_{name}", *shape)
    return made


@pytest.mark.skipif(DEVICE != "cpu", reason="measures the process")
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.tail)])
def test_windows_and_entries_take_no_more_than_is_kept_free(dtype: str, tmp_path: Path) -> None:
    """The states of 512 sequences, beside a step's tokens, and keys that are a state in one part and gathered in another."""
    folder = checkpoints.write(tmp_path, COMPRESSED, compressed_tensors())
    peaks, kept = measured(folder, dtype, "plain", slots=512, longest=1024)
    assert max(peaks.values()) < kept < 2.5e9, (peaks, kept)
