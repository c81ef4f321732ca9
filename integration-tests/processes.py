"""What runs on this machine, read from /proc: the processes of one server, however they were re-parented.

A server under test is started with a mark in its environment, which every process it starts inherits.
So an orphan is found even after its parents are gone. Nothing here signals a process it did not find by
that mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MARK = "PENSTOCK_UNDER_TEST"

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    pid: int
    state: str
    command: str

    @property
    def is_worker(self) -> bool:
        return "penstock.worker" in self.command

    @property
    def rank(self) -> int:
        """Of a worker."""
        words = self.command.split()
        return int(words[words.index("--rank") + 1])

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def marked(mark: str) -> list[Process]:
    """Every living process that inherited `mark`, zombies left out (they hold nothing but a number)."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # The name in parentheses may hold anything; what follows the last one is plain fields.
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue  # It ended while it was looked at, or belongs to somebody else.
        if state != "Z":
            found.append(Process(int(entry.name), state, command))
    return found


def names_of_threads(pid: int) -> list[str]:
    """Of those that a process has; one may end while it is looked at."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = 30.0, every: float = 0.01) -> T:
    """Polls until `condition` gives something true, and returns that; a deadline missed is a failure."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}; last seen: {value!r}")
        time.sleep(every)
