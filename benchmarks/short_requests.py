"""Many short requests: N clients, each asks for a text of some tokens and, when it has it, for the next one, so that rows of steps begin and
end all the time. Tokens a second, until the last of them has its answer, of Penstock and of other servers, in turns.

    .venv/bin/python benchmarks/short_requests.py [--clients 1,8,32] [--seconds 3] [--rounds 5] [--tokens 60-100] [--model DIR]
        [--parameters '{"temperature": 0.8}'] [--server 'name=COMMAND with {port}']... [-- FLAGS OF PENSTOCK]

Each request is of /v1/completions: 10 to 40 words that nobody has asked before. Every server is given the same requests in a round, and rounds change
their order. Clients share the machine's cores with the servers: one thread that reads sockets and keeps what `usage` says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from running_server import end, free_port, penstock, processor
from throughput import SHIPPED

WORDS = (Path(__file__).parent.parent / "docs" / "http.md").read_text().split()
START_SECONDS = 120


class Client:
    """Asks one request after the other on one connection."""

    def __init__(self, port: int, seed: int, tokens: range, parameters: dict[str, Any]) -> None:
        self._port, self._tokens, self._parameters = port, tokens, parameters
        self._random = random.Random(seed)
        self.answered = 0

    async def run(self, until: float) -> None:
        """Asks until then, and counts tokens of what is answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while time.perf_counter() < until:
            prompt = " ".join(self._random.choices(WORDS, k=self._random.randint(10, 40)))
            body = {"model": "m", "prompt": prompt, "max_tokens": self._random.choice(self._tokens)}
            raw = json.dumps(body | self._parameters).encode()
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
            writer.write(f"{head}{len(raw)}\r\n\r\n".encode() + raw)
            said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(int(line[15:]) for line in said.splitlines() if line.startswith("content-length:"))
            answer = await reader.readexactly(length)
            if " 200 " not in said.splitlines()[0]:
                raise RuntimeError(answer[:300].decode(errors="replace"))
            self.answered += json.loads(answer)["usage"]["completion_tokens"]
        writer.close()


async def load(port: int, clients: int, seconds: float, seed: int, tokens: range, parameters: Any) -> float:
    """Tokens a second, until the last answer."""
    everyone = [Client(port, 1000 * seed + number, tokens, parameters) for number in range(clients)]
    began = time.perf_counter()
    await asyncio.gather(*(client.run(began + seconds) for client in everyone))
    return sum(client.answered for client in everyone) / (time.perf_counter() - began)


@contextlib.contextmanager
def other(name: str, command: str) -> Iterator[int]:
    """The port of another server, which runs until the block ends."""
    port = free_port()
    with Path(f"/tmp/short-requests-{name}.log").open("wb") as log:
        process = subprocess.Popen(shlex.split(command.format(port=port)), stdout=log, stderr=log)
    try:
        latest = time.perf_counter() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            if process.poll() is not None or time.perf_counter() > latest:
                raise RuntimeError(f"{name} did not start; see {log.name}")
            time.sleep(0.1)
        yield port
    finally:
        end(process)


def main() -> None:
    """Starts all servers, asks them in turns, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", default="60-100")
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--parameters", type=json.loads, default={"temperature": 0, "ignore_eos": True})
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("flags", nargs="*", help="of penstock, behind --")
    arguments = parser.parse_args()
    fewest, _, most = arguments.tokens.partition("-")
    tokens = range(int(fewest), int(most or fewest) + 1)
    print(processor())
    with contextlib.ExitStack() as running:
        server = running.enter_context(penstock("--model-id", str(arguments.model), *arguments.flags))
        ports = {"penstock": server.port}
        for given in arguments.server:
            name, _, command = given.partition("=")
            ports[name] = running.enter_context(other(name, command))
        how = (tokens, arguments.parameters)
        for port in ports.values():
            asyncio.run(load(port, 8, arguments.seconds / 2, 0, *how))
        for clients in map(int, arguments.clients.split(",")):
            rates: dict[str, list[float]] = {name: [] for name in ports}
            for number in range(arguments.rounds):
                order = list(ports) if number % 2 else list(reversed(ports))
                for name in order:
                    rate = asyncio.run(load(ports[name], clients, arguments.seconds, number + 1, *how))
                    rates[name].append(rate)
            for name, found in rates.items():
                ratios = sorted(ours / theirs for ours, theirs in zip(rates["penstock"], found, strict=True))
                beside = (
                    f"; penstock {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) times"
                )
                print(
                    f"{clients:3} clients, {name}: {statistics.median(found):.0f} tok/s ({min(found):.0f}-{max(found):.0f})"
                    f"{beside if name != 'penstock' else ''}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
