"""Figure 4: how many tokens of a prompt are computed again when the same prompt comes a second time, as
the answer's usage and as the server's own counters say; and of one that shares a head with two before it.

    .venv/bin/python benchmarks/prefix.py [--family "Qwen 3.5"]

`--family`: a small model of its tests in place of the one that ships: of a hybrid the prefix cache offers places of which a copy of the
state was kept.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from running_server import Server, penstock, processor

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

SHIPPED = Path(__file__).parents[1] / "server" / "penstock" / "tiny" / "model"
LENGTHS = [17, 64, 100, 511, 1024]


def cached(server: Server, prompt: list[int]) -> tuple[int, int]:
    """Prompt tokens, and how many of them came from the prefix cache."""
    usage = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def made(folder: Path, family: str) -> Path:
    """A model of a family's tests, with a vocabulary that the prompts below are of."""
    from families import FAMILIES, with_text
    from models import make

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    return make(folder, with_text(FAMILIES[family], vocab_size=4096, max_position_embeddings=4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="")
    arguments = parser.parse_args()
    print(f"processor: {processor()}")
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model-id", str(made(Path(folder), arguments.family))] if arguments.family else []
        measure(flags)


def measure(flags: list[str]) -> None:
    with penstock(*flags) as server:
        block = server.request("GET", "/info")
        print(f"info: {block[1].decode()}")
        for length in LENGTHS:
            prompt = [300 + (7 * length + 13 * i) % 700 for i in range(length)]
            first, second = cached(server, prompt), cached(server, prompt)
            again = second[0] - second[1]
            print(f"prompt of {length}: first time {first[0] - first[1]} computed, again {again} computed")
        for shared in (200, 700, 1500):
            head = [300 + (11 * shared + 17 * i) % 700 for i in range(shared)]
            tails = [[1100 + 100 * tail + i % 90 for i in range(60)] for tail in range(3)]
            found = [cached(server, head + tail)[1] for tail in tails]
            computed = [shared - hit for hit in found]
            print(f"three prompts that share {shared} tokens: {computed} of these computed")


if __name__ == "__main__":
    main()
