"""Starts `penstock` in its release build for a benchmark and talks to it. Used by every script beside it.

Nothing here measures; what is timed is in the scripts. Only loopback is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# As the wheel has it. The installed one is made to be built fast, and checks itself.
RELEASE = Path(sys.prefix) / "bin" / "penstock-release"


def release() -> Path:
    """The binary that is measured."""
    installed = RELEASE.with_name("penstock")
    if not RELEASE.exists() or RELEASE.stat().st_mtime < installed.stat().st_mtime:
        sys.exit(f"{RELEASE} is missing or older than {installed}: `make release` builds it")
    return RELEASE


def processor() -> str:
    """The processor's name as Linux gives it; every figure carries it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A running `penstock`: where it listens, its process, and where it writes its log."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def request(self, method: str, path: str, body: Any = None, timeout: float = 120) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"content-type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        status, answer = self.request("POST", path, body)
        if status != 200:
            raise RuntimeError(f"{path} answered {status}: {answer[:300]!r}")
        return json.loads(answer)

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """The server-sent events of one streaming request, parsed, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{path} answered {response.status}: {response.read(300)!r}")
            while line := response.readline():
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    yield json.loads(line[5:])
        finally:
            connection.close()

    def wait_ready(self, deadline_s: float = 120) -> None:
        """Polls /health every 5 ms until it answers 200."""
        end = time.perf_counter() + deadline_s
        while time.perf_counter() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"penstock ended with {self.process.returncode}; see {self.log}")
            with contextlib.suppress(OSError):
                if self.request("GET", "/health", timeout=5)[0] == 200:
                    return
            time.sleep(0.005)
        raise RuntimeError(f"penstock was not ready after {deadline_s} s; see {self.log}")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        text = self.request("GET", "/metrics")[1].decode()
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def worker_pids(self) -> list[int]:
        """The worker processes: children of the launcher."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for file in children for pid in file.read_text().split()]


@contextlib.contextmanager
def penstock(*flags: str, wait: bool = True, env: dict[str, str] | None = None) -> Iterator[Server]:
    """Runs `penstock FLAGS` on a free port until the block ends. `env` is added to this process's."""
    port = free_port()
    log = Path(f"/tmp/penstock-bench-{port}.log")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [release(), "--hostname", "127.0.0.1", "--port", str(port), *flags],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **(env or {})},
        )
    server = Server(port, process, log)
    try:
        if wait:
            server.wait_ready()
        yield server
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Asks a server to end, and makes it where it does not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def spread(values: list[float], unit: str = "") -> str:
    """Median and range, as RESULTS.md writes them."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    return f"{middle:.4g}{unit} ({ordered[0]:.4g}-{ordered[-1]:.4g}, n={len(ordered)})"
