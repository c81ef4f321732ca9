"""Request forgery by URLs: a client cannot make the server open a connection or a file. Images are not served, so that
nothing that looks like a place is ever looked up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import wire
from processes import wait_for
from prompts import user

MAX = {"max_new_tokens": 1}


class Bait(threading.Thread):
    """A server that counts who comes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.visitors = 0

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.visitors += 1
            connection.close()

    def others(self) -> int:
        """Who came, beside the one that this sends to see that visitors are counted."""
        before = self.visitors
        with socket.create_connection(self.socket.getsockname()):
            wait_for(lambda: self.visitors > before, "a visitor")
        return self.visitors - 1


@pytest.fixture
def bait() -> Iterator[Bait]:
    bait = Bait()
    bait.start()
    yield bait
    bait.socket.shutdown(socket.SHUT_RDWR)
    bait.socket.close()
    bait.join(10)


def places(bait: Bait) -> list[str]:
    return [
        f"{bait.url}/image.png",
        f"HTTP{bait.url[4:]}/%2e%2e/x",
        f"//{bait.url[7:]}/image.png",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "gopher://127.0.0.1/",
    ]


def bodies(place: str) -> list[tuple[str, dict[str, Any]]]:
    image = {"type": "image_url", "image_url": {"url": place}}
    more = [
        image,
        {"type": "image_url", "image_url": place},
        {"type": "image", "image": place},
        {"type": "input_audio", "input_audio": {"data": place}},
        {"type": "video_url", "video_url": {"url": place}},
        {"type": "file", "file": {"file_id": place}},
    ]
    chats = [{"messages": [{"role": "user", "content": [part]}], "max_tokens": 1} for part in more]
    reference = {"type": "object", "properties": {"a": {"$ref": place}}, "$schema": place}
    tool = {"type": "function", "function": {"name": "f", "parameters": reference, "url": place}}
    chat = {"messages": user(f"![]({place})"), "max_tokens": 1}
    return [
        *[
            (path, body)
            for body in chats
            for path in ("/v1/chat/completions", "/chat_tokenize", "/invocations")
        ],
        ("/vertex", {"instances": chats[:1]}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "model": place}),
        ("/v1/chat/completions", {**chat, "adapter_id": place}),
        ("/v1/chat/completions", {**chat, "tools": [tool]}),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {"chat_template": place}}),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {"documents": [{"url": place}]}}),
        (
            "/v1/chat/completions",
            {**chat, "response_format": {"type": "json_schema", "json_schema": {"schema": reference}}},
        ),
        ("/generate", {"inputs": f"![]({place}) describe", "parameters": MAX}),
        ("/generate", {"inputs": "x", "parameters": {**MAX, "adapter_id": place}}),
        (
            "/generate",
            {"inputs": "x", "parameters": {**MAX, "grammar": {"type": "json", "value": reference}}},
        ),
        ("/tokenize", {"inputs": f"![]({place})"}),
        ("/v1/completions", {"prompt": f"<img src='{place}'>", "max_tokens": 1, "model": place}),
    ]


def test_no_url_of_a_client_is_fetched(address: wire.Address, bait: Bait) -> None:
    """URLs of every kind as images, audio, files, adapters, models, templates, schema references and in Markdown: the
    server they lead to is never asked, and nothing of a local file comes back."""
    answered = 0
    for place in places(bait):
        for path, body in bodies(place):
            reply = wire.post(address, path, body)
            assert reply.status in (200, 422), (path, reply)
            assert b"root:" not in reply.body
            answered += reply.status == 200
    assert answered > 0 and bait.others() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "169.254.169.254"},
        {"X-Forwarded-Host": "169.254.169.254", "X-Original-URL": "/metrics"},
        {"Referer": "http://127.0.0.1:1/", "Origin": "null"},
        {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=http://127.0.0.1:1/"},
    ],
    ids=["host", "forwarded", "referer", "trace"],
)
def test_no_header_sends_the_server_anywhere(address: wire.Address, headers: dict[str, str]) -> None:
    """Heads that proxies and clouds act on: answered as without them."""
    assert wire.get(address, "/health", headers=headers).status == 200
    body = {"inputs": "x", "parameters": MAX}
    assert wire.post(address, "/generate", body, headers=headers).status == 200


def test_a_request_for_another_server_is_not_forwarded(address: wire.Address, bait: Bait) -> None:
    """A request line with a whole URL, as to a proxy, and CONNECT: nothing is opened."""
    host = bait.url[7:]
    for head in (
        f"GET {bait.url}/x HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"GET http://user:pass@{host}/health HTTP/1.1\r\nHost: {host}\r\n\r\n",
    ):
        with wire.exchange(address, head.encode()) as connection:
            connection.settimeout(10)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 ")
    assert bait.others() == 0
