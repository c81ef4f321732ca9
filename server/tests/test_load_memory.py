"""Loading in a fresh process: how much memory it takes at most, and what it says meanwhile."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine

MEASURE = """
import json, sys
from pathlib import Path
import torch
from penstock.loading import read_ahead
from penstock.models import native_choice, recipes
from penstock.parallel.group import ALONE
from penstock.worker import keep_memory

def memory(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))

keep_memory()
folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
torch.set_grad_enabled(False)
def load(folder):
    config, cpu = json.loads((folder / "config.json").read_text()), torch.device("cpu")
    quantizer = None
    if sys.argv[5]:
        quantizer = native_choice.quantizer(recipes.read_config(config), dtype, cpu, ALONE, sys.argv[5], False)
    return recipes.load(config, folder, dtype, cpu, trusted=True, quantizer=quantizer)

def weight_bytes(model):
    linears = [linear for layer in model.layers for linear in (
        layer.attention.qkv, layer.attention.out, layer.feed_forward.up, layer.feed_forward.out)]
    quantized = sum(linear.quantized.nbytes for linear in linears if linear.quantized is not None)
    return quantized + sum(t.nbytes for t in model.weights())

load(Path(sys.argv[4]))  # what the code itself takes
read_ahead.QUIET_SECONDS = float(sys.argv[3])
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
model = load(folder)
print(json.dumps([memory("VmHWM") - before, weight_bytes(model)]))
"""


def measured(
    folder: Path, dtype: str, quiet_seconds: float = 1e9, quantize: str = ""
) -> tuple[int, int, list[dict[str, Any]]]:
    """Bytes at the peak and of the weights, and the lines of the log."""
    small = folder.with_name("small")
    if not small.exists():
        wide = checkpoints.config(vocab_size=4000, hidden_size=256, num_hidden_layers=1)
        checkpoints.write(small, wide)
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), dtype, str(quiet_seconds), str(small), quantize],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    peak, weights = json.loads(ended.stdout)
    return peak, weights, [json.loads(line) for line in ended.stderr.splitlines()]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 million parameters in bf16, in three shards: 200 MB."""
    config = checkpoints.config(
        vocab_size=16000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        torch_dtype="bfloat16",
    )
    folder = tmp_path_factory.mktemp("large")
    torch.manual_seed(0)
    weights = {
        name: torch.empty(tensor.shape, dtype=torch.bfloat16).uniform_(-0.05, 0.05)
        for name, tensor in checkpoints.tensors(config).items()
    }
    return checkpoints.write(folder, config, weights, shards=3)


# Pieces on their way, stacks and arenas of the copying threads: as much for a large model as for a small one.
FIXED = 32e6


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.tail)])
def test_memory_never_holds_more_than_the_weights_and_a_tenth(large: Path, dtype: str) -> None:
    peak, weights, lines = measured(large, dtype)
    assert weights > 190e6
    assert lines == []  # a short load says nothing
    assert peak < 1.1 * weights + FIXED, f"{peak / 1e6:.0f} MB for {weights / 1e6:.0f} MB"


@pytest.mark.parametrize("quantize", ["int8", "int4", "int4-g64-zp"])
def test_memory_holds_one_layer_in_bf16_beside_quantized_weights(large: Path, quantize: str) -> None:
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine as error:
        pytest.skip(str(error))
    peak, weights, _ = measured(large, "bfloat16", quantize=quantize)
    # Embedding and head stay as they are: 49 MB of 219.
    assert weights < (140e6 if quantize == "int8" else 100e6)
    layer = 2 * (4 * 768 * 768 + 3 * 768 * 2048)
    assert peak < 1.1 * weights + layer + FIXED, f"{peak / 1e6:.0f} MB for {weights / 1e6:.0f} MB"


def test_progress_is_told_in_percent_and_gigabytes(large: Path) -> None:
    _, _, lines = measured(large, "bfloat16", quiet_seconds=0.0)
    told = [line["message"] for line in lines]
    assert all(line["progress"] and line["level"] == "INFO" for line in lines)
    assert told[0].startswith("loading weights: ") and "% of 0.2 GB, " in told[0]
    assert told[-1].startswith("loading weights: 100% of 0.2 GB")
