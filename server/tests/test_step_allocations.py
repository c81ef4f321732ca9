"""Nothing in the CPU engine's calls for a step allocates memory: counted in a fresh process, where `operator new` counts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checkpoints
from client import DEVICE
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine

WINDOWS = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
COUNTS = """
#include <atomic>
#include <cstdlib>
#include <new>
static std::atomic<long> count;
static void *counted(void *made) {
    count++;
    return made ? made : throw std::bad_alloc();
}
extern "C" long allocations() { return count.load(); }
void *operator new(std::size_t size) { return counted(std::malloc(size ? size : 1)); }
void *operator new(std::size_t size, std::align_val_t to) {
    const auto line = static_cast<std::size_t>(to);
    return counted(std::aligned_alloc(line, (size + line - 1) / line * line));
}
void operator delete(void *made) noexcept { std::free(made); }
void operator delete(void *made, std::size_t) noexcept { std::free(made); }
void operator delete(void *made, std::align_val_t) noexcept { std::free(made); }
void operator delete(void *made, std::size_t, std::align_val_t) noexcept { std::free(made); }
"""

# Prompts of many tokens and of few, in pieces and beside decodes; trees of drafts; rows that are drawn; and all slots at once.
STEPS = """
import ctypes, json, sys
from pathlib import Path
import torch
from client import row
from driver import Driver
from penstock_kernels import cpu_engine
from test_parity import LENGTH, PROMPT, blocks_for

counted, library, found = ctypes.CDLL(None).allocations, cpu_engine.library(), {}

def count(name):
    function = getattr(library, name)
    def call(*arguments):
        before = counted()
        result = function(*arguments)
        found[name] = found.get(name, 0) + counted() - before
        return result
    setattr(library, name, call)

for name in ("step", "head", "summarize", "decode", "draw", "move"):
    count(f"penstock_cpu_{name}")
driver = Driver(Path(sys.argv[1]), torch.bfloat16, max_sequence_tokens=LENGTH)
# So that the count would notice.
made = counted()
cpu_engine.CpuProgram(driver.engine.native.program, sys.argv[2], 2)
assert counted() > made
drawn = {"temperatures": 0.9, "seeds": 7, "top_ps": 0.8, "top_ks": 40, "typical_ps": 0.9, "repetition_penalties": 1.2,
    "history": PROMPT[:9]}
driver.step([row(0, PROMPT[:60], 0, blocks_for(LENGTH), start={}, sample=False, targets=[1] * 60)])
driver.step([row(0, PROMPT[60:84], 60), *(row(slot, PROMPT[:5], 0, blocks_for(LENGTH, 8 * slot), start={}) for slot in range(1, 8))])
for turn in range(4):
    driver.step([row(slot, None, (84 if slot == 0 else 5) + turn) for slot in range(8)])
driver.step([row(slot, None, 9, drafts=[4, 5, 6], parents=[0, 0, 1]) for slot in range(1, 8)])
driver.step([row(slot, PROMPT[:9], 0, blocks_for(LENGTH, 8 * slot), start=drawn) for slot in range(1, 8)], released=list(range(1, 8)))
driver.step([row(slot, None, 9) for slot in range(1, 8)])
print(json.dumps(found))
"""

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []
COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(not SETS or COMPILER is None, reason="there is no CPU engine, or no compiler")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is loaded first, whose `operator new` counts."""
    folder = tmp_path_factory.mktemp("counts")
    (folder / "counts.cpp").write_text(COUNTS)
    made = folder / "counts.so"
    command = [
        str(COMPILER),
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        str(folder / "counts.cpp"),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("config", [{}, WINDOWS], ids=["llama", "windows"])
def test_a_step_allocates_nothing(config: dict[str, Any], counting: Path, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**config))
    ran = subprocess.run(
        [sys.executable, "-c", STEPS, str(folder), SETS[0]],
        env={
            **os.environ,
            "LD_PRELOAD": str(counting),
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {"penstock_cpu_step", "penstock_cpu_decode", "penstock_cpu_draw"} <= found.keys()
    assert not any(found.values()), found
