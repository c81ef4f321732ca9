"""Loading in a fresh process: how much memory it takes at most, and what it says meanwhile."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import checkpoints
from penstock.loading.checkpoint import Checkpoint
from penstock.quantization.codes import Matrix
from penstock.quantization.words import Words
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


@pytest.mark.few(1)
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


# Of 8 bits, of 4, and stacks of experts, one of them turned: how many matrices, what each stands for, and its parts.
CODED: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "codes": (8, (1024, 2048), {"weight": (np.int8, (1024, 2048)), "weight_scale": (np.float32, (1024, 1))}),
    "words": (
        8,
        (2048, 2048),
        {
            "qweight": (np.int32, (256, 2048)),
            "scales": (np.float16, (16, 2048)),
            "qzeros": (np.int32, (16, 256)),
        },
    ),
    "a stack of words": (
        2,
        (16, 512, 2048),
        {"weight_packed": (np.int32, (16, 512, 256)), "weight_scale": (np.float16, (16, 512, 16))},
    ),
    "a turned stack of codes": (
        2,
        (16, 2048, 512),
        {"weight": (np.uint8, (16, 1024, 512)), "weight_scale": (np.uint8, (16, 64, 512))},
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", CODED)
def test_what_is_read_of_codes_and_words_is_let_go_of(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight matrices this process has at most some, and of two stacks neither as a whole, whichever piece is decoded."""
    count, shape, parts = CODED[kind]
    held = {
        f"m{number}.{name}": np.ones(part_shape, dtype)
        for number in range(count)
        for name, (dtype, part_shape) in parts.items()
    }
    file = tmp_path / "model.safetensors"
    save_file(held, file)
    (tmp_path / "config.json").write_text("{}")
    seen: list[int] = []

    def watched(decoded: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            made = decoded(*arguments)
            seen.append(resident(file))
            return made

        return measured

    for one in (Matrix, Words):
        monkeypatch.setattr(one, "decoded", watched(one.decoded))
    with Checkpoint(tmp_path, torch.bfloat16) as checkpoint:
        for number in range(count):
            checkpoint.tensor(f"m{number}.weight", shape)
        with checkpoint.reading(tells=False):
            for number in range(count):
                checkpoint.tensor(f"m{number}.weight", shape)
            seen.append(resident(file))
    assert len(seen) > 8 and max(seen) > 0
    assert max(seen) < file.stat().st_size * 3 / 8, f"{seen} of {file.stat().st_size}"
    assert seen[-1] < file.stat().st_size / 16


def resident(file: Path) -> int:
    """Bytes of a file that is mapped, of which this process has the pages."""
    at, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, said = line.partition(" ")
        if not name.endswith(":"):
            at = line.endswith(str(file))
        elif at and name == "Rss:":
            found += int(said.split()[0]) * 1024
    return found


def test_progress_is_told_in_percent_and_gigabytes(large: Path) -> None:
    _, _, lines = measured(large, "bfloat16", quiet_seconds=0.0)
    told = [line["message"] for line in lines]
    assert all(line["progress"] and line["level"] == "INFO" for line in lines)
    assert told[0].startswith("loading weights: ") and "% of 0.2 GB, " in told[0]
    assert told[-1].startswith("loading weights: 100% of 0.2 GB")
