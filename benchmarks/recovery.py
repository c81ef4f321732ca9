"""Figure 6: from `kill -9` of the worker to the next token that a streaming client receives, and how the
server's log splits that time.

    .venv/bin/python benchmarks/recovery.py [--rounds 5] [--streams 8]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

from running_server import Server, penstock, processor, spread


class Stream(threading.Thread):
    """One long stream that notes when each of its events arrived."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(daemon=True)
        self.server, self.number = server, number
        self.times: list[float] = []
        self.error: str | None = None

    def run(self) -> None:
        prompt = [300 + (self.number * 31 + 7 * i) % 700 for i in range(64)]
        body = {"prompt": prompt, "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
        try:
            for _ in self.server.events("/v1/completions", body):
                self.times.append(time.perf_counter())
        except (OSError, RuntimeError, ValueError) as error:
            self.error = str(error)


def wait_for(condition: object, deadline_s: float) -> None:
    assert callable(condition)
    end = time.perf_counter() + deadline_s
    while not condition():
        if time.perf_counter() > end:
            raise SystemExit("a stream did not go on in time")
        time.sleep(0.002)


def one_kill(server: Server, streams: int) -> tuple[float, float]:
    """Kills the worker under load; seconds to the next token of the first and of the last stream."""
    running = [Stream(server, number) for number in range(streams)]
    for stream in running:
        stream.start()
    wait_for(lambda: all(len(stream.times) > 20 for stream in running), 60)
    (worker,) = server.worker_pids()
    before = [len(stream.times) for stream in running]
    killed = time.perf_counter()
    os.kill(worker, signal.SIGKILL)
    # What was already on its way may still arrive: a gap of 50 ms marks the pause.
    wait_for(lambda: all(len(s.times) > n + 5 for s, n in zip(running, before, strict=True)), 60)
    resumed = [next_after_pause(stream.times, killed) for stream in running]
    for stream in running:
        stream.join(120)
        if stream.error:
            raise SystemExit(f"a stream failed: {stream.error}")
    return min(resumed) - killed, max(resumed) - killed


def next_after_pause(times: list[float], killed: float) -> float:
    after = [at for at in times if at > killed]
    gaps = [(later - earlier, later) for earlier, later in zip([killed, *after], after, strict=False)]
    return max(gaps)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    arguments = parser.parse_args()
    print(f"processor: {processor()}")
    with penstock() as server:
        results = [one_kill(server, arguments.streams) for _ in range(arguments.rounds)]
        log = server.log.read_text()
    print(f"kill -9 to the next token, first stream: {spread([first for first, _ in results], ' s')}")
    print(f"kill -9 to the next token, last stream:  {spread([last for _, last in results], ' s')}")
    for line in log.splitlines():
        if "recover" in line.lower():
            print(line)


if __name__ == "__main__":
    main()
