"""A worker whose model the packed cache has never imports torch, whatever its requests ask for, and computes what one with torch does."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from client import DEVICE, Worker, mask_of, row, sampled
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from test_parity import PROMPT as LONG
from test_parity import VARIANTS

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []
pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")

# Whatever module on the way imports torch, or what imports it, gets an error, which ends the worker.
REFUSES = """
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise RuntimeError(f"a worker without torch imports {name}")
sys.meta_path.insert(0, Refuses())
from penstock.worker import main
main()
"""
WITHOUT = ("-c", REFUSES)
PROMPT = LONG[:20]
# What rows are sampled with: all that a sampler does.
STARTS: list[dict[str, Any]] = [
    {"top_tokens": 3},
    {"temperatures": 1.2, "seeds": 5, "top_ks": 40, "top_ps": 0.95, "min_ps": 0.01, "typical_ps": 0.9},
    {"temperatures": 0.8, "seeds": 6, "repetition_penalties": 1.3, "history": PROMPT, "top_tokens": 2},
    {"temperatures": 0.9, "seeds": 7, "watermark_deltas": 2.0, "watermark_greens": 60},
]


def served(worker: Worker) -> list[tuple[bytes, ...]]:
    """Answers to a prompt with log probabilities, to rows that are sampled in all ways, masked, and with drafts that are a tree."""
    worker.prepare()
    run = worker.run()
    starts = [
        row(slot, PROMPT, 0, [3 * slot, 3 * slot + 1, 3 * slot + 2], start=start, targets=[1] * len(PROMPT))
        for slot, start in enumerate(STARTS)
    ]
    results = [run.step(starts)]
    position = len(PROMPT)
    for _ in range(3):
        results.append(run.step([row(slot, None, position) for slot in range(len(STARTS))]))
        position += 1
    run.send([row(0, None, position, masked=True), row(1, None, position, drafts=[4, 5])])
    run.send_masks(mask_of([3, 9, 11], 199))
    results.append(run.receive())
    results.append(run.step([row(0, None, position + 1, drafts=[4, 5, 6], parents=[0, 0, 1])]))
    assert sampled(results[-2])[0] in (3, 9, 11)
    worker.check()
    run.end()
    return [(one.sampled, one.top_tokens, one.accepted, *floats_of(one)) for one in results]


def floats_of(result: Any) -> list[bytes]:
    return [result.logprobs, result.prompt_logprobs, result.top_logprobs]


@pytest.mark.parametrize(
    ("name", "quantize", "cached"),
    [("llama3", "", "auto"), ("dynamic", "int8", "auto"), ("llama3", "", "int8")],
)
def test_a_second_start_imports_no_torch_and_answers_the_same(
    name: str, quantize: str, cached: str, tmp_path: Path
) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config(**VARIANTS[name]))
    cache = tmp_path / "packed"
    options = ["--dtype", "bfloat16", "--packed-cache-dir", str(cache), "--threads", "2"]
    options += ["--kv-cache-dtype", cached]
    if quantize:
        options += ["--quantize", quantize]
    with Worker(model, tmp_path / "first", *options) as first:
        expected = served(first)
        wait_for_files(cache, first)
        described = first.describe()
    with Worker(model, tmp_path / "second", *options, program=WITHOUT) as second:
        assert served(second) == expected
        assert second.describe() == described
    assert any("are mapped from" in line["message"] for line in second.log)
    assert not any(line["level"] in ("WARN", "ERROR", "RAW") for line in second.log), second.log


@pytest.mark.parametrize(("factor", "holds"), [(1 / 1000, True), (1000, False)])
def test_what_an_earlier_start_has_measured_holds_unless_steps_are_far_faster(
    factor: float, holds: bool, tmp_path: Path
) -> None:
    """What was measured beside other work is not believed for ever; what is measured beside other work now says nothing."""
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    cache = tmp_path / "packed"
    options = ["--dtype", "bfloat16", "--packed-cache-dir", str(cache), "--threads", "2"]

    def cost(start: str) -> Any:
        with Worker(model, tmp_path / start, *options) as worker:
            told = worker.prepare().cost
            wait_for_files(cache, worker)
            return told

    cost("first")
    (file,) = cache.glob("*.measured")
    content = json.loads(file.read_text())
    content["measured"]["fixed_ns"] *= factor
    content["measured"]["per_token_ns"] = content["measured"]["per_context_token_ns"] = 0.0
    file.write_text(json.dumps(content))
    assert (cost("second").fixed_ns == content["measured"]["fixed_ns"]) == holds


def wait_for_files(cache: Path, worker: Worker) -> None:
    """Until what the worker keeps for the next start is written."""
    deadline = time.monotonic() + 60
    while not (list(cache.glob("*.packed")) and list(cache.glob("*.measured"))):
        assert time.monotonic() < deadline, worker.log
        time.sleep(0.01)


def test_without_a_kept_model_torch_is_imported(tmp_path: Path) -> None:
    """So the refusal above is one."""
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    worker = Worker(model, tmp_path / "only", "--packed-cache-dir", str(tmp_path / "packed"), program=WITHOUT)
    assert worker.exit_status() == 1
    assert any("a worker without torch imports torch" in line["message"] for line in worker.log), worker.log


def test_the_log_probability_of_a_row_does_not_depend_on_the_others() -> None:
    """Of numpy's logarithm, which computes several at once."""
    totals = np.random.default_rng(3).uniform(1, 1e4, 1001).astype(np.float32)
    together = np.log(totals.astype(np.float64))
    assert all(np.log(np.float64(one)) == whole for one, whole in zip(totals, together, strict=True))
