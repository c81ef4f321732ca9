"""Mutated requests against the real server: whatever comes, it answers in time, without an error of its own.

    python benchmarks/fuzz.py [--requests 100000] [--seed N] [--clients 8]
    python benchmarks/fuzz.py --address HOST:PORT --pid PID ...    # a server that runs already

Requests are made from whole, good ones (those of `fuzz_seeds.py`, and the recorded ones of `integration-tests/golden`) by
changing their JSON, bytes, headers and paths. None may be answered with a 5xx, but for a 503 with `Retry-After`
and a 504 to a request with a deadline; none may go without an answer for `TIME_LIMIT`; an error's body is JSON in
the shape of its route, without words that only this program's insides know. At the end the memory of router and
worker has grown by less than `MEMORY_LIMIT`, and a good request is answered as it was before. Prints the seed; the
same seed makes the same requests.
"""

from __future__ import annotations

import argparse
import collections
import copy
import http.client
import json
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_seeds import SEEDS

TIME_LIMIT = 120.0
MEMORY_LIMIT = 256 << 20
GOLDEN = Path(__file__).resolve().parents[1] / "integration-tests" / "golden"

# What the server is started with: no single request lasts long, every route is there, and the same request has
# the same answer whatever ran beside it or before.
FLAGS = [
    *("--max-total-tokens", "160", "--max-best-of", "4", "--body-timeout", "5", "--header-timeout", "5"),
    *("--kserve", "--dtype", "float32"),
]

# Values that found bugs in servers before: bounds of types, empty and huge things, wrong kinds.
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2, -0.0, 0.5, 1e-45, 5e-324, 1e308, -1e308, 1e9, 10**30, -(10**30),
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1,
    "", " ", "\u0000", "a" * 5000, "é" * 300, "\U0001f600" * 50, "\ud800", "null", "NaN", "-1", "1e999", "{{ 7*7 }}",
    "{% raw %}", "<|end|>", "</s>", "\r\n\r\n", "%s%n", "../../etc/passwd", "tgi",
    [], {}, [[]], [None], [0] * 500, ["x"] * 500, {"": ""}, {"a": {"b": {"c": []}}}, [1, "a", None], [{}],
    {"type": "json", "value": {}}, {"type": "regex", "value": "("}, {"type": "json_schema"}, {"type": 7},
    {"$ref": "#"}, {"not": {}}, {"pattern": "(a+)+$"}, {"minItems": 2**40}, {"enum": []}, {"oneOf": [{}, {}]}, "start: start",
]  # fmt: skip
NAMES = sorted({name for *_, body in SEEDS for name in [*body, *body.get("parameters", {})]})
HEADERS: list[Callable[[random.Random], tuple[str, str]]] = [
    lambda r: ("content-type", r.choice(["text/plain", "application/json; charset=utf-16", "", "a" * 300])),
    lambda r: ("content-encoding", r.choice(["gzip", "identity", "br", ""])),
    lambda r: ("x-request-deadline-ms", r.choice(["0", "1", "50", "100000", "-5", "x", "9" * 40])),
    lambda r: ("x-request-id", r.choice(["a", "a" * 500, "\x7f", "id with space"])),
    lambda r: ("traceparent", r.choice(["00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x", "00-0-0-0"])),
    lambda r: ("authorization", r.choice(["Bearer x", "Basic eA==", "Bearer", "x" * 5000])),
    lambda r: ("accept", r.choice(["text/html", "text/event-stream", "*/*", "x/y;q=9"])),
    lambda r: ("expect", r.choice(["100-continue", "x"])),
    lambda r: ("host", r.choice(["", "a:b:c", "x" * 300])),
    lambda r: ("origin", r.choice(["null", "http://x", "\x01"])),
    lambda r: ("range", "bytes=0-1"),
    lambda r: ("transfer-encoding", r.choice(["chunked", "gzip", "identity", "chunked, chunked"])),
    lambda r: ("content-length", r.choice(["0", "5", "-1", "99999999999999999999", "1e3", "7,7", "100"])),
    lambda r: ("connection", r.choice(["keep-alive", "upgrade", "close, x"])),
    lambda r: ("upgrade", r.choice(["h2c", "websocket"])),
    lambda r: ("x-" + "a" * r.randrange(1, 200), "b" * r.randrange(3000)),
]
# What must not reach a client: names of libraries, of source files and folders, Rust's and Python's own words.
INSIDES = re.compile(
    r"serde|minijinja|panicked|unwrap|tokio|hyper::|axum|tonic|\.rs\b|\.py\b|Traceback|/root/|/work/|/usr/|"
    r"site-packages|grpc|recursion limit|invalid type:|expected value|EOF while|\bNone\b.*Error"
)


@dataclass(frozen=True)
class Sent:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def raw(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + self.body

    def has(self, name: str) -> bool:
        return any(header == name for header, _ in self.headers)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a JSON tree."""
    found = [path]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def nasty(rng: random.Random) -> Any:
    """A value of its own, since later changes may reach into it."""
    return copy.deepcopy(rng.choice(NASTY))


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """One change of structure or value."""
    *way, last = rng.choice(places(tree)[1:] or [(None,)])
    if last is None:
        return nasty(rng)
    parent = tree
    for key in way:
        parent = parent[key]
    match rng.randrange(8):
        case 0 | 1 | 2:
            parent[last] = nasty(rng)
        case 3:
            del parent[last]
        case 4:
            parent[last] = [parent[last]] if rng.random() < 0.5 else {"a": parent[last]}
        case 5 if isinstance(parent, dict):
            parent[rng.choice(NAMES)] = nasty(rng)
        case 6 if isinstance(parent[last], list):
            parent[last] *= rng.choice([2, 10, 100])
        case 7 if isinstance(parent[last], str):
            at = rng.randrange(len(parent[last]) + 1)
            parent[last] = parent[last][:at] + str(nasty(rng))[:6000] + parent[last][at:]
        case _ if isinstance(parent[last], int | float):
            parent[last] = parent[last] * rng.choice([-1, 0, 10, 1e6, 0.5])
        case _:
            parent[last] = nasty(rng)
    return tree


def mutate_text(text: str, rng: random.Random) -> str:
    """Changes that a JSON writer would not make."""
    match rng.randrange(6):
        case 0:
            depth = rng.choice([10, 200, 20_000])
            return text.replace("[", "[" * depth, 1)
        case 1:
            value = rng.choice(["NaN", "-Infinity", "1e999", "01", "+1", "0x1", "'x'", "1_0", "\\ud800"])
            return re.sub(r"(?<=: )[^,}\]]+", lambda _: value, text, count=1)
        case 2:
            twice = re.search(r'"\w+": [^,{\[]+(?=, )', text)
            return text.replace(twice[0], f"{twice[0]}, {twice[0]}", 1) if twice else text
        case 3:
            return rng.choice([" ", "\n", "\t", "\ufeff", "//x\n"]) * rng.choice([1, 1000]) + text
        case 4:
            return text + rng.choice(["}", " x", text, "\0"])
        case _:
            return text.replace('"', rng.choice(["'", "", '\\"']), rng.randrange(1, 4))


def mutate_bytes(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at:at] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randrange(1, 20)]
            case 2 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case _:
                changed[at:at] = changed[at : at + rng.randrange(1, 50)]
    return bytes(changed)


def corpus() -> list[tuple[str, str, Any]]:
    """The good requests: those of `fuzz_seeds.py`, and what clients were recorded to send."""
    found: list[tuple[str, str, Any]] = list(SEEDS)
    for file in sorted(GOLDEN.glob("*.json")):
        for requests in json.loads(file.read_text())["requests"].values():
            found += [(one["method"], one["path"], one["body"] or {}) for one in requests]
    return found


def request(number: int, seed: int, good: list[tuple[str, str, Any]]) -> Sent:
    """The request of this number: the same for the same seed, whoever sends it."""
    rng = random.Random(f"{seed}/{number}")
    method, path, tree = rng.choice(good)
    tree = json.loads(json.dumps(tree))
    changes = rng.choices(
        ["tree", "text", "bytes", "header", "path"], [8, 2, 2, 2, 1], k=rng.choice([1, 1, 2, 4])
    )
    for _ in range(changes.count("tree")):
        tree = mutate_tree(tree, rng) if isinstance(tree, dict | list) else tree
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    for _ in range(changes.count("text")):
        text = mutate_text(text, rng)
    body = text.encode("utf-8", "surrogatepass") if method == "POST" else b""
    for _ in range(changes.count("bytes")):
        body = mutate_bytes(body, rng)
    headers = [("host", "fuzz"), ("connection", "close")]
    if body:
        headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
    for _ in range(changes.count("header")):
        name, value = rng.choice(HEADERS)(rng)
        if rng.random() < 0.7:
            headers = [one for one in headers if one[0] != name]
        headers.append((name, value))
    for _ in range(changes.count("path")):
        match rng.randrange(5):
            case 0:
                path += rng.choice(["/", "?a=b", "%00", "//", "?" + "q" * 3000, "#x", "%", ";a"])
            case 1:
                path = "/" + path if rng.random() < 0.5 else path.replace("/", "//")
            case 2:
                path = path.upper()
            case 3:
                method = rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "post", "X" * 50])
            case _:
                path = rng.choice(
                    ["*", "http://x/generate", "/../generate", "/v1", "/v1/models/" + "é%ff" * 50]
                )
    return Sent(method, path.replace(" ", "%20"), headers, body)


@dataclass
class Findings:
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: tuple[float, int] = (0.0, 0)  # seconds, and the request's number
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def is_whole(sent: Sent, received: bytearray) -> bool:
    """Whether an answer is complete, on a connection that the server was asked to keep."""
    head, end, body = bytes(received).partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, end, body = body.partition(b"\r\n\r\n")
    if not end:
        return False
    head = head.lower()
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and (sent.method.upper() == "HEAD" or len(body) >= int(length[1]))


def exchange(address: tuple[str, int], sent: Sent, source: str = "") -> bytes:
    """Everything that comes back until the server closes; b"" for a closed connection. `source` is the address that
    the request comes from.
    """
    own = (source, 0) if source else None
    with socket.create_connection(address, timeout=TIME_LIMIT, source_address=own) as connection:
        received = bytearray()
        try:
            connection.sendall(sent.raw())
            # What announces more than it sends gets no more; a server that waits for it gives up by itself.
            while not is_whole(sent, received) and (part := connection.recv(1 << 16)):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return bytes(received)


def judge(sent: Sent, received: bytes) -> tuple[str, str | None]:
    """The status, and what is wrong with the answer."""
    if not received:
        return "closed", None
    head, _, body = received.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if not match:
        return "nonsense", f"no HTTP: {received[:100]!r}"
    status = int(match[1])
    told = head.lower()
    if status >= 500:
        late = status == 504 and sent.has("x-request-deadline-ms")
        if not late and not (status == 503 and b"retry-after" in told):
            return str(status), f"a {status}: {body[:300]!r}"
    text = body.decode("utf-8", "replace")
    if inside := INSIDES.search(text) if status >= 400 else None:
        return str(status), f"speaks of {inside[0]!r}: {text[:300]}"
    # The reference names these words; an answer does not.
    told_of = b"text/html" not in told and b"/api-doc/" not in sent.raw()[:100]
    if told_of and (b'"error_type":"internal"' in body or b"incomplete_generation_stream" in body):
        return str(status), f"an internal error in a stream: {text[-300:]}"
    # Before there is a request nobody speaks JSON; and a HEAD has no body.
    if status >= 400 and body and sent.method.upper() != "HEAD":
        start, end = text.find("{"), text.rfind("}")
        try:
            error = json.loads(text[start : end + 1])["error"]
        except (ValueError, KeyError, TypeError):
            return str(status), f"an error that is no JSON: {text[:300]}"
        if not isinstance(error, str) and not isinstance(error.get("message"), str):
            return str(status), f"an error without a message: {text[:300]}"
    return str(status), None


def run(address: tuple[str, int], seed: int, count: int, clients: int) -> Findings:
    findings, good = Findings(), corpus()
    numbers = iter(range(count))

    def client() -> None:
        while True:
            with findings.lock:
                number = next(numbers, None)
                if number is None or len(findings.wrong) >= 20:
                    return
            sent = request(number, seed, good)
            began = time.monotonic()
            try:
                status, wrong = judge(sent, exchange(address, sent))
            except TimeoutError:
                status, wrong = "hangs", f"no answer for {TIME_LIMIT:.0f} s"
            except OSError as error:
                status, wrong = "gone", f"the server is gone: {error}"
            took = time.monotonic() - began
            with findings.lock:
                findings.statuses[status] += 1
                findings.slowest = max(findings.slowest, (took, number))
                if wrong:
                    findings.wrong.append(f"number {number}: {wrong}\n    {sent.raw()[:600]!r}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return findings


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process, now and at most since it began."""

    now: int
    peak: int


def memory(pid: int) -> Memory:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Memory(*(int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")))


def workers(router: int) -> list[int]:
    """The worker processes: children of the router's."""
    files = Path(f"/proc/{router}/task").glob("*/children")
    return sorted({int(pid) for file in files for pid in file.read_text().split()})


def good_answer(address: tuple[str, int]) -> str:
    connection = http.client.HTTPConnection(*address, timeout=TIME_LIMIT)
    body = json.dumps({"inputs": "add 3 and 4", "parameters": {"max_new_tokens": 20}})
    connection.request("POST", "/generate", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"a good request is answered with {answer.status}: {text}")
    return text


def fuzz(address: tuple[str, int], pid: int, seed: int, count: int, clients: int) -> int:
    print(f"seed {seed}, {count} requests, {clients} clients, {len(corpus())} good requests", flush=True)
    before = good_answer(address)
    # The first requests make the caches and the threads that stay.
    wrong = run(address, seed + 1, min(500, count), clients).wrong
    processes = {"router": pid, **{f"worker {n}": worker for n, worker in enumerate(workers(pid))}}
    begun, memory_before = time.monotonic(), {name: memory(pid) for name, pid in processes.items()}
    findings = run(address, seed, count, clients)
    wrong += findings.wrong
    took = time.monotonic() - begun
    told = ", ".join(f"{status}: {n}" for status, n in sorted(findings.statuses.items()))
    slowest, number = findings.slowest
    print(f"{sum(findings.statuses.values())} answers in {took:.0f} s ({told})")
    print(f"slowest: number {number}, {slowest:.1f} s")
    if {*workers(pid)} != {*processes.values()} - {pid}:
        wrong.append("a worker process was replaced")
    else:
        for name, process in processes.items():
            resident, end = memory_before[name].now, memory(process)
            grown = end.now - resident
            print(
                f"{name}: {resident >> 20} MiB resident before, {grown / (1 << 20):+.0f} MiB after, "
                f"{end.peak >> 20} MiB at most"
            )
            if grown > MEMORY_LIMIT:
                wrong.append(f"the memory of {name} has grown by {grown >> 20} MiB")
    if (after := good_answer(address)) != before:
        wrong.append(f"a good request was answered with {before!r}, and now with {after!r}")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--address", help="HOST:PORT of a server that runs; with --pid")
    parser.add_argument("--pid", type=int, help="its router process, whose memory is watched")
    arguments = parser.parse_args()
    if arguments.address:
        host, _, port = arguments.address.rpartition(":")
        address = (host, int(port))
        return fuzz(address, arguments.pid, arguments.seed, arguments.requests, arguments.clients)
    from running_server import penstock, processor

    print(processor())
    with penstock(*FLAGS) as server:
        address = ("127.0.0.1", server.port)
        return fuzz(address, server.process.pid, arguments.seed, arguments.requests, arguments.clients)


if __name__ == "__main__":
    sys.exit(main())
