"""The one thread that computes.

OpenMP keeps a team of threads for every thread that computes, and lets them spin between operations only
while there are no more of them than processors. With a second team they sleep instead, and a step of a
small model takes twice as long. So loading, preparing and every step happen on one thread, the main one.
"""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn, TypeVar

T = TypeVar("T")


class EngineThread:
    """Jobs for the thread that called `serve`, done one after another."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve(self) -> NoReturn:
        """Does jobs until an exception that is no Exception, such as that of a signal, ends it."""
        while True:
            self._jobs.get()()

    def submit(self, job: Callable[[], None]) -> None:
        """Leaves a job, which must not raise."""
        self._jobs.put(job)

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises there."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self.submit(job)
        return future.result()
