"""How long others wait while a test does something to the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import wire
from processes import wait_for

T = TypeVar("T")


class Probe(threading.Thread):
    """Asks for /livez again and again; `slowest` is the longest that it waited."""

    def __init__(self, address: wire.Address) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.slowest = 0.0
        self.count = 0
        self.ending = threading.Event()

    def __enter__(self) -> Probe:
        self.start()
        wait_for(lambda: self.count > 0, "the first answer to a probe")
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.join(60)

    def run(self) -> None:
        while not self.ending.wait(0.02):
            began = time.monotonic()
            assert wire.get(self.address, "/livez").status == 200
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.count += 1


def probed(address: wire.Address, limit: float, act: Callable[[int], T]) -> tuple[T, Probe]:
    """What `act` gives, and how long others waited meanwhile. It is done up to three times, and told which, until nobody waited for
    `limit`: a busy machine stands still now and then, and what holds up others does so each time.
    """
    for turn in range(3):
        with Probe(address) as probe:
            done = act(turn)
        if probe.slowest < limit:
            break
        print(f"turn {turn}: others waited for {probe.slowest:.2f} s")
    return done, probe
