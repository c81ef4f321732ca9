"""The gRPC server at the worker's address, and how the process ends after a failure inside a step."""

import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from penstock.errors import PEER_LOST, OtherLimits, PeerLost, RunEnded, one_line
from penstock.rpc import frames
from penstock.rpc.address import Address, Port, UnixSocket
from penstock.rpc.handlers import handlers
from penstock.rpc.servicer import WorkerServicer
from penstock.telemetry import log

# A router on another host is asked for a sign of life when it is silent, since one that vanishes closes nothing; and it asks as well,
# also while no call is open, which gRPC takes for an attack unless it is told.
KEEP_ALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # Else a second worker could listen at the same port, and take half of the connections.
    ("grpc.so_reuseport", 0),
)


def listen(servicer: WorkerServicer, address: Address) -> grpc.Server:
    """A server that answers there, on threads of its own, and takes frames beside it where the contract has them. Raises OSError."""
    description = servicer.description
    if isinstance(address, UnixSocket):
        description.frames = frames.listen(address.for_frames, servicer.run_frames)
    server = grpc.server(
        ThreadPoolExecutor(8, thread_name_prefix="grpc"),
        handlers=[handlers(servicer)],
        options=(
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            *(KEEP_ALIVE if address.is_remote else ()),
        ),
    )
    certificates = address.certificates if isinstance(address, Port) else None
    try:
        if certificates is None:
            server.add_insecure_port(address.for_grpc)
        else:
            pair = (certificates.key.read_bytes(), certificates.chain.read_bytes())
            credentials = grpc.ssl_server_credentials(
                [pair], root_certificates=certificates.authority.read_bytes(), require_client_auth=True
            )
            server.add_secure_port(address.for_grpc, credentials)
    except RuntimeError as error:
        raise OSError(f"--listen {address.for_grpc}: {error}") from error
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
        elif isinstance(error, OtherLimits | RunEnded):
            log("WARN", one_line(error))
        else:
            log("ERROR", f"{type(error).__name__}: {one_line(error)}", fatal=True)
        self._failures.put((PEER_LOST if isinstance(error, PeerLost) else 1, answered))

    def _wait(self) -> None:
        status, answered = self._failures.get()
        answered.wait(1.0)
        os._exit(status)
