"""A proxy that writes down what passes between a client under test and the server, while a test that is marked
`golden` runs. It answers what the server answers, as it comes.

`POST /-/record` with a test's name begins, `POST /-/stop` ends.
"""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import golden
import wire

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}


class Recorder:
    """Serves on a free port until the block is left."""

    def __init__(self, upstream: wire.Address) -> None:
        self.upstream = upstream
        self._changed = threading.Condition()
        self._in_flight = 0
        self._test: str | None = None
        self._taken: dict[str, list[dict[str, Any]]] = {}
        recorder = self

        class Handler(Passing):
            to = recorder

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = wire.Address("127.0.0.1", self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def name(self, test: str | None) -> None:
        """What comes from now on belongs to this test."""
        with self._changed:
            self._test = test

    def begin(self) -> str | None:
        with self._changed:
            self._in_flight += 1
            return self._test

    def end(self, test: str | None, exchange: dict[str, Any] | None) -> None:
        with self._changed:
            self._in_flight -= 1
            if test is not None and exchange is not None:
                self._taken.setdefault(test, []).append(exchange)
            self._changed.notify_all()

    def take(self) -> dict[str, list[dict[str, Any]]]:
        """What was recorded since the last call, by test. Requests that run side by side come in any order."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._in_flight == 0, wire.TIMEOUT), (
                "an answer does not end"
            )
            taken, self._taken, self._test = self._taken, {}, None
        return {
            test: sorted(requests, key=lambda one: (one["method"], one["path"], json.dumps(one["body"])))
            for test, requests in sorted(taken.items())
        }


class Passing(BaseHTTPRequestHandler):
    to: Recorder
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._pass(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path in ("/-/record", "/-/stop"):
            self.to.name(body.decode() if self.path == "/-/record" else None)
            self.send_response_only(204)
            self.end_headers()
        else:
            self._pass(body)

    def _pass(self, body: bytes) -> None:
        test = self.to.begin()
        exchange = None
        try:
            exchange = self._forward(body)
        finally:
            self.to.end(test, exchange)

    def _forward(self, body: bytes) -> dict[str, Any]:
        sent = {name.lower(): value for name, value in self.headers.items()}
        passed = {name: value for name, value in sent.items() if name not in HOP_BY_HOP}
        upstream = self.to.upstream
        connection = http.client.HTTPConnection(upstream.host, upstream.port, timeout=wire.TIMEOUT)
        try:
            connection.request(self.command, self.path, body=body or None, headers=passed)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            self.send_response_only(answer.status)
            for name, value in headers.items():
                if name not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            whole = b""
            while piece := answer.read1(65536):
                whole += piece
                self._write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self._write(b"0\r\n\r\n")
        finally:
            connection.close()
        request = golden.request(self.command, self.path, sent, body)
        return {**request, "answer": golden.answer(answer.status, headers, whole)}

    def _write(self, piece: bytes) -> None:
        """A client may leave once it has seen the end of a stream, before its last byte."""
        try:
            self.wfile.write(piece)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        pass
