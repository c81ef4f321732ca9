"""What grammar bombs cost others: the time between the tokens of free streams, alone and beside bombs, in turns in one run.

    .venv/bin/python benchmarks/bombs.py [--rounds 5] [--seconds 10] [--streams 4] [--bombs 2]

The shipped model over HTTP. A bomb is a grammar that takes long to compile, or much memory, or has no end; some are
refused and some run for a few tokens. Each client sends the next when it has its answer, and no two of a run are alike,
so that none is found compiled. They are a process of their own, and their texts are made before. On a machine whose processors are all at work the compiler's threads take their
share of them as well: the figure is of this machine.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from running_server import Server, penstock, processor, spread

# Of one client in a round.
MOST_BOMBS = 400


def nested(number: int, depth: int) -> str:
    """A schema of objects in objects, as a text: Python's own reader would not take the deepest."""
    return '{"required":["a"],"properties":{"a":' * depth + f'{{"const":{number}}}' + "}}" * depth


def bomb(number: int) -> dict[str, Any]:
    """The grammar of this number; each is another content."""
    kinds: list[dict[str, Any]] = [
        {"type": "json", "value": {"type": "array", "items": {"const": number}, "minItems": 10**6}},
        {"type": "json", "value": {"enum": [f"{number}-{entry:0100}" for entry in range(9000)]}},
        {
            "type": "json",
            "value": {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(30)}
                | {"d30": {"const": number}},
            },
        },
        {"type": "json", "value": nested(number, 120)},
        {"type": "json", "value": nested(number, 5000)},
        {"type": "regex", "value": "(a|a)*" * 200 + str(number)},
        {"type": "regex", "value": f"((a{{1,1000}}){{1,1000}}){{1,1000}}{number}"},
        {
            "type": "json",
            "value": {"properties": {f"p{number}-{n}": {"type": "string"} for n in range(1500)}},
        },
    ]
    return kinds[number % len(kinds)]


def throw(port: int, seconds: float, numbers: range, ready: Event, begin: Event, sent: Queue[int]) -> None:
    """Sends bombs for so long, one after the other."""
    bodies = [
        json.dumps({"inputs": "x", "parameters": {"grammar": bomb(number), "max_new_tokens": 4}}).encode()
        for number in numbers
    ]
    ready.set()
    begin.wait()
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end and count < len(bodies):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/generate", bodies[count], {"content-type": "application/json"})
        connection.getresponse().read()
        connection.close()
        count += 1
    sent.put(count)


def gaps(server: Server, arguments: argparse.Namespace, bombs: int, numbers: Iterator[int]) -> list[float]:
    """Seconds between tokens of the streams, while so many clients send bombs."""
    begin, sent = multiprocessing.Event(), multiprocessing.Queue()
    throwers = []
    for _ in range(bombs):
        ready, first = multiprocessing.Event(), next(numbers)
        span = range(first * MOST_BOMBS, (first + 1) * MOST_BOMBS)
        throwing = (server.port, arguments.seconds, span, ready, begin, sent)
        throwers.append(multiprocessing.Process(target=throw, args=throwing))
        throwers[-1].start()
        ready.wait()
    end = time.perf_counter() + arguments.seconds
    found: list[float] = []

    def stream(number: int) -> None:
        last = None
        body = {
            "prompt": f"Number {number}:",
            "max_tokens": arguments.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        while time.perf_counter() < end:
            for _ in server.events("/v1/completions", body):
                now = time.perf_counter()
                if last is not None:
                    found.append(now - last)
                last = now
                if now > end:
                    return
            last = None

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(arguments.streams)]
    for thread in threads:
        thread.start()
    begin.set()
    for thread in threads:
        thread.join()
    count = sum(sent.get() for _ in throwers)
    for thrower in throwers:
        thrower.join()
    print(f"  {bombs} clients with bombs: {count} bombs, {len(found)} gaps", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--bombs", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=400, help="of each free stream")
    arguments = parser.parse_args()
    print(f"{processor()}; {arguments.streams} free streams, {arguments.seconds:g} s a round")
    numbers = itertools.count(1)
    figures: dict[int, dict[str, list[float]]] = {0: {}, arguments.bombs: {}}
    with penstock() as server:
        for _ in range(arguments.rounds):
            for bombs, seen in figures.items():
                found = sorted(gaps(server, arguments, bombs, numbers))
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    seen.setdefault(name, []).append(1000 * found[int(share * (len(found) - 1))])
    for name in ("p50", "p99"):
        alone, beside = (figures[bombs][name] for bombs in (0, arguments.bombs))
        ratio = statistics.median(beside) / statistics.median(alone)
        print(f"{name}: alone {spread(alone, ' ms')}, beside bombs {spread(beside, ' ms')}; {ratio:.3f}")


if __name__ == "__main__":
    main()
