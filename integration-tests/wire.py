"""A plain HTTP/1.1 client with server-sent events: no retries, no pooling, nothing hidden.

The tests that are about one client library use that library. Everything else uses this, because a test of
a disconnect or of a lost token must see each byte as it came.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

TIMEOUT = 120.0


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def encode(body: object) -> bytes | None:
    """Bytes and strings go out as they are (the malformed ones of the tests), all else as JSON."""
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body).encode()


def call(
    address: Address,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> Reply:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        sent = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, body=encode(body), headers={**sent, **(headers or {})})
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, names, answer.read())
    finally:
        connection.close()


def get(address: Address, path: str, **options: Any) -> Reply:
    return call(address, "GET", path, **options)


def post(address: Address, path: str, body: object, **options: Any) -> Reply:
    return call(address, "POST", path, body, **options)


class Events:
    """An open stream of server-sent events, of a POST where there is a body. Iterating gives the data of each event, `[DONE]` included."""

    def __init__(
        self,
        address: Address,
        path: str,
        body: object = None,
        timeout: float = TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        sent = {} if body is None else {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, body=encode(body), headers={**sent, **(headers or {})})
        # Kept apart: http.client forgets the socket of an answer that ends with its connection.
        self._socket = self._connection.sock
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.headers = {name.lower(): value for name, value in self._answer.getheaders()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        data: list[str] = []
        for raw in self._answer:
            line = raw.decode().rstrip("\n").rstrip("\r")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                yield "\n".join(data)
                data = []
        assert not data, f"the stream ended inside an event: {data}"

    def read(self) -> Reply:
        """The whole body, for an answer that turned out to be no stream."""
        return Reply(self.status, self.headers, self._answer.read())

    def close(self) -> None:
        """Goes away at once, as a killed client does."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The server had closed it already.
        self._answer.close()
        self._connection.close()


def exchange(address: Address, raw: bytes) -> socket.socket:
    """Sends raw bytes on a connection of its own and leaves it open, nothing read."""
    connection = socket.create_connection((address.host, address.port), timeout=TIMEOUT)
    connection.sendall(raw)
    return connection


def raw_post(path: str, body: object, length: int | None = None) -> bytes:
    """A POST as bytes; `length` announces another length than the body has."""
    content = encode(body) or b""
    announced = len(content) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    return head.encode() + content
