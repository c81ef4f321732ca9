"""Figure 1: from the start of the installed `penstock` to the first token of the shipped model, beside a
bare `python -c "import torch"` measured in turn in the same run.

    .venv/bin/python benchmarks/start.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time

from running_server import penstock, processor, spread


def import_torch() -> float:
    """Seconds that a Python takes to import torch and end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def first_token() -> float:
    """Seconds from starting `penstock` until a client has its first token."""
    began = time.perf_counter()
    with penstock(wait=False) as server:
        while True:
            with contextlib.suppress(OSError, RuntimeError):
                body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1}}
                for _ in server.events("/generate_stream", body):
                    return time.perf_counter() - began
            if server.process.poll() is not None:
                raise SystemExit(f"penstock ended early; see {server.log}")
            if time.perf_counter() - began > 60:
                raise SystemExit(f"no token after 60 s; see {server.log}")
            time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    import_torch(), first_token()  # once for the page cache
    pairs = [(import_torch(), first_token()) for _ in range(rounds)]
    print(f"processor: {processor()}")
    print(f"import torch:                {spread([torch for torch, _ in pairs], ' s')}")
    print(f"penstock to the first token: {spread([token for _, token in pairs], ' s')}")
    print(f"difference of each pair:     {spread([token - torch for torch, token in pairs], ' s')}")


if __name__ == "__main__":
    main()
