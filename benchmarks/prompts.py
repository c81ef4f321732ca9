"""Rendering and tokenizing prompts of 1k, 10k and 100k tokens, against transformers and tokenizers in Python.

One thread each, in turn, several rounds in one run: of each round the shortest times, of the rounds the median and
the range. Also how soon a prompt of 100k tokens is refused where 2,047 may be.

python benchmarks/prompts.py [--rounds 5] [--seconds 1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MODEL = Path(str(files("penstock.tiny"))) / "model"
SIZES = (1_000, 10_000, 100_000)
WITHIN = 2_047
WORDS = (
    "The quick brown fox jumps over the lazy dog, and 12345 more of them follow it. "
    "Grüße aus München: ça va? 漢字 and 😀 are counted too.\n"
)

Chat = list[dict[str, str]]


def chat_of(tokenizer: Any, size: int) -> Chat:
    """Turns of some hundred tokens each, so that the prompt has about `size`."""
    turn = WORDS * 4
    each = len(tokenizer(turn)["input_ids"]) + 5
    roles = ("user", "assistant")
    count = max(1, size // each) | 1
    return [{"role": roles[number % 2], "content": turn} for number in range(count)]


def shortest(run: Callable[[], Any], seconds: float) -> float:
    best = float("inf")
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


class Python:
    """What transformers does for one chat."""

    def __init__(self, tokenizer: Any, chat: Chat) -> None:
        self.tokenizer, self.chat = tokenizer, chat
        self.text = self.render()
        self.tokens = len(self.call())

    def render(self) -> str:
        text: str = self.tokenizer.apply_chat_template(self.chat, tokenize=False, add_generation_prompt=True)
        return text

    def encode(self) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(self.text, add_special_tokens=False).ids
        return ids

    def call(self) -> list[int]:
        ids: list[int] = self.tokenizer(self.text, add_special_tokens=False)["input_ids"]
        return ids


def ours(seconds: float, chats: list[Chat]) -> list[dict[str, Any]]:
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    asked = {"folder": str(MODEL), "seconds": seconds, "within": WITHIN, "chats": chats}
    command = [str(target / "debug" / "examples" / "time_prompts")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement of a round")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.model_max_length = max(SIZES) * 2  # or it warns
    peers = [Python(tokenizer, chat_of(tokenizer, size)) for size in SIZES]
    build = ["cargo", "build", "--quiet", "--locked", "--workspace", "--example", "time_prompts"]
    subprocess.run(build, cwd=ROOT, check=True)

    rounds: list[list[dict[str, float]]] = [[] for _ in peers]
    for _ in range(arguments.rounds):
        for peer, times, measured in zip(
            peers, rounds, ours(arguments.seconds, [peer.chat for peer in peers]), strict=True
        ):
            assert peer.tokens == measured["tokens"], (peer.tokens, measured["tokens"])
            measured["render"] = shortest(peer.render, arguments.seconds)
            measured["encode"] = shortest(peer.encode, arguments.seconds)
            measured["call"] = shortest(peer.call, arguments.seconds)
            times.append(measured)

    print(
        "| prompt | template | transformers | ratio | tokenizer | `tokenizers` | ratio | transformers | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for peer, times in zip(peers, rounds, strict=True):
        cells = [f"{peer.tokens:,} tokens"]
        for mine, theirs in (("rendering", ["render"]), ("tokenizing", ["encode", "call"])):
            cells.append(milliseconds(times, mine))
            for name in theirs:
                cells += [milliseconds(times, name), ratio(times, name, mine)]
        print(f"| {' | '.join(cells)} |")
    print(
        f"\nA prompt of {peers[-1].tokens:,} tokens is refused after {milliseconds(rounds[-1], 'refusing')}."
    )


def milliseconds(times: list[dict[str, float]], name: str) -> str:
    return f"{statistics.median(entry[name] for entry in times) * 1e3:.3g} ms"


def ratio(times: list[dict[str, float]], theirs: str, mine: str) -> str:
    """How many times as long they take."""
    ratios = [entry[theirs] / entry[mine] for entry in times]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
