"""Run in frames over a unix socket, for a router on this machine: what the contract says under Frames.

gRPC's way through Python takes a tenth of a millisecond for each message, which is half of a small model's step. Here a message is one
`recv` and one `send` on the thread that computes, and most are the CPU engine's own.
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from penstock.engine.plan import MASKED, MaskColumns, Plan
from penstock.errors import BadPlan
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.plan_reader import PlanReader, read_masks
from penstock.rpc.run_call import Owed, check_message
from penstock.telemetry import log
from penstock_kernels.run import Inbox

# Length of the message, and a status code of gRPC.
HEAD = struct.Struct("<II")
# A router that takes no result for so long is lost: its successor is not to wait for it. In seconds and microseconds.
SEND_TIMEOUT = struct.pack("ll", 5, 0)
CONNECTIONS = 8
# When no descriptor is free for a connection, in seconds.
PAUSE = 0.1


class FrameCall:
    """One Run call on a connection, which is the Source of its own plans: whoever executes them reads them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        self.inbox = Inbox(connection.fileno())
        self._plans = PlanReader()
        self._owed = Owed()
        self._why: Exception | None = None  # it is to end

    def begin(self) -> None:
        """Tells the router that the call has begun."""
        self._send(0, b"")

    def plan(self) -> Plan | None:
        """See Source."""
        while (frame := self._next_frame(self.inbox.begin)) is None:
            if not self._receive():
                self._raise_why()
                return None
        return self._plan_of(_message(self.inbox, frame))

    def has_waited(self) -> bool:
        """See Source."""
        if self._next_frame(self.inbox.begin) is not None:
            return False
        while self._next_frame(self.inbox.begin) is None:
            if not self._receive():
                return False
        return True

    def plan_within(self, seconds: float) -> Plan | None:
        """See Source."""
        until = time.monotonic() + seconds
        while self._next_frame(self.inbox.begin) is None:
            left = max(until - time.monotonic(), 0)
            if not select.select([self._connection], [], [], left)[0] or not self._receive():
                return None
        return self.plan()

    def masks(self) -> MaskColumns | None:
        """See Source. Plans before them stay where they are."""
        inbox, at = self.inbox, 0  # behind the beginning
        while True:
            while (frame := self._next_frame(inbox.begin + at)) is None:
                if not self._receive():
                    self._raise_why()
                    return None
            message = _message(inbox, frame)
            if message.HasField("masks") and message.masks.number != inbox.taken_masks:
                self._owed.take(message.masks.number)
                inbox.taken_masks = message.masks.number
                self._drop()
                return read_masks(message.masks)
            at = frame[1] - inbox.begin

    def owe(self, number: int) -> None:
        """See Source."""
        self._owed.add(number)

    def end(self, why: Exception) -> None:
        """See Source."""
        self._why = why
        self._shut(socket.SHUT_RD)

    def _raise_why(self) -> None:
        if self._why is not None:
            raise self._why

    def _plan_of(self, message: pb.ToWorker) -> Plan:
        """That of the first message."""
        inbox, masks = self.inbox, message.masks.number if message.HasField("masks") else None
        has_plan = message.HasField("plan") and not inbox.is_taken
        if masks not in (None, inbox.taken_masks) and not (has_plan and masks == message.plan.number):
            self._owed.take(masks)
        reader = self._plans
        reader.number, reader.digest = inbox.number, inbox.digest
        plan = reader.read(message.plan)
        inbox.number, inbox.digest, inbox.is_taken = reader.number, reader.digest, True
        if (plan.flags & MASKED).any():
            self._owed.add(plan.number)
        self._drop()
        return plan

    def _drop(self) -> None:
        """Gives up messages of which all was taken."""
        inbox = self.inbox
        while inbox.is_taken or inbox.taken_masks:
            if (frame := self._next_frame(inbox.begin)) is None:
                return
            message = _message(inbox, frame)
            if message.HasField("plan") and not inbox.is_taken:
                return
            if message.HasField("masks"):
                if message.masks.number != inbox.taken_masks:
                    return
                inbox.taken_masks = 0
            inbox.begin, inbox.is_taken = frame[1], False

    def _next_frame(self, at: int) -> tuple[int, int] | None:
        """Where the message begins and ends that has its frame there, if all of it was received."""
        inbox, begin = self.inbox, at + HEAD.size
        if begin > inbox.end:
            return None
        end = begin + HEAD.unpack_from(inbox.bytes.data, at)[0]
        return (begin, end) if end <= inbox.end else None

    def _receive(self) -> bool:
        """Waits for more bytes. False: the router has left."""
        inbox = self.inbox
        if inbox.begin == inbox.end:
            inbox.begin = inbox.end = 0
        if inbox.end == len(inbox.bytes):
            rest = inbox.bytes[inbox.begin : inbox.end]
            # What is left of a message may be longer than there is room for.
            room = len(inbox.bytes) if len(rest) <= len(inbox.bytes) // 2 else 2 * len(inbox.bytes)
            moved = np.empty(room, np.uint8)
            moved[: len(rest)] = rest
            inbox.bytes, inbox.begin, inbox.end = moved, 0, len(rest)
        try:
            size = self._connection.recv_into(inbox.bytes.data[inbox.end :])
        except OSError:
            return False
        inbox.end += size
        return size > 0

    def answer(self, result: pb.StepResult) -> None:
        """Sends a result; that nobody takes it any more is seen by who reads."""
        self._send(0, result.SerializeToString())

    def fail(self, code: grpc.StatusCode, message: str) -> None:
        """Ends the call."""
        number: int = code.value[0]
        self._send(number, message.encode())
        self.close()

    def close(self) -> None:
        """Ends both directions: whoever reads finds the end."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, direction: int) -> None:
        try:
            self._connection.shutdown(direction)
        except OSError:
            pass  # the router was first

    def release(self) -> None:
        """Gives the descriptor back, when nobody uses it any more."""
        self._connection.close()

    def _send(self, code: int, payload: bytes) -> None:
        try:
            self._connection.sendall(HEAD.pack(len(payload), code) + payload)
        except OSError:
            self.close()


def _message(inbox: Inbox, frame: tuple[int, int]) -> pb.ToWorker:
    """Of these bytes. Raises BadPlan."""
    begin, end = frame
    try:
        message = pb.ToWorker.FromString(inbox.bytes[begin:end].tobytes())
    except DecodeError as error:
        raise BadPlan(f"message: {error}") from error
    check_message(message)
    return message


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
