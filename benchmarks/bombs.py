"""What grammar bombs cost others: the time between the tokens of free streams, alone and beside bombs, in turns in one run.

    .venv/bin/python benchmarks/bombs.py [--rounds 5] [--seconds 10] [--streams 4] [--bombs 2]

The shipped model over HTTP. A bomb is a grammar that takes long to compile, or much memory, or has no end; some are
refused and some run for a few tokens. Each client sends the next when it has its answer, and no two of a run are alike,
so that none is found compiled. They are a process of their own, and their texts are made before.

What the clients themselves cost is a third turn: as many requests in the same time, with the same bytes, which are
refused by their content type before they are read. Streams are read by one thread that only counts events, since what it computes takes from
the server where both have the same processors. The figure is of this machine.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import selectors
import socket
import statistics
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


def throw(
    port: int,
    seconds: float,
    numbers: range,
    pace: float | None,
    ready: Event,
    begin: Event,
    sent: Queue[int],
) -> None:
    """Sends bombs for so long, one after the other; with a pace, one in so many seconds that is refused unread."""
    kind = "application/json" if pace is None else "text/plain"
    bodies = [
        json.dumps({"inputs": "x", "parameters": {"grammar": bomb(number), "max_new_tokens": 4}}).encode()
        for number in numbers
    ]
    ready.set()
    begin.wait()
    start = time.perf_counter()
    count = 0
    while time.perf_counter() < start + seconds and count < len(bodies):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/generate", bodies[count], {"content-type": kind})
        connection.getresponse().read()
        connection.close()
        count += 1
        if pace is not None:
            time.sleep(max(0.0, start + count * pace - time.perf_counter()))
    sent.put(count)


def stream(port: int, number: int, tokens: int) -> socket.socket:
    """Begins a stream; what comes is left to the caller."""
    body = json.dumps(
        {"prompt": f"Number {number}:", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    opened = socket.create_connection(("127.0.0.1", port))
    opened.sendall((head + body).encode())
    return opened


def read(port: int, streams: int, tokens: int, seconds: float) -> list[float]:
    """Seconds between the events of each stream, the next of which begins when one has ended."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:
        for number in range(streams):
            selector.register(stream(port, number, tokens), selectors.EVENT_READ, [number, 0.0])
        while (now := time.perf_counter()) < end:
            for key, _ in selector.select(end - now):
                opened, (number, last) = key.fileobj, key.data
                assert isinstance(opened, socket.socket)
                piece = opened.recv(1 << 16)
                now = time.perf_counter()
                events = piece.count(b"data: {")
                if events and last:
                    found += [now - last] + [0.0] * (events - 1)
                if events:
                    key.data[1] = now
                if not piece:
                    selector.unregister(opened)
                    opened.close()
                    selector.register(stream(port, number, tokens), selectors.EVENT_READ, [number, 0.0])
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return found


def gaps(
    server: Server, arguments: argparse.Namespace, bombs: int, numbers: Iterator[int], pace: float | None
) -> tuple[list[float], int]:
    """Seconds between tokens of the streams, while so many clients send bombs; and how many bombs."""
    begin, sent = multiprocessing.Event(), multiprocessing.Queue()
    throwers = []
    for _ in range(bombs):
        ready, first = multiprocessing.Event(), next(numbers)
        span = range(first * MOST_BOMBS, (first + 1) * MOST_BOMBS)
        throwing = (server.port, arguments.seconds, span, pace, ready, begin, sent)
        throwers.append(multiprocessing.Process(target=throw, args=throwing))
        throwers[-1].start()
        ready.wait()
    begin.set()
    found = read(server.port, arguments.streams, arguments.tokens, arguments.seconds)
    count = sum(sent.get() for _ in throwers)
    for thrower in throwers:
        thrower.join()
    return found, count


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
    figures: dict[str, dict[str, list[float]]] = {"alone": {}, "beside bombs": {}, "beside their clients": {}}
    with penstock() as server:
        for _ in range(arguments.rounds):
            bombs_sent = 0
            for turn, seen in figures.items():
                bombs = 0 if turn == "alone" else arguments.bombs
                pace = (
                    arguments.seconds * bombs / max(1, bombs_sent) if turn == "beside their clients" else None
                )
                found, count = gaps(server, arguments, bombs, numbers, pace)
                bombs_sent = count
                print(f"  {turn}: {count} requests, {len(found)} gaps", flush=True)
                found.sort()
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                    seen.setdefault(name, []).append(1000 * found[int(share * (len(found) - 1))])
                seen.setdefault("tokens/s", []).append(len(found) / arguments.seconds)
    for name in figures["alone"]:
        unit = " ms" if name.startswith("p") else ""
        alone = statistics.median(figures["alone"][name])
        parts = []
        for turn, seen in figures.items():
            ratio = "" if turn == "alone" else f" = {statistics.median(seen[name]) / alone:.3f}"
            parts.append(f"{turn} {spread(seen[name], unit)}{ratio}")
        print(f"{name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
