"""The gRPC server on the worker's socket, and how the process ends after a failure inside a step."""

import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from penstock.errors import PEER_LOST, PeerLost, one_line
from penstock.rpc.handlers import handlers
from penstock.rpc.servicer import WorkerServicer
from penstock.telemetry import log


def listen(servicer: WorkerServicer, socket: Path) -> grpc.Server:
    """A server that answers on the unix socket, on threads of its own."""
    server = grpc.server(
        ThreadPoolExecutor(8, thread_name_prefix="grpc"),
        handlers=[handlers(servicer)],
        options=(("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)),
    )
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


class ProcessExit:
    """Ends the process after a failure inside a step. Its thread exists beforehand: it may be the memory
    for one more that is missing.
    """

    def __init__(self) -> None:
        self._failures: queue.SimpleQueue[tuple[int, threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._wait, name="ending", daemon=True).start()

    def __call__(self, error: Exception, answered: threading.Event) -> None:
        """Logs the cause, lets the answer out, and exits."""
        if isinstance(error, PeerLost):
            log("WARN", f"lost another rank: {one_line(error)}")
        else:
            log("ERROR", f"{type(error).__name__}: {one_line(error)}", fatal=True)
        self._failures.put((PEER_LOST if isinstance(error, PeerLost) else 1, answered))

    def _wait(self) -> None:
        status, answered = self._failures.get()
        answered.wait(1.0)
        os._exit(status)
