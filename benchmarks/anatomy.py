"""What a token's time goes to, by sampling the server's processes while clients stream: kernels, waiting for the other threads, Python,
the system, the router.

    .venv/bin/python benchmarks/anatomy.py [--model DIR] [--clients 1] [--new-tokens 256] [--rounds 4] [-- FLAGS OF penstock]

Needs `perf` (linux-perf), which samples by the clock and needs no counters of the processor. Printed are microseconds of processor time a
token, by what the sampled instruction belongs to, and of wall time. With one stream, what the wall has beyond the threads' time is waiting. Clients
run on the same processors, and are in nothing but the wall time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from running_server import penstock, processor
from throughput import PROMPT_TOKENS, SHIPPED, seconds_over_http

FREQUENCY = 5000  # samples a second of a running thread
SAMPLE = re.compile(r"^\s*(?P<pid>\d+)\s+(?P<ns>\d+)\s+[0-9a-f]+\s+(?P<symbol>.*) \((?P<object>.*)\)$")
# What the engine's functions belong to, by the beginning of their names; the first that fits counts.
OF_ENGINE = (
    ("waiting for other threads", ("penstock::Team", "wait_for_change", "penstock::Ranks")),
    ("products", ("linear", "product", "finish", "experts", "heads_linear")),
    (
        "attention",
        (
            "attention",
            "join_attention",
            "attend",
            "soften",
            "write_attended",
            "write_kv",
            "head_of",
            "put_token",
            "follow_path",
        ),
    ),
    ("sampling", ("summarize", "join_summaries", "draw", "keep", "modes_of")),
)


def part_of(symbol: str, of: str, is_worker: bool) -> str:
    """What a sampled instruction belongs to."""
    who = "worker" if is_worker else "router"
    if of.startswith("["):
        return f"{who}: system"
    if not is_worker:
        return "router"
    if "libpenstock_cpu" not in of:
        return "worker: Python"
    name = symbol.replace("(anonymous namespace)::", "").removeprefix("void ")
    found = next((part for part, begins in OF_ENGINE if name.startswith(begins)), "other operations")
    return f"engine: {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    perf = shutil.which("perf") or sys.exit("perf is not installed (Debian: linux-perf)")
    prompts = [[300 + at + 13 * i for i in range(PROMPT_TOKENS)] for at in range(arguments.clients)]
    with penstock("--model-id", str(arguments.model), *arguments.flags) as server:
        workers = server.worker_pids()
        seconds_over_http(server, prompts, 64)
        with tempfile.NamedTemporaryFile(suffix=".perf") as data:
            pids = ",".join(map(str, [server.process.pid, *workers]))
            command = [
                perf,
                "record",
                "--quiet",
                "-e",
                "cpu-clock",
                "-F",
                str(FREQUENCY),
                "-p",
                pids,
                "-o",
                data.name,
            ]
            recording = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            took = [seconds_over_http(server, prompts, arguments.new_tokens) for _ in range(arguments.rounds)]
            recording.terminate()
            recording.wait()
            script = [perf, "script", "-i", data.name, "-F", "pid,period,ip,sym,dso"]
            said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    tokens = arguments.clients * arguments.new_tokens * arguments.rounds
    parts: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for line in said.splitlines():
        if (found := SAMPLE.match(line)) is not None:
            part = part_of(found["symbol"], found["object"], int(found["pid"]) in workers)
            parts[part] += int(found["ns"])
            if part == "engine: other operations":
                names[found["symbol"]] += int(found["ns"])
    print(
        f"processor: {processor()}; model: {arguments.model}; {arguments.clients} clients; flags: {' '.join(arguments.flags) or 'none'}"
    )
    for part, nanoseconds in sorted(parts.items()):
        print(f"  {part:36} {nanoseconds / tokens / 1e3:8.1f} us a token")
    print(f"  {'all, of processors':36} {parts.total() / tokens / 1e3:8.1f}")
    print(f"  {'wall':36} {sum(took) / tokens * 1e6:8.1f}")
    others = ", ".join(
        f"{name} {nanoseconds / tokens / 1e3:.1f}" for name, nanoseconds in names.most_common(8)
    )
    print(f"  other operations: {others}")


if __name__ == "__main__":
    main()
