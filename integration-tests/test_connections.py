"""Clients that mean harm or are broken, on raw sockets: each gets a clear error or a closed connection in time,
and a stream that runs beside them is complete and goes on at its pace.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import Launched
from load import ask, complete, generate
from processes import wait_for

HEADER_TIMEOUT, IDLE_TIMEOUT, BODY_TIMEOUT = 2, 3, 2
# A stream beside an attack may pause so long; the machine may be busy with other things.
PAUSE = 30.0
BESIDE = complete("What is the capital of France?", 150)
KEY = "key-of-this-file"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Short timeouts, and a template that asks for as much work as the client says."""
    folder = tmp_path_factory.mktemp("strict")
    config = folder / "tokenizer_config.json"
    template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% if n is defined %}{% for i in range(n) %}{% for j in range(n) %}{{ 'x' * w }}{% endfor %}{% endfor %}{% endif %}"
    )
    config.write_text(json.dumps({"chat_template": template}))
    with Launched(
        folder / "run",
        *("--header-timeout", str(HEADER_TIMEOUT), "--idle-timeout", str(IDLE_TIMEOUT)),
        *("--body-timeout", str(BODY_TIMEOUT), "--max-connections", "1500"),
        *("--max-connections-per-address", "1500"),
        *("--tokenizer-config-path", str(config)),
        null_worker=True,
    ) as launched:
        yield launched.wait_ready()


class Beside:
    """Streams, one after the other, that nothing may disturb while tests do their worst."""

    def __init__(self, address: wire.Address) -> None:
        self.address = address
        self.undisturbed = ask(address, BESIDE)
        self.seen = self.answered = 0  # events of all streams, and streams that ended
        self.longest = 0.0
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.last = time.monotonic()
                answer = ask(self.address, BESIDE, self.event)
                assert answer.same_as(self.undisturbed), f"{answer} instead of {self.undisturbed}"
                self.answered += 1
        except BaseException as error:  # noqa: BLE001 - raised again in a test's own thread
            self.error = error

    def event(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last)
        self.last = now
        self.seen += 1

    def assert_goes_on(self) -> None:
        before = self.seen
        wait_for(lambda: self.error or self.seen > before, "the stream beside to go on", PAUSE)
        if self.error:
            raise self.error
        assert self.longest < PAUSE, f"a stream beside paused for {self.longest:.1f} s"


@pytest.fixture(scope="module")
def streams(strict: Launched) -> Iterator[Beside]:
    streams = Beside(strict.address)
    yield streams
    streams.stopping.set()
    streams.thread.join(wire.TIMEOUT)
    assert not streams.thread.is_alive() and streams.error is None, streams.error
    assert streams.answered > 0, "none was seen to its end"


@pytest.fixture
def beside(streams: Beside) -> Iterator[None]:
    """Streams run during the test, and go on after it as if nothing had been."""
    streams.longest = 0.0
    yield
    streams.assert_goes_on()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("guarded"), "--api-key", KEY, null_worker=True) as launched:
        yield launched.wait_ready()


def until_closed(connection: socket.socket, seconds: float) -> bytes:
    """What still comes before the server closes."""
    connection.settimeout(seconds)
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    except TimeoutError:
        raise AssertionError(f"still open after {seconds} s; got {received[:200]!r}") from None
    return received


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def is_a_clear_error(reply: wire.Reply, *mentions: str) -> None:
    assert 400 <= reply.status < 500, reply
    error = reply.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    for mention in mentions:
        assert mention in message, message


# Heads.


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(500)) + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["one huge header", "500 headers", "a huge path"],
)
@pytest.mark.usefixtures("beside")
def test_a_head_that_is_too_large_is_refused(strict: Launched, head: bytes) -> None:
    with socket.create_connection((strict.address.host, strict.address.port)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head)
        answer = until_closed(connection, 10)
    # A reset may overtake the answer while the head is still being sent.
    assert not answer or status_of(answer) in (400, 414, 431), answer[:200]


@pytest.mark.parametrize("head", [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"hello\r\n\r\n"])
@pytest.mark.usefixtures("beside")
def test_what_is_no_http_is_closed(strict: Launched, head: bytes) -> None:
    with wire.exchange(strict.address, head) as connection:
        answer = until_closed(connection, HEADER_TIMEOUT + 10)
    assert not answer or status_of(answer) in (400, 505), answer[:200]


@pytest.mark.usefixtures("beside")
def test_a_head_that_drips_is_given_up(strict: Launched) -> None:
    with wire.exchange(strict.address, b"POST /generate HTTP/1.1\r\n") as connection:
        began = time.monotonic()
        connection.settimeout(0.2)
        answer = b"open"
        while answer and time.monotonic() - began < HEADER_TIMEOUT + 20:
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b"X-A: b\r\n")
                    answer = connection.recv(1000)
                except ConnectionError:
                    answer = b""
        took = time.monotonic() - began
    assert not answer and took < HEADER_TIMEOUT + 10, f"open for {took:.1f} s"


@pytest.mark.usefixtures("beside")
def test_idle_connections_are_closed(strict: Launched) -> None:
    with wire.exchange(strict.address, b"") as silent:
        assert until_closed(silent, HEADER_TIMEOUT + 10) == b""
    with wire.exchange(strict.address, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") as kept:
        assert status_of(until_closed(kept, 2 * IDLE_TIMEOUT + 10)) == 200


@pytest.mark.usefixtures("beside")
def test_a_thousand_idle_connections_disturb_nobody(strict: Launched) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(wire.exchange(strict.address, b"GET /health HT"))
        assert ask(strict.address, generate("add 3 and 4", 8)).error is None
    assert wire.get(strict.address, "/health").status == 200


def test_connections_beyond_the_limit_are_told_to_come_back(launch_null: Launch) -> None:
    few = launch_null("--max-connections", "8").wait_ready()
    with contextlib.ExitStack() as stack:
        # At work, all of them: one that waits would go for another. One may be the last probe's, which is about to end.
        half = wire.raw_post("/generate", b"{", length=100)
        held = [stack.enter_context(wire.exchange(few.address, half)) for _ in range(12)]
        answer = until_closed(held[-1], 10)
    assert status_of(answer) == 503 and b"retry-after" in answer and b"x-request-id" in answer
    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert error == {"error": "as many connections are open as are allowed", "error_type": None}
    # Probes had room all the time.
    wait_for(lambda: wire.get(few.address, "/metrics").status == 200, "room again")
    assert few.metrics().value("penstock_http_requests", route="/generate", status="503") >= 1


def test_a_connection_too_many_is_counted(launch_null: Launch) -> None:
    few = launch_null("--max-connections-per-address", "4").wait_ready()
    with contextlib.ExitStack() as stack:
        half = wire.raw_post("/generate", b"{", length=100)
        held = [stack.enter_context(wire.exchange(few.address, half)) for _ in range(8)]
        assert status_of(until_closed(held[-1], 10)) == 503
    wait_for(lambda: wire.get(few.address, "/metrics").status == 200, "room again")
    now = few.metrics()
    assert now.value("penstock_refused_connections", limit="address") >= 4
    assert now.value("penstock_refused_connections", limit="total") == 0
    assert now.value("penstock_http_requests", route="unknown", status="503") >= 4


def test_what_is_refused_before_its_route_is_counted_and_logged_and_has_an_id(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    doubtful = (
        b"POST /generate HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\nX-Request-Id: doubtful-1\r\n"
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    )
    with wire.exchange(launched.address, doubtful) as connection:
        answer = until_closed(connection, 10)
    assert status_of(answer) == 400
    head = answer.split(b"\r\n\r\n")[0].lower()
    assert b"x-request-id: doubtful-1" in head and b"access-control-allow-origin: *" in head, head
    now = launched.metrics()
    assert now.value("penstock_errors", type="malformed_head") == 1
    assert now.value("penstock_http_requests", route="/generate", status="400") == 1
    (line,) = wait_for(
        lambda: [line for line in launched.stdout().splitlines() if "doubtful-1" in line],
        "its line of the log",
    )
    assert " refused " in line and "transfer-encoding" in line, line


# Bodies.


@pytest.mark.usefixtures("beside")
def test_a_body_that_drips_is_a_408(strict: Launched) -> None:
    head = wire.raw_post("/generate", b"", length=100)
    with wire.exchange(strict.address, head) as connection:
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.2):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        connection.settimeout(BODY_TIMEOUT + 20)
        answer = connection.recv(65536)
        stop.set()
        thread.join(5)
    assert status_of(answer) == 408 and b"--body-timeout" in answer


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("path", "key", "status"), [("/nowhere", KEY, 404), ("/metrics", KEY, 405), ("/generate", "", 401)]
)
def test_a_body_that_comes_behind_its_refusal_closes_nothing(
    guarded: Launched, path: str, key: str, status: int
) -> None:
    """As most clients send it: the head first. Nothing may be lost on a connection that goes on."""
    body = b'{"inputs": "x"}'

    def connected() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(guarded.address.host, guarded.address.port, timeout=20)
        connection.connect()
        connection.auto_open = 0
        return connection

    connection, answers = connected(), 0
    while answers < 3:
        connection.putrequest("POST", path)
        for name, value in (("content-type", "application/json"), ("content-length", str(len(body)))):
            connection.putheader(name, value)
        connection.putheader("authorization", f"Bearer {key}")
        connection.endheaders()
        began = time.monotonic()
        time.sleep(0.1)
        if time.monotonic() - began > 1:  # The test stood still: a body is not waited for that long.
            connection.close()
            connection = connected()
            continue
        connection.send(body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
        answers += 1
    connection.close()


def test_half_closed_connections_end(strict: Launched) -> None:
    """A client that has closed its half counts as gone, as one that is killed looks the same."""
    body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    for raw in (wire.raw_post("/v1/completions", body), wire.raw_post("/v1/completions", body, length=5000)):
        with wire.exchange(strict.address, raw) as connection:
            connection.shutdown(socket.SHUT_WR)
            until_closed(connection, 30)
    wait_for(lambda: strict.metrics().value("tgi_batch_current_size") <= 1, "only the stream beside to run")


def test_a_client_that_does_not_read_is_given_up(launch_null: Launch) -> None:
    impatient = launch_null("--write-timeout", "1", "--max-best-of", "64").wait_ready()
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 64, "logprobs": 20}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((impatient.address.host, impatient.address.port))
        connection.sendall(wire.raw_post("/v1/completions", body))

        def is_dropped() -> bool:
            return impatient.metrics().value("tgi_request_failure", err="dropped") == 1

        wait_for(is_dropped, "the request to be dropped", 90)
    assert wire.get(impatient.address, "/health").status == 200


# Contents.

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "path, body, mentions",
    [
        ("/generate", {"inputs": "x", "parameters": {"stop": ["a"] * 100_000}}, ["`stop`", "100000"]),
        ("/v1/chat/completions", {**CHAT, "stop": ["a"] * 100_000}, ["`stop`", "100000"]),
        ("/v1/chat/completions", {**CHAT, "n": 1_000_000_000}, ["`n`", "1000000000"]),
        ("/v1/completions", {"prompt": "x", "n": 1_000_000_000}, ["`n`", "1000000000"]),
        ("/v1/completions", {"prompt": ["x"] * 100_000}, ["`prompt`", "100000"]),
        ("/generate", {"inputs": "x", "parameters": {"best_of": 1_000_000_000}}, ["`best_of`"]),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ""}] * 5000},
            ["`messages`", "4096", "5000"],
        ),
        ("/v1/chat/completions", f'{{"messages": {nested(100_000)}}}', ["`messages`", "nested", "127"]),
        (
            "/v1/chat/completions",
            f'{{"messages": [{{"role": "user", "content": "x"}}], "chat_template_kwargs": {{"a": {nested(5000)}}}}}',
            ["`chat_template_kwargs`", "nested"],
        ),
        ("/generate", '{"inputs": ' * 50_000, []),
        ("/v1/chat/completions", {**CHAT, "logit_bias": {str(n): 1 for n in range(5000)}}, ["`logit_bias`"]),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": [1] * 100_000}, ["`stop_token_ids`"]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
@pytest.mark.usefixtures("beside")
def test_what_asks_for_too_much_is_a_clear_error(
    strict: Launched, path: str, body: object, mentions: list[str]
) -> None:
    is_a_clear_error(wire.post(strict.address, path, body, timeout=30), *mentions)


@pytest.mark.parametrize(
    "variables",
    [
        {"n": 1_000_000, "w": 0},
        {"n": 100_000, "w": 100_000},
        {"n": 1000, "w": 1_000_000_000},
        {"n": 1, "w": 1 << 62},
        {"n": 10**30, "w": 1},
        {"n": -1, "w": -5},
    ],
    ids=str,
)
@pytest.mark.usefixtures("beside")
def test_a_template_bomb_is_stopped(strict: Launched, variables: dict[str, Any]) -> None:
    body = {**CHAT, "chat_template_kwargs": variables}
    reply = wire.post(strict.address, "/v1/chat/completions", body, timeout=60)
    if variables["n"] > 0:
        is_a_clear_error(reply)
    else:
        assert reply.status == 200


# HTTP/2, frame by frame (RFC 9113).

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream: int, more: bytes = b"") -> bytes:
    """GET /livez, from HPACK's static table, the rest as literals."""
    block = b"\x82\x86\x04\x06/livez\x01\x04test" + more
    return frame(1, 0x5, stream, block)


SETTINGS = frame(4, 0, 0)
RESET = (8).to_bytes(4, "big")
PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 1, 11  # RFC 9113, section 7
RESETS = 32  # docs/limits.md


def two(strict: Launched, frames: bytes) -> socket.socket:
    return wire.exchange(strict.address, PREFACE + SETTINGS + frames)


def frames_of(received: bytes) -> list[tuple[int, bytes]]:
    """The kinds of the frames that came, and what is in them."""
    frames = []
    while len(received) >= 9:
        end = 9 + int.from_bytes(received[:3], "big")
        frames.append((received[3], received[9:end]))
        received = received[end:]
    return frames


def kinds_of(received: bytes) -> list[int]:
    return [kind for kind, _ in frames_of(received)]


def goodbye(received: bytes) -> tuple[int, int]:
    """Of the last GOAWAY: the last stream that was looked at, and the error."""
    *_, payload = [payload for kind, payload in frames_of(received) if kind == 7]
    return int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")


def answering_pings(connection: socket.socket, seconds: float) -> bytes:
    """What still comes before the server closes, when it is told that the client is there."""
    connection.settimeout(seconds)
    received, at = b"", 0
    while part := connection.recv(65536):
        received += part
        while len(received) >= at + 9 and len(received) >= (
            end := at + 9 + int.from_bytes(received[at : at + 3], "big")
        ):
            kind, flags = received[at + 3], received[at + 4]
            if kind == 6 and not flags & 1:
                connection.sendall(frame(6, 1, 0, received[at + 9 : end]))
            at = end
    return received


def rapid_resets() -> bytes:
    return b"".join(headers(n) + frame(3, 0, n, RESET) for n in range(1, 20_001, 2))


def header_bomb() -> bytes:
    literal = b"\x00\x01a" + b"\x7f\x81\xfe\x03" + b"b" * 65408
    return b"".join(headers(n, literal[:16000]) for n in range(1, 9, 2))


def continuation_flood() -> bytes:
    piece = b"\x00\x01a\x7d" + b"b" * 125
    return frame(1, 0x1, 1, b"\x82\x86\x84") + b"".join(frame(9, 0, 1, piece * 100) for _ in range(200))


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (rapid_resets, ENHANCE_YOUR_CALM),
        (header_bomb, PROTOCOL_ERROR),
        (continuation_flood, ENHANCE_YOUR_CALM),
    ],
)
@pytest.mark.usefixtures("beside")
def test_floods_of_http_2_frames_end_the_connection(
    strict: Launched, attack: Callable[[], bytes], error: int
) -> None:
    """Not its silence afterwards: that has no error."""
    with socket.create_connection((strict.address.host, strict.address.port), timeout=30) as connection:
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(PREFACE + SETTINGS + attack())
        received = until_closed(connection, 2 * IDLE_TIMEOUT + 20)
    last_stream, said = goodbye(received)
    assert said == error
    assert attack is not rapid_resets or last_stream > 2 * RESETS, (
        "as many as are allowed, one in two numbers"
    )


@pytest.mark.usefixtures("beside")
def test_a_flood_of_settings_is_read_and_costs_nobody(strict: Launched) -> None:
    with two(strict, SETTINGS * 20_000) as connection:
        until_closed(connection, HEADER_TIMEOUT + 10)


@pytest.mark.usefixtures("beside")
def test_idle_connections_of_http_2_are_closed(strict: Launched) -> None:
    with two(strict, b"") as silent:
        until_closed(silent, HEADER_TIMEOUT + 10)
    with two(strict, headers(1)) as kept, two(strict, headers(1)) as deaf:
        # A PING, to which a client answers, comes before the connection is closed; it ends on the answer.
        kinds = kinds_of(answering_pings(kept, 2 * IDLE_TIMEOUT + 20))
        # One that does not answer is not waited for.
        kinds_of_deaf = kinds_of(until_closed(deaf, 2 * IDLE_TIMEOUT + 20))
    for seen in (kinds, kinds_of_deaf):
        assert 1 in seen and 7 in seen, "it answered, and said goodbye"


@pytest.mark.alone
def test_memory_is_bounded_under_large_requests(strict: Launched) -> None:
    def rss() -> int:
        status = Path(f"/proc/{strict.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    body = {"inputs": "x " * 100_000}
    for _ in range(3):
        is_a_clear_error(wire.post(strict.address, "/generate", body), "`inputs`")
    before = rss()
    for _ in range(10):
        is_a_clear_error(wire.post(strict.address, "/generate", body), "`inputs`")
    assert rss() - before < 100_000, "kilobytes"
