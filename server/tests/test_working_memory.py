"""What a step takes at most, measured in a fresh process, beside what Prepare keeps free for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import checkpoints
from client import DEVICE

MEASURE = """
import dataclasses, json, sys
from pathlib import Path
import numpy as np
import torch
from penstock.engine.engine import Engine
from penstock.engine.plan import CONTINUE, SAMPLE, START, Plan, greedy_starts
from penstock.engine.preparation import working_bytes
from penstock.engine.slots import Limits
from penstock.engine.tables import BLOCK_SIZE
from penstock.worker import keep_memory

def memory(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))

keep_memory()
torch.set_num_threads(1)
folder, dtype, kind = Path(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3]
slots, longest, step_tokens = 128, 4096, 2048
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
    )
)
for cache in engine.cache.tensors_NJD:
    cache[:] = 1
none = np.zeros(0, np.uint32)

def step(rows, fed, cached):
    blocks = -(-(fed + cached) // BLOCK_SIZE)
    engine.clear()
    engine.step(Plan(1, none, np.arange(rows), np.full(rows, START | SAMPLE, np.uint8), np.full(rows, cached),
        np.full(rows, fed), np.zeros(rows * fed, np.uint32), np.full(rows, blocks),
        np.tile(np.arange(blocks, dtype=np.uint32), rows), none, greedy_starts(rows)))

step(2, 1, 40)
step(1, 40, 8)
peaks = {}
for shape in [(slots, 1, longest - 1), (slots, 16, longest - 16), (8, 256, 2048), (1, 2048, 2048)]:
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    step(*shape)
    peaks[str(shape)] = memory("VmHWM") - before
kept = working_bytes(engine.model.config, dtype, engine.device, slots, step_tokens, longest)
print(json.dumps([peaks, kept]))
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="measures the process")
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("bfloat16", "plain"),
        ("bfloat16", "deterministic"),
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
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), dtype, kind], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    peaks, kept = json.loads(ended.stdout)
    assert max(peaks.values()) < kept < 600e6, (peaks, kept)
