"""A real server for half an hour under good, bad and hostile traffic, with its worker killed in between: what it
takes of memory, descriptors, threads and time must be at the end what it was after the first two minutes.

    python benchmarks/soak.py [--minutes 30]
    python benchmarks/soak.py --quick      # two minutes, and no verdict about time: for machines that do other things

The shipped model, with API keys and small limits. The time is cut into windows with the same traffic in each:
streams of chats, texts and completions at a steady rate, each compared with the reference answer of its prompt (on the
CPU engine they are equal to the last token, beside whatever else runs and across a lost worker); probes; the attacks
of `hostile.py`; one `kill -9` of the worker. At the end of a window everybody leaves, and what is still held then is
counted. The first window warms up. Latencies are of streams that no kill touched, divided by how fast the machine was
in that window (a fixed computation, in processor time): one that slows down is no leak.

Prints a table and a verdict; exit code 1 where a figure of the last window is more than 5 % above the second one's, a
stream was lost or wrong, or an attack was answered as it must not be. Latencies are those of the windows of the first
and of the last third, pooled, for the 99th percentile of one window's streams moves by 10 % on a virtual machine; and
one has grown when the ratio is above 1.05 and its 95 % interval above 1.
Only loopback is used, and only what was started here is killed.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
# In this order: both folders have a `load` and a `prompts`, and the tests' are meant.
sys.path[:0] = [str(BENCHMARKS.parent / "integration-tests"), str(BENCHMARKS)]

import hostile  # noqa: E402
import load  # noqa: E402
import prompts  # noqa: E402
import wire  # noqa: E402
from exposition import IN_FLIGHT, KV_USED, QUEUED, RUNNING  # noqa: E402
from launched import BINARY, Launched  # noqa: E402
from processes import wait_for  # noqa: E402
from running_server import processor, release  # noqa: E402

HONEST, HOSTILE = "honest-0123456789abcdef", "hostile-fedcba9876543210"
OWN = {"authorization": f"Bearer {HONEST}"}

# What a client may hold is short, so that it is given back within a window. One thread computes: on a small machine the
# clients, who run here too, need the others.
FLAGS = [
    *("--worker-threads", "1"),
    *("--max-total-tokens", "512", "--max-batch-total-tokens", "8192"),
    *("--max-concurrent-requests", "64", "--max-connections", "512", "--max-best-of", "2"),
    *("--header-timeout", "3", "--body-timeout", "3", "--idle-timeout", "4", "--write-timeout", "4"),
]

# Honest requests a second, and who sends them: fewer at once than the share of places that no other tenant can take.
RATE, CLIENTS = 5.0, 7
TOKENS = 24
# A window's end without traffic. Longer than every limit above, and than an idle thread lives (tokio's 10 s).
REST = 14.0
# Into a window's traffic, the worker is killed.
KILL_AT = 0.4
# After a recovery: what waited for it is served in a burst.
SETTLED = 3.0
TOLERANCE = 0.05
# A quick run is too short for pools to fill, and its second window is young. One chat's 600,000 values, held for ever, are
# more than this.
QUICK_GROWTH = 16 << 20
# What the attackers, who are so many at once, may take for a moment.
PEAK = 512 << 20
# A server that leaks is stopped before the machine is in trouble.
CEILING = 4 << 30


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    resident: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"^Rss:\s+(\d+) kB", rollup, re.MULTILINE)
    threads = re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    assert resident and threads
    return Usage(int(resident[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")), int(threads[1]))


def forget_the_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(pid: int) -> int:
    """The most memory, in bytes, since that was forgotten."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def processor_time(pid: int) -> float:
    """Seconds that a process and its threads have computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_time() -> float:
    """Seconds of processor time that a fixed computation takes now."""
    began = time.thread_time()
    sum(number * number for number in range(100_000))
    return time.thread_time() - began


@dataclass
class Window:
    router: Usage = Usage(0, 0, 0)
    worker: Usage = Usage(0, 0, 0)
    peak: int = 0  # of the router's memory while it was attacked
    router_seconds: float = 0.0
    log_bytes: int = 0
    recovery: float = 0.0  # seconds from the kill to health
    first: list[float] = field(default_factory=list)  # times to the first token
    between: list[float] = field(default_factory=list)  # and between tokens
    probes: list[float] = field(default_factory=list)
    machine: list[float] = field(default_factory=list)
    honest: collections.Counter[str] = field(default_factory=collections.Counter)
    hostile: hostile.Findings = field(default_factory=hostile.Findings)
    held: dict[str, float] = field(default_factory=dict)  # what should be nothing when everybody has left

    @property
    def speed(self) -> float:
        return statistics.median(self.machine)


def is_ready(server: Launched) -> bool:
    reply = server.health()
    return reply is not None and reply.status == 200


class Outage:
    """When the worker was killed, and when the server was ready again."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def begin(self) -> None:
        self.spans.append((time.monotonic(), float("inf")))

    def end(self) -> float:
        began, _ = self.spans.pop()
        now = time.monotonic()
        self.spans.append((began, now))
        return now - began

    def touched(self, began: float, ended: float) -> bool:
        return any(began < over + SETTLED and ended > start for start, over in self.spans)


class Honest:
    """Tenants who use the server as it is meant, and know what it has to answer."""

    def __init__(self, server: Launched) -> None:
        self.server = server
        self.outage = Outage()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        asks: list[load.Ask] = []
        for number, question in enumerate(prompts.QUESTIONS):
            story = f"{'and then ' * (number * 3)}story {number}: once upon a time"
            system = {"role": "system", "content": "Answer in one sentence."}
            asks += [
                load.chat(prompts.user(question), TOKENS, user=f"someone-{number}"),
                load.generate(prompts.as_text(question), TOKENS),
                load.complete(story, TOKENS),
                load.chat([system, *prompts.user(question)], TOKENS),
            ]
        self.asks = [load.Ask(ask.path, ask.body, OWN) for ask in asks]
        self.references = [load.ask(server.address, ask) for ask in self.asks]
        self.tokens = self._tokens()

    def _tokens(self) -> list[Any]:
        """The plain routes, which do not stream."""
        text = {"inputs": "How do I stream tokens?"}
        messages = {"messages": prompts.user("How do I stream tokens?")}
        replies = [
            wire.post(self.server.address, path, body, headers=OWN)
            for path, body in (("/tokenize", text), ("/chat_tokenize", messages))
        ]
        return [(reply.status, reply.text) for reply in replies]

    def use(self, window: Window, seconds: float) -> None:
        """At a steady rate for so long; returns when all are answered."""
        began = time.monotonic()
        numbers = iter(range(int(seconds * RATE)))

        def client() -> None:
            while True:
                with self._lock:
                    number = next(numbers, None)
                if number is None:
                    return
                due = began + number / RATE
                time.sleep(max(0.0, due - time.monotonic()))
                with self._lock:
                    window.honest["late"] += time.monotonic() > due + 1.0
                try:
                    self._request(window, number)
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
                    self._fail(window, f"request {number}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _request(self, window: Window, number: int) -> None:
        if number % 40 == 39:
            self._retried(window, self._compare_tokens)
        which = number % len(self.asks)
        self._retried(window, lambda: self._stream(window, which))

    def _retried(self, window: Window, action: Callable[[], None]) -> None:
        """While the worker is replaced, new requests are told to come again."""
        while True:
            began = time.monotonic()
            try:
                return action()
            except load.Refused as refusal:
                if refusal.reply.status != 503 or not self.outage.touched(began, time.monotonic()):
                    raise
                with self._lock:
                    window.honest["told to come again"] += 1
                wait_for(lambda: is_ready(self.server), "recovery", 120, every=0.05)

    def _compare_tokens(self) -> None:
        tokens = self._tokens()
        if tokens != self.tokens and not any(status == 503 for status, _ in tokens):
            raise AssertionError(f"tokens of the same text: {str(tokens)[:300]}")

    def _stream(self, window: Window, which: int) -> None:
        times: list[float] = []
        began = time.monotonic()
        answer = load.ask(self.server.address, self.asks[which], lambda: times.append(time.monotonic()))
        ended = time.monotonic()
        if not answer.same_as(self.references[which]):
            raise AssertionError(
                f"{self.asks[which].path} was answered {answer}, and before {self.references[which]}"
            )
        with self._lock:
            window.honest["streams"] += 1
            if self.outage.touched(began, ended):
                window.honest["across a kill"] += 1
            elif times:
                window.first.append(times[0] - began)
                window.between += [later - earlier for earlier, later in itertools.pairwise(times)]

    def _fail(self, window: Window, what: str) -> None:
        with self._lock:
            window.honest["FAILED"] += 1
            self.failures.append(what)


class Soak:
    def __init__(self, server: Launched, window_seconds: float) -> None:
        self.server = server
        self.busy = window_seconds - REST
        self.honest = Honest(server)
        self.target = hostile.Target(server.address.host, server.address.port, HOSTILE)
        self.pid = server.process.pid
        self.wrong: list[str] = []

    def window(self, number: int, attackers: Any) -> Window:
        window, stopping = Window(), threading.Event()
        computed, logged = processor_time(self.pid), len(self.server.log())
        forget_the_peak(self.pid)
        watching = [
            threading.Thread(target=action, args=(window, stopping), daemon=True)
            for action in (self._probe, self._kill)
        ]
        ends = time.monotonic() + self.busy + REST
        attackers.send((number, self.busy))
        for thread in watching:
            thread.start()
        self.honest.use(window, self.busy)
        window.hostile = attackers.recv()
        stopping.set()
        for thread in watching:
            thread.join()
        time.sleep(max(REST, ends - time.monotonic()))
        self._measure(window)
        window.router_seconds = processor_time(self.pid) - computed
        window.log_bytes = len(self.server.log()) - logged
        self.wrong += [f"window {number}: {what}" for what in window.hostile.wrong]
        return window

    def _probe(self, window: Window, stopping: threading.Event) -> None:
        """The orchestrator that asks whether the server lives; and how fast the machine is."""
        while not stopping.wait(0.5):
            window.machine.append(machine_time())
            began = time.monotonic()
            try:
                reply = wire.get(self.server.address, "/livez", timeout=10)
                if reply.status != 200:
                    self.wrong.append(f"/livez says {reply.status}")
            except OSError as error:
                self.wrong.append(f"/livez: {error}")
            window.probes.append(time.monotonic() - began)

    def _kill(self, window: Window, stopping: threading.Event) -> None:
        if stopping.wait(self.busy * KILL_AT):
            return
        worker = self.server.worker()
        self.honest.outage.begin()
        worker.signal(signal.SIGKILL)

        def replaced() -> bool:
            return worker.pid not in [other.pid for other in self.server.workers()]

        wait_for(replaced, "the killed worker to be gone")
        wait_for(lambda: self.server.workers() and is_ready(self.server), "recovery", 300, every=0.02)
        window.recovery = self.honest.outage.end()

    def _measure(self, window: Window) -> None:
        """After the rest. Nobody is there, so nothing may be held for anybody."""
        metrics = self.server.metrics()
        # The question itself is no request that generates.
        counted = {name: metrics.value(name) for name in (IN_FLIGHT, QUEUED, RUNNING, KV_USED)}
        window.held = {name: value for name, value in counted.items() if value}
        if window.held:
            self.wrong.append(f"held for nobody: {window.held}")
        window.router, window.worker = usage(self.pid), usage(self.server.worker().pid)
        window.peak = peak(self.pid)
        if window.peak > PEAK:
            self.wrong.append(f"the router took {window.peak >> 20} MiB (at most {PEAK >> 20})")


def attack(connection: Any, target: hostile.Target) -> None:
    """The process of the attackers: carries out windows until it is told no more."""
    os.nice(5)  # who measures comes first
    while (order := connection.recv()) is not None:
        number, seconds = order
        connection.send(hostile.carry_out(target, number, seconds))


# --- What is told --------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def figures(window: Window, pace: float) -> dict[str, float]:
    """What is compared. `pace` is how much slower the machine is than in the second window."""
    return {
        "router MiB": window.router.resident / (1 << 20),
        "worker MiB": window.worker.resident / (1 << 20),
        "router descriptors": window.router.descriptors,
        "worker descriptors": window.worker.descriptors,
        "router threads": window.router.threads,
        "worker threads": window.worker.threads,
        "first token p50 ms": 1000 * percentile(window.first, 0.5) / pace,
        "first token p99 ms": 1000 * percentile(window.first, 0.99) / pace,
        "between p50 ms": 1000 * percentile(window.between, 0.5) / pace,
        "between p99 ms": 1000 * percentile(window.between, 0.99) / pace,
    }


def others(window: Window, pace: float) -> dict[str, float]:
    """What is only told."""
    return {
        "machine": pace,
        "router peak MiB": window.peak / (1 << 20),
        "router seconds": window.router_seconds,
        "log KiB": window.log_bytes / 1024,
        "recovery s": window.recovery,
        "probe p99 ms": 1000 * percentile(window.probes, 0.99),
        "streams": window.honest["streams"],
        "across a kill": window.honest["across a kill"],
        "told to come again": window.honest["told to come again"],
        "late": window.honest["late"],
        "FAILED": window.honest["FAILED"],
        "attacks": window.hostile.attacks,
        "slowest attack s": window.hostile.slowest[0],
        "WRONG": len(window.hostile.wrong),
    }


def paced(windows: list[Window]) -> list[tuple[Window, float]]:
    base = windows[min(1, len(windows) - 1)].speed
    return [(window, window.speed / base) for window in windows]


def table(windows: list[Window]) -> None:
    for section in (figures, others):
        rows = [section(window, pace) for window, pace in paced(windows)]
        for name in rows[0]:
            print(f"{name:>20} " + " ".join(f"{row[name]:>8.4g}" for row in rows))
        print()


def grown(windows: list[Window], quick: bool) -> list[str]:
    """The figures of the last window that are too far above the second one's."""
    before, *_, after = [figures(window, pace) for window, pace in paced(windows)][1:]
    found = []
    for name, value in after.items():
        allowed = before[name] * (1 + TOLERANCE)
        if name.endswith("ms"):
            continue
        if quick and name.endswith("MiB"):
            allowed = before[name] + QUICK_GROWTH / (1 << 20)
        if not value <= allowed:
            found.append(f"{name}: {before[name]:.4g} and in the end {value:.4g} (at most {allowed:.4g})")
    return found


def latency_ratios(windows: list[Window]) -> dict[str, tuple[float, float, float]]:
    """Latencies of the last third of the windows to those of the first, the warm-up left out: the ratio and its 95 %
    interval, by drawing windows anew (what streams of one window meet, they meet together)."""
    measured = paced(windows)[1:]
    third = max(1, len(measured) // 3)
    draw = random.Random(0)
    ratios = {}
    for kind, share in itertools.product(("first", "between"), (0.5, 0.99)):
        early, late = (
            [[value / pace for value in getattr(window, kind)] for window, pace in part]
            for part in (measured[:third], measured[-third:])
        )

        def of(parts: list[list[float]], share: float = share) -> float:
            return percentile(list(itertools.chain.from_iterable(parts)), share)

        drawn = sorted(of(draw.choices(late, k=third)) / of(draw.choices(early, k=third)) for _ in range(400))
        name = f"{'first token' if kind == 'first' else 'between'} p{100 * share:.0f}"
        ratios[name] = (of(late) / of(early), drawn[10], drawn[-11])
    return ratios


def run(minutes: float, quick: bool) -> int:
    seconds = 60 * minutes
    window_seconds = max(30.0, min(120.0, seconds / 5))
    count = round(seconds / window_seconds)
    print(
        f"{processor()}; {count} windows of {window_seconds:.0f} s, {RATE:g} honest requests a second",
        flush=True,
    )
    windows: list[Window] = []
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"the server's log: {folder}", flush=True)
    keys = folder / "keys"
    keys.write_text(f"honest: {HONEST}\nhostile: {HOSTILE}\n")
    binary = BINARY if quick else release()
    with Launched(folder, *FLAGS, "--api-key-file", str(keys), binary=binary) as server:
        soak = Soak(server.wait_ready(), window_seconds)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        attackers = context.Process(target=attack, args=(theirs, soak.target), daemon=True)
        attackers.start()
        for number in range(count):
            windows.append(soak.window(number, ours))
            tell(number, windows[-1])
            if windows[-1].router.resident > CEILING:
                soak.wrong.append(f"stopped: the router holds {windows[-1].router.resident >> 20} MiB")
                break
        ours.send(None)
        attackers.join()
        log = server.log()
    wrong = [*soak.wrong, *soak.honest.failures]
    wrong += [f"the log: {line[:200]!r}" for line in log.splitlines() if bad_line(line)][:20]
    print()
    table(windows)
    outcomes: collections.Counter[str] = collections.Counter()
    for window in windows:
        outcomes += window.hostile.outcomes
    print(", ".join(f"{name} {times}" for name, times in sorted(outcomes.items())))
    growth = grown(windows, quick) if len(windows) > 2 else ["too few windows to compare"]
    if not quick and len(windows) > 3:
        for name, (ratio, low, high) in latency_ratios(windows).items():
            print(f"{name}, last third to first: {ratio:.3f} ({low:.3f}-{high:.3f})")
            if ratio > 1 + TOLERANCE and low > 1:
                growth.append(f"{name}: {ratio:.3f} times the first third's")
    for line in [*growth, *wrong[:30]]:
        print(f"WRONG: {line}")
    print(f"verdict: {'FAILED' if growth or wrong else 'passed'}")
    return 1 if growth or wrong else 0


def bad_line(line: str) -> bool:
    return line.startswith(hostile.FORGED) or "panicked at" in line or "Traceback (most recent" in line


def tell(number: int, window: Window) -> None:
    print(
        f"window {number}: router {window.router.resident >> 20} MiB (peak {window.peak >> 20}), {window.router.descriptors} descriptors, "
        f"{window.router.threads} threads; worker {window.worker.resident >> 20} MiB; "
        f"first token {1000 * percentile(window.first, 0.5):.1f} ms, between "
        f"{1000 * percentile(window.between, 0.5):.1f} ms; {window.honest['streams']} streams, "
        f"{window.honest['FAILED']} failed; {window.hostile.attacks} attacks, {len(window.hostile.wrong)} wrong, "
        f"slowest {window.hostile.slowest[1]} {window.hostile.slowest[0]:.1f} s",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    return run(2.0 if arguments.quick else arguments.minutes, arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
