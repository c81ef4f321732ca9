"""Figure 4: how many tokens of a prompt are computed again when the same prompt comes a second time, as
the answer's usage and as the server's own counters say.

    .venv/bin/python benchmarks/prefix.py
"""

from __future__ import annotations

from running_server import Server, penstock, processor

LENGTHS = [17, 64, 100, 511, 1024]


def cached(server: Server, prompt: list[int]) -> tuple[int, int]:
    """Prompt tokens, and how many of them came from the prefix cache."""
    usage = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def main() -> None:
    print(f"processor: {processor()}")
    with penstock() as server:
        block = server.request("GET", "/info")
        print(f"info: {block[1].decode()}")
        for length in LENGTHS:
            prompt = [300 + (7 * length + 13 * i) % 700 for i in range(length)]
            first, second = cached(server, prompt), cached(server, prompt)
            again = second[0] - second[1]
            print(f"prompt of {length}: first time {first[0] - first[1]} computed, again {again} computed")


if __name__ == "__main__":
    main()
