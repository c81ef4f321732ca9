"""Run in frames over a unix socket, for a router on this machine: what the contract says under Frames.

gRPC's way through Python takes a tenth of a millisecond for each message, which is half of a small model's step. Here a message is one
`recv` on the thread that reads plans, and one `send` on the thread that computes.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import BadPlan
from penstock.proto import penstock_pb2 as pb
from penstock.telemetry import log

# Length of the message, and a status code of gRPC.
HEAD = struct.Struct("<II")
# A router that takes no result for so long is lost: its successor is not to wait for it. In seconds and microseconds.
SEND_TIMEOUT = struct.pack("ll", 5, 0)
CONNECTIONS = 8
# When no descriptor is free for a connection, in seconds.
PAUSE = 0.1


class FrameCall:
    """One Run call on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        self._reader: BinaryIO = connection.makefile("rb")

    def begin(self) -> None:
        """Tells the router that the call has begun."""
        self._send(0, b"")

    def messages(self) -> Iterator[pb.ToWorker]:
        """What the router sends, until it leaves. Raises BadPlan for what is no message."""
        try:
            while len(head := self._reader.read(HEAD.size)) == HEAD.size:
                length, _ = HEAD.unpack(head)
                if len(payload := self._reader.read(length)) < length:
                    return
                yield pb.ToWorker.FromString(payload)
        except DecodeError as error:
            raise BadPlan(f"message: {error}") from error
        except OSError:
            return

    def answer(self, result: pb.StepResult) -> None:
        """Sends a result; that nobody takes it any more is seen by `messages`."""
        self._send(0, result.SerializeToString())

    def fail(self, code: grpc.StatusCode, message: str) -> None:
        """Ends the call."""
        number: int = code.value[0]
        self._send(number, message.encode())
        self.close()

    def close(self) -> None:
        """Ends both directions: whoever reads finds the end."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the router was first

    def release(self) -> None:
        """Gives the descriptor back, when nobody uses it any more."""
        self._reader.close()
        self._connection.close()

    def _send(self, code: int, payload: bytes) -> None:
        try:
            self._connection.sendall(HEAD.pack(len(payload), code) + payload)
        except OSError:
            self.close()


def listen(path: Path, serve: Callable[[FrameCall], None]) -> bool:
    """Has each connection there served on a thread of its own. Returns whether it listens: a path may be too long for a socket."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(CONNECTIONS)
    except OSError as error:
        listener.close()
        log("WARN", f"plans come through gRPC, which takes longer: cannot listen at {path}: {error}")
        return False
    threading.Thread(target=_accept, args=(listener, serve), name="frames", daemon=True).start()
    return True


def _accept(listener: socket.socket, serve: Callable[[FrameCall], None]) -> None:
    while True:
        try:
            call = FrameCall(listener.accept()[0])
        except OSError as error:
            log("WARN", f"a connection for plans was not taken: {error}")
            time.sleep(PAUSE)
            continue
        threading.Thread(target=_serve, args=(call, serve), name="plans", daemon=True).start()


def _serve(call: FrameCall, serve: Callable[[FrameCall], None]) -> None:
    try:
        serve(call)
    finally:
        call.release()
