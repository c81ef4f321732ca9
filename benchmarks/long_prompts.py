"""What 16 streams feel of prompts of 100,000 tokens that arrive beside them, with the real worker: the time between
two tokens, alone and beside the prompts, without and with `--target-itl-ms`.

    .venv/bin/python benchmarks/long_prompts.py [--streams 16] [--prompt 100000] [--seconds 20] [--target 50]

The model is made on the spot, as small as a model can be, since attention over so long a context is what takes the
time. A prompt that is not done after so many seconds is given up.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from pathlib import Path

from running_server import Server, penstock, processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration-tests"))

from checkpoints import random_llama

POSITIONS = 1 << 17


def measure(server: Server, streams: int, prompt: int, seconds: float) -> tuple[list[float], int]:
    """The pauses of all streams in milliseconds, sorted, and how many long prompts were answered."""
    pauses: list[float] = []
    answered = 0
    begun = threading.Event()
    stop = time.monotonic() + seconds + 600

    def stream(number: int) -> None:
        body = {"prompt": f"stream {number}", "max_tokens": 20_000, "temperature": 0, "stream": True}
        last = None
        for _ in server.events("/v1/completions", {**body, "ignore_eos": True}):
            now = time.monotonic()
            if begun.is_set() and last is not None:
                pauses.append((now - last) * 1000)
            last = now
            if now > stop:
                return

    threads = [threading.Thread(target=stream, args=(number,), daemon=True) for number in range(streams)]
    for thread in threads:
        thread.start()
    while server.metrics()["tgi_batch_current_size"] < streams:
        time.sleep(0.05)
    time.sleep(1)
    begun.set()
    end = time.monotonic() + seconds
    while prompt and time.monotonic() < end:
        ids = [5 + (at * 7 + answered * 13) % 900 for at in range(prompt)]
        # At least a part of one.
        with contextlib.suppress(TimeoutError):
            status, text = server.request(
                "POST", "/v1/completions", {"prompt": ids, "max_tokens": 1}, timeout=seconds
            )
            if status != 200:
                raise SystemExit(f"a long prompt was answered with {status}: {text[:300]!r}")
            answered += 1
    time.sleep(max(0.0, end - time.monotonic()))
    stop = 0
    return sorted(pauses), answered


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--target", type=int, default=50)
    arguments = parser.parse_args()
    print(processor())
    with tempfile.TemporaryDirectory() as folder:
        shape = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
        model = random_llama(Path(folder) / "long", positions=POSITIONS, **shape)
        for target in ([], ["--target-itl-ms", str(arguments.target)]):
            flags = ["--model-id", str(model), "--dtype", "bfloat16", *target]
            flags += ["--max-batch-total-tokens", str(4 * POSITIONS)]
            with penstock(*flags, "--payload-limit", "4000000") as server:
                for prompt in (0, arguments.prompt):
                    pauses, answered = measure(server, arguments.streams, prompt, arguments.seconds)
                    at = lambda share: pauses[int((len(pauses) - 1) * share)]  # noqa: E731, B023
                    beside = (
                        f"beside prompts of {prompt} tokens ({answered} to their end)" if prompt else "alone"
                    )
                    print(
                        f"{arguments.streams} streams {beside}, {' '.join(target) or 'no target'}: "
                        f"between tokens p50 {at(0.5):.1f}, p99 {at(0.99):.1f}, most {at(1):.1f} ms",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
