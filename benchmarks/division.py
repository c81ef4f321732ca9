"""What a model in two parts costs or gains on this machine: tokens per second over HTTP with one worker, with
--num-shard 2 and with --pipeline-parallel 2, in turns in the same run.

    .venv/bin/python benchmarks/division.py [--model DIR] [--rounds 5] [--new-tokens 128] [--clients 1 8 32]

All three have the machine's cores: one worker as threads, two workers half of them each. So this shows what the parts
say to each other, not what a second device would bring. Tokens per second as in throughput.py.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from running_server import penstock, processor, spread
from throughput import PROMPT_TOKENS, SHIPPED, seconds_over_http

DIVISIONS = {
    "one worker": (),
    "--num-shard 2": ("--num-shard", "2"),
    "--pipeline-parallel 2": ("--pipeline-parallel", "2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    arguments = parser.parse_args()
    print(f"processor: {processor()}; model: {arguments.model}")
    fresh = iter(range(10**6))

    def prompts(batch: int) -> list[list[int]]:
        """New prompts every time, so that no prefix cache helps."""
        return [
            [300 + (next(fresh) * 977 + 13 * i) % 3000 for i in range(PROMPT_TOKENS)] for _ in range(batch)
        ]

    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(penstock("--model-id", str(arguments.model), *flags))
            for name, flags in DIVISIONS.items()
        }
        for batch in arguments.clients:
            speeds: dict[str, list[float]] = {name: [] for name in DIVISIONS}
            for server in servers.values():
                seconds_over_http(server, prompts(batch), 16)
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    seconds = seconds_over_http(server, prompts(batch), arguments.new_tokens)
                    speeds[name].append(batch * arguments.new_tokens / seconds)
            alone = speeds["one worker"]
            for name, found in speeds.items():
                ratio = [a / b for a, b in zip(found, alone, strict=True)]
                print(f"{batch} clients, {name}: {spread(found)} tok/s; against one worker {spread(ratio)}")


if __name__ == "__main__":
    main()
