"""Reads weights from the disk ahead of the threads that copy them, and logs progress.

Used by `penstock.loading.tensor_reader`.
"""

import os
import threading
import time
from pathlib import Path

from penstock.loading.model_files import Stored, gigabytes
from penstock.telemetry import log

# How far reading from the disk is ahead of the copying, and in which steps the system is asked to.
AHEAD = 256 << 20
STEP = 128 << 10
QUIET_SECONDS = 3.0


class ReadAhead:
    """Asks the system for what is wanted next, so that copying does not wait for the disk at every page."""

    def __init__(self, folder: Path, ranges: list[Stored]) -> None:
        self._folder = folder
        self._ranges = ranges
        self._starts = [0]
        for stored in ranges:
            self._starts.append(self._starts[-1] + stored.end - stored.begin)
        self._next = 0
        self._within = threading.Condition()
        self._done = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="read ahead", daemon=True)
        if ranges:
            self._thread.start()

    def begin(self, stored: Stored) -> None:
        """The copying of this tensor begins."""
        if self._next < len(self._ranges) and self._ranges[self._next] is stored:
            self._set(self._starts[self._next])
            self._next += 1

    def go_on(self, count: int) -> None:
        """`count` more bytes were copied."""
        self._set(self._done + count)

    def _set(self, done: int) -> None:
        with self._within:
            self._done = done
            self._within.notify()

    def stop(self) -> None:
        with self._within:
            self._stopped = True
            self._within.notify()
        if self._ranges:
            self._thread.join()

    def _run(self) -> None:
        files: dict[str, int] = {}
        try:
            for start, stored in zip(self._starts, self._ranges, strict=False):
                file = files.get(stored.file)
                if file is None:
                    file = files[stored.file] = os.open(self._folder / stored.file, os.O_RDONLY)
                for begin in range(stored.begin, stored.end, STEP):
                    with self._within:
                        while start + begin - stored.begin > self._done + AHEAD and not self._stopped:
                            self._within.wait()
                        if self._stopped:
                            return
                    os.posix_fadvise(file, begin, min(STEP, stored.end - begin), os.POSIX_FADV_WILLNEED)
        except OSError:  # it is a help only; who copies meets the same trouble, and says so
            return
        finally:
            for file in files.values():
                os.close(file)


class Progress:
    """Log lines during a long load."""

    def __init__(self, total: int, tells: bool) -> None:
        self._total = total
        self._tells = tells
        self._done = 0
        self._began = self._said = time.monotonic()

    def go_on(self, count: int) -> None:
        """`count` more bytes were read."""
        self._done += count
        now = time.monotonic()
        if now - self._said < QUIET_SECONDS or not self._tells:
            return
        self._said = now
        log(
            "INFO",
            f"loading weights: {self._done / max(self._total, 1):.0%} of {gigabytes(self._total)}, "
            f"{gigabytes(self._done / (now - self._began))}/s",
            progress=True,
        )
