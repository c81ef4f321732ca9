"""Forward passes per output token under JSON schemas, with forced tokens fed together and one by one.

    .venv/bin/python benchmarks/forced.py ../shared/schemas/cases.jsonl [--schemas 50] [--tokens 256]

The shipped model in float32 over HTTP, one request after the other, greedy; the schemas are the first of the file that
compile. In steps of two tokens there is no room for more than one of a sequence, so nothing forced is fed together. The
texts have to be the same. The pass that ends a prompt gives a token as well and is counted; those before it are not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from running_server import Server, penstock, processor

WAYS = {"together": (), "one by one": ("--max-batch-prefill-tokens", "2")}


def texts(server: Server, schemas: list[Any], most: int, tokens: int) -> tuple[list[str | None], int]:
    """What the model writes under each schema until `most` have compiled, and the number of its tokens."""
    found: list[str | None] = []
    total = 0
    for schema in schemas:
        body = {
            "prompt": "Write an example:",
            "max_tokens": tokens,
            "temperature": 0,
            "response_format": {"type": "json", "value": schema},
        }
        status, answer = server.request("POST", "/v1/completions", body)
        if status not in (200, 422):
            raise RuntimeError(f"{status}: {answer[:300]!r}")
        completion = json.loads(answer) if status == 200 else None
        found.append(completion and completion["choices"][0]["text"])
        total += completion["usage"]["completion_tokens"] if completion else 0
        if len(found) - found.count(None) == most:
            break
    return found, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path)
    parser.add_argument("--schemas", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=256)
    arguments = parser.parse_args()
    schemas = [json.loads(line)["schema"] for line in arguments.cases.read_text().splitlines()]
    written = {}
    print(processor())
    for way, flags in WAYS.items():
        with penstock("--dtype", "float32", *flags) as server:
            written[way], tokens = texts(server, schemas, arguments.schemas, arguments.tokens)
            metrics = server.metrics()
        passes = metrics['penstock_steps{method="decode"}'] + len(written[way]) - written[way].count(None)
        forced = metrics["penstock_forced_tokens"] / tokens
        print(
            f"{way}: {passes:.0f} forward passes for {tokens} tokens: {passes / tokens:.3f} per token; "
            f"{forced:.1%} of the tokens forced; {metrics.get('penstock_late_masks', 0):.0f} late masks",
            flush=True,
        )
    together, one_by_one = written.values()
    same = sum(one == other for one, other in zip(together, one_by_one, strict=True) if one is not None)
    print(f"{same} of {len(together) - together.count(None)} texts are the same")


if __name__ == "__main__":
    main()
