"""An HTTP/2 client of frames written by hand (RFC 9113), in cleartext: what no client library would do, such as never
opening a window, a test does here. Reads no more of an answer's headers than the status.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import wire

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1

DEFAULT_WINDOW = 65_535
LARGEST_FRAME = 16_384

# The statuses of HPACK's static table (RFC 7541, appendix A), from index 8 on.
STATUSES = (200, 204, 206, 304, 400, 404, 500)
# Digits in its Huffman code (appendix B).
DIGITS = {f"{n:05b}": str(n) for n in range(3)} | {f"{22 + n:06b}": str(n) for n in range(3, 10)}


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    def is_last_of(self, stream: int) -> bool:
        """Whether nothing more comes on that stream."""
        ended = self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)
        return self.kind == GOAWAY or (self.stream == stream and (ended or self.kind == RST_STREAM))

    @property
    def status(self) -> int:
        """Of a HEADERS frame."""
        block = self.payload
        while block[0] & 0xE0 == 0x20:  # the size of the dynamic table
            block = block[1:]
        if block[0] & 0x80:
            return STATUSES[(block[0] & 0x7F) - 8]
        value = block[2 : 2 + (block[1] & 0x7F)]
        if not block[1] & 0x80:
            return int(value)
        bits, code, text = "".join(f"{byte:08b}" for byte in value), "", ""
        for bit in bits:
            code += bit
            if code in DIGITS:
                text, code = text + DIGITS[code], ""
        return int(text)


class Connection:
    """One connection. `window` is what the server may send of each answer before `open_window` or `answer` let more
    come. Pings and settings are answered while frames are read.
    """

    def __init__(
        self,
        address: wire.Address,
        window: int = DEFAULT_WINDOW,
        source: str = "",
        timeout: float = wire.TIMEOUT,
    ) -> None:
        self.address = address
        self.socket = socket.create_connection(
            (address.host, address.port), timeout, (source, 0) if source else None
        )
        self._next = 1
        # No dynamic table (1), so that the status of every answer can be read alone; the window (4).
        settings = struct.pack("!HIHI", 1, 0, 4, window)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> int:
        """Sends a request, and gives the number of its stream. A body larger than the server's window is not for
        here.
        """
        content = wire.encode(body) or b""
        stream, self._next = self._next, self._next + 2
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
        fields |= {"content-type": "application/json", "content-length": str(len(content))}
        block = b"".join(literal(name, value) for name, value in {**fields, **(headers or {})}.items())
        sent = frame(HEADERS, END_HEADERS, stream, block)
        pieces = [content[at : at + LARGEST_FRAME] for at in range(0, len(content), LARGEST_FRAME)] or [b""]
        for piece in pieces:
            sent += frame(DATA, END_STREAM if piece is pieces[-1] else 0, stream, piece)
        self.socket.sendall(sent)
        return stream

    def get(self, path: str) -> int:
        stream, self._next = self._next, self._next + 2
        fields = {":method": "GET", ":scheme": "http", ":path": path, ":authority": "test"}
        block = b"".join(literal(name, value) for name, value in fields.items())
        self.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
        return stream

    def open_window(self, stream: int, size: int) -> None:
        """Lets so many bytes more come, of one stream or (0) of all together."""
        self.socket.sendall(frame(WINDOW_UPDATE, 0, stream, struct.pack("!I", size)))

    def read(self) -> Frame:
        """The next frame. Raises EOFError when the server has closed, TimeoutError when it is silent."""
        high, low, kind, flags, stream = struct.unpack("!BHBBI", self._exactly(9))
        payload = self._exactly(high << 16 | low)
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        if kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        return Frame(kind, flags, stream, payload)

    def answer(self, stream: int) -> tuple[int, bytes]:
        """Status and body of one answer, read to its end; frames of other streams are passed over."""
        status, body = 0, b""
        while True:
            one = self.read()
            if one.stream == stream and one.kind == HEADERS and not status:
                status = one.status
            if one.stream == stream and one.kind == DATA:
                body += one.payload
                for window in (0, stream) if one.payload else ():
                    self.open_window(window, len(one.payload))
            if one.is_last_of(stream):
                return status, body

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise EOFError("the server closed the connection")
            received += part
        return received


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return struct.pack("!BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field without indexing or compression (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode()
    length = len(raw)
    if length < 127:
        return bytes([length]) + raw
    prefix, length = b"\x7f", length - 127
    while length >= 128:
        prefix, length = prefix + bytes([length % 128 + 128]), length // 128
    return prefix + bytes([length]) + raw
