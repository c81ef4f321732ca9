"""What a grammar costs: tokens per second of constrained texts against free ones of the same length, in turns in one run.

    .venv/bin/python benchmarks/structured.py [--rounds 5] [--tokens 128] [--batches 1 8 32] [--model-id FOLDER]

The shipped model, or another, in its own dtype over HTTP, so many requests at once, each with a prompt of its own; greedy. The grammars
go on for longer than the texts: a JSON schema of a long list of objects, and a regular expression of words. Also half of
the requests constrained, beside the other half: what the free ones lose. Behind each rate is where a step's time went, in microseconds: the
whole, in the model, in choosing, and in handing out its tokens; what is left of the whole is between those, with waiting for masks.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from running_server import Server, penstock, processor, spread
from throughput import SHIPPED

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"enum": ["Oslo", "Bergen", "Trondheim"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "free": {"ignore_eos": True},
    "JSON schema": {
        "response_format": {"type": "json", "value": {"type": "array", "items": PERSON, "minItems": 100}}
    },
    "regex": {"response_format": {"type": "regex", "value": "([a-z]{2,9} ){400}"}},
}


def seconds(server: Server, kinds: list[str], tokens: int) -> float:
    """Of one request for each kind, all at once, each of which must give all its tokens."""
    failures: list[str] = []

    def ask(number: int, kind: str) -> None:
        body = {"prompt": f"Number {number}:", "max_tokens": tokens, "temperature": 0, **GRAMMARS[kind]}
        usage = server.post("/v1/completions", body)["usage"]
        if usage["completion_tokens"] != tokens:
            failures.append(f"{kind}: {usage}")

    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(kinds)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if failures:
        raise RuntimeError(failures[0])
    return took


PARTS = ("inference", "forward", "decode", "filter")


def of_steps(server: Server) -> list[float]:
    """So far: masks that were late, decode steps, and the seconds of their parts."""
    metrics = server.metrics()

    def of_decodes(name: str) -> float:
        return sum(
            value
            for key, value in metrics.items()
            if key.startswith(f"tgi_batch_{name}{{") and 'method="decode"' in key
        )

    late = metrics.get("penstock_late_masks", 0.0)
    return [
        late,
        of_decodes("inference_duration_count"),
        *(of_decodes(f"{part}_duration_sum") for part in PARTS),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--model-id", default=str(SHIPPED))
    arguments = parser.parse_args()
    print(
        f"{processor()}; {Path(arguments.model_id).name}; tokens per second, {arguments.tokens} tokens each"
    )
    with penstock("--model-id", arguments.model_id) as server:
        for batch in arguments.batches:
            mixes = {kind: [kind] * batch for kind in GRAMMARS}
            if batch > 1:
                mixes["half JSON schema"] = ["free", "JSON schema"] * (batch // 2)
            for mix in mixes.values():
                seconds(server, mix, arguments.tokens)
            rates: dict[str, list[float]] = {name: [] for name in mixes}
            parts: dict[str, list[list[float]]] = {name: [] for name in mixes}
            late = 0.0
            for _ in range(arguments.rounds):
                for name, mix in mixes.items():
                    before = of_steps(server)
                    rates[name].append(batch * arguments.tokens / seconds(server, mix, arguments.tokens))
                    masks, steps, *took = (
                        now - then for now, then in zip(of_steps(server), before, strict=True)
                    )
                    parts[name].append([1e6 * part / steps for part in took])
                    late += masks
            free = statistics.median(rates["free"])
            for name, values in rates.items():
                ratio = statistics.median(values) / free
                of_step = " ".join(
                    f"{statistics.median(part):.0f}" for part in zip(*parts[name], strict=True)
                )
                print(
                    f"batch {batch:>2}, {name:>16}: {spread(values, ' tok/s')}; {ratio:.3f} of free; a step's us: {of_step}",
                    flush=True,
                )
            print(f"batch {batch:>2}: late masks: {late:.0f}", flush=True)


if __name__ == "__main__":
    main()
