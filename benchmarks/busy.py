"""How long an answer takes beside other work on the same processors, and how waiting threads wait.

    .venv/bin/python benchmarks/busy.py [--load 5] [--tokens 58] [--rounds 15]

The shipped model in bf16 over HTTP, one client; on an idle machine and beside LOAD processes that compute, which this
script starts and ends. What is compared, each kind in turn: the CPU engine, with all threads and with one; torch, whose
threads spin as the worker sets it, as long as libgomp has them spin by itself, or never; torch with one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from running_server import Server, penstock, processor, spread

TORCH = {"PENSTOCK_CPU_ISA": "none"}
KINDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "engine": ((), {}),
    "engine, one thread": (("--worker-threads", "1"), {}),
    "torch": ((), TORCH),
    "torch, libgomp's own spinning": ((), {**TORCH, "GOMP_SPINCOUNT": "300000"}),
    "torch, no spinning": ((), {**TORCH, "OMP_WAIT_POLICY": "passive"}),
    "torch, one thread": (("--worker-threads", "1"), TORCH),
}


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute; they end by themselves after ten minutes."""
    burn = "import time; end = time.time() + 600\nwhile time.time() < end: pass"
    running = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds(server: Server, tokens: int) -> float:
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    began = time.perf_counter()
    server.post("/v1/completions", body)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=58)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{processor()}; {arguments.tokens} tokens, seconds: median (range)")
    idle: dict[str, list[float]] = {kind: [] for kind in KINDS}
    busy: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with contextlib.ExitStack() as stack:
        servers = {
            kind: stack.enter_context(penstock(*flags, env=env)) for kind, (flags, env) in KINDS.items()
        }
        for server in servers.values():
            for _ in range(5):
                seconds(server, arguments.tokens)
        for _ in range(arguments.rounds):
            for kind, server in servers.items():
                idle[kind].append(seconds(server, arguments.tokens))
        with load(arguments.load):
            time.sleep(1)
            for _ in range(arguments.rounds):
                for kind, server in servers.items():
                    busy[kind].append(seconds(server, arguments.tokens))
    for kind in KINDS:
        print(
            f"{kind:>24}: idle {spread(idle[kind], ' s')}; beside {arguments.load}: {spread(busy[kind], ' s')}"
        )


if __name__ == "__main__":
    main()
