"""Class: resource exhaustion by slow or many clients.

Tried: answers that are asked for and never taken, over both versions of HTTP; bodies that never end; half heads from one
address and from many; connections that are all at work; all file descriptors held while a worker is killed.
`test_connections.py` has single connections that misbehave.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import http2
import wire
from conftest import Launch
from launched import Launched, forget_the_peak, memory
from probe import probed
from processes import wait_for

MB = 1 << 20

# Many choices with many alternatives: more than the system's buffers of a socket hold.
LARGE = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "n": 16, "logprobs": 20}
SMALL = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}


def connect(launched: Launched, source: str = "127.0.0.1") -> socket.socket:
    target = (launched.address.host, launched.address.port)
    return socket.create_connection(target, timeout=20, source_address=(source, 0))


def half_head(launched: Launched, source: str = "127.0.0.1") -> socket.socket:
    connection = connect(launched, source)
    connection.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\nX-")
    return connection


def half_body(launched: Launched, source: str = "127.0.0.1") -> socket.socket:
    """A request that is under way, and stays so."""
    connection = connect(launched, source)
    connection.sendall(wire.raw_post("/generate", b"{", length=10_000))
    return connection


@contextlib.contextmanager
def dripping(connections: list[socket.socket]) -> Iterator[None]:
    """Their bodies go on, a byte at a time: one that pauses for long is given up."""
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(3):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(20)


def is_refused(connection: socket.socket) -> bool:
    """Whether it was answered, or closed."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.setblocking(True)
    return True


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.setblocking(True)


def first_line(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    with contextlib.suppress(ConnectionError):
        return connection.recv(4096).split(b"\r\n")[0]
    return b""


def is_served(launched: Launched, path: str, source: str) -> bool:
    """False also where the connection is closed: a server that stood still takes all that came meanwhile at once, and until some of them are
    a moment old it sends none away for another.
    """
    with contextlib.suppress(OSError, IndexError):
        return status_from(launched, path, source) == 200
    return False


def status_from(launched: Launched, path: str, source: str) -> int:
    with connect(launched, source) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return int(first_line(connection).split()[1])


# Answers that nobody takes.


def test_an_answer_that_is_not_taken_is_given_up_and_costs_no_other(launch_null: Launch) -> None:
    """A window of 0 keeps an answer back for ever, while pings keep its connection alive. The stream is reset, and the
    others of its connection go on.
    """
    launched = launch_null("--write-timeout", "2").wait_ready()
    with http2.Connection(launched.address, window=0) as client:
        stalled = [client.post("/v1/completions", {**SMALL, "stream": stream}) for stream in (True, False)]
        reset: set[int] = set()
        began = time.monotonic()
        while reset != set(stalled):
            one = client.read()
            if one.kind == http2.RST_STREAM:
                reset.add(one.stream)
        assert time.monotonic() - began < 60
        taken = client.post("/v1/completions", SMALL)
        client.open_window(taken, 1 << 20)
        status, body = client.answer(taken)
        assert status == 200 and body.endswith(b"}")


def test_one_byte_now_and_then_keeps_no_answer(launch_null: Launch) -> None:
    launched = launch_null("--write-timeout", "3").wait_ready()
    with http2.Connection(launched.address, window=1) as client:
        stream = client.post("/v1/completions", {**SMALL, "max_tokens": 300, "stream": True})
        began = time.monotonic()
        while not (one := client.read()).is_last_of(stream):
            if one.kind == http2.DATA:
                time.sleep(0.05)
                client.open_window(stream, 1)
            assert time.monotonic() - began < 60
        assert one.kind == http2.RST_STREAM


def test_a_place_is_held_until_the_answer_is_taken(launch_null: Launch) -> None:
    """Answers that are complete and wait for their client count against --max-concurrent-requests, so that their
    number is bounded; they are given up with --write-timeout.
    """
    launched = launch_null("--write-timeout", "8", "--max-concurrent-requests", "2").wait_ready()
    with http2.Connection(launched.address, window=0) as client:
        for _ in range(2):
            client.post("/v1/completions", SMALL)
        wait_for(lambda: launched.metrics().value("tgi_request_success") == 2, "both to be generated")
        refused = wire.post(launched.address, "/v1/completions", SMALL)
        assert refused.status == 429, refused
        wait_for(
            lambda: wire.post(launched.address, "/v1/completions", SMALL).status == 200, "a place again", 60
        )


def test_a_place_is_held_over_http_1_too(launch_null: Launch) -> None:
    """What was handed to the kernel counts as taken, and the kernel would take megabytes."""
    launched = launch_null("--max-concurrent-requests", "1").wait_ready()
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((launched.address.host, launched.address.port))
    body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 5}
    deaf.sendall(wire.raw_post("/v1/completions", body))
    with deaf:
        computed = "penstock_computed_decode_tokens"
        wait_for(lambda: launched.metrics().value(computed) >= 990, "it to be generated", 60)
        # Longer than the kernel takes to have all that it takes.
        until = time.monotonic() + 1
        while time.monotonic() < until:
            refused = wire.post(launched.address, "/v1/completions", SMALL)
            assert refused.status == 429, refused
    wait_for(lambda: wire.post(launched.address, "/v1/completions", SMALL).status == 200, "a place again", 60)


def test_sigterm_does_not_wait_for_clients_that_do_not_take_their_answers(launch_null: Launch) -> None:
    launched = launch_null("--max-best-of", "16", "--shutdown-timeout", "100").wait_ready()
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((launched.address.host, launched.address.port))
    deaf.sendall(wire.raw_post("/v1/completions", {**LARGE, "stream": True}))
    with deaf, http2.Connection(launched.address, window=0) as client:
        client.post("/v1/completions", SMALL)
        wait_for(lambda: launched.metrics().value("tgi_request_success") >= 1, "an answer that waits", 60)
        launched.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert launched.wait_ended(95) == 0
    assert time.monotonic() - began < 70, "less than --shutdown-timeout, on a busy machine"
    assert "did not finish in time" not in launched.log()


# Requests that have no place.


def test_bodies_that_never_end_take_bounded_memory_and_leave_others_room(launch_null: Launch) -> None:
    """256 bodies of one address that lack their ends: 507 MB, and as much more for each further 256."""
    launched = launch_null().wait_ready()
    before = forget_the_peak(launched)
    part = wire.raw_post("/generate", b" " * 1_900_000, length=2_000_000)
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(256):
            held.append(stack.enter_context(connect(launched, "127.0.0.2")))
            with contextlib.suppress(ConnectionError):
                held[-1].sendall(part)
        wait_for(lambda: sum(map(is_refused, held)) >= 100, "those beyond the limit to be refused", 60)
        grown = memory(launched, "VmHWM") - before
        print(f"256 bodies without an end: {grown / MB:.0f} MB at the peak")
        assert grown < 350 * MB
        refused = next(connection for connection in held if is_refused(connection))
        assert first_line(refused).split()[1] == b"429"
        for inputs in ("x", "x " * 20_000):
            body = {"inputs": inputs, "parameters": {"max_new_tokens": 2, "truncate": 10}}
            reply = wire.post(launched.address, "/generate", body)
            assert reply.status == 200, reply
        assert status_from(launched, "/health", "127.0.0.2") == 200

    def has_room() -> bool:
        with connect(launched, "127.0.0.2") as connection:
            connection.sendall(wire.raw_post("/generate", {"inputs": "x " * 20_000}))
            return first_line(connection).split()[1] == b"422"

    wait_for(has_room, "room for a long body of the same address")


def test_answers_that_need_no_key_and_are_not_taken_hold_little(launch_null: Launch) -> None:
    """2,048 of them, each held whole: 232 MB, made one after the other on the threads that write tokens."""
    launched = launch_null("--api-key", "secret").wait_ready()
    sizes = {
        path: len(wire.get(launched.address, path).body) for path in ("/metrics", "/api-doc/openapi.json")
    }

    def ask_for_all(_: int) -> int:
        """By how much the server grew."""
        before = forget_the_peak(launched)
        with contextlib.ExitStack() as stack:
            for path in list(sizes) * 4:
                client = stack.enter_context(http2.Connection(launched.address, window=0))
                for _ in range(256):
                    client.get(path)
                statuses: list[int] = []
                while len(statuses) < 256:
                    if (one := client.read()).kind == http2.HEADERS:
                        statuses.append(one.status)
                assert set(statuses) == {200}
            return memory(launched, "VmHWM") - before

    grown, probe = probed(launched.address, 1.5, ask_for_all)
    print(f"2,048 answers of {sizes} bytes that nobody takes: {grown / MB:.0f} MB")
    assert grown < 100 * MB
    print(f"/livez meanwhile: {probe.slowest:.2f} s at most")
    assert probe.slowest < 1.5


def test_a_thousand_streams_of_one_client_are_served(launch_null: Launch) -> None:
    """What is bounded for the sake of others is no limit to a client with this many places."""
    launched = launch_null("--max-concurrent-requests", "1100").wait_ready()
    body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "stream": True}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(http2.Connection(launched.address)) for _ in range(4)]
        streams = [(client, {client.post("/v1/completions", body) for _ in range(250)}) for client in clients]
        for client, left in streams:
            while left:
                one = client.read()
                assert one.kind != http2.HEADERS or one.status == 200
                if one.kind == http2.DATA and one.payload:
                    client.open_window(0, len(one.payload))
                left -= {stream for stream in left if one.is_last_of(stream)}


# Connections without end.


@pytest.fixture(scope="module")
def few_connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    flags = ("--max-connections", "40", "--max-connections-per-address", "20", "--body-timeout", "300")
    with Launched(
        tmp_path_factory.mktemp("connections"),
        *flags,
        "--trusted-proxy",
        "127.0.9.0/24",
        "--header-timeout",
        "300",
        null_worker=True,
    ) as launched:
        yield launched.wait_ready()


def test_half_heads_of_one_address_cost_it_alone(few_connections: Launched) -> None:
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(half_head(few_connections, "127.0.0.3"))
        time.sleep(0.2)  # a connection is not sent away before it is a moment old
        held = []
        for _ in range(60):
            held.append(stack.enter_context(half_head(few_connections, "127.0.0.2")))
            time.sleep(0.02)
        assert status_from(few_connections, "/info", "127.0.0.1") == 200
        wait_for(lambda: sum(map(is_open, held)) <= 20, "those beyond the limit to be closed")
        assert is_open(other)
        assert status_from(few_connections, "/info", "127.0.0.2") in (200, 503)


def test_half_heads_of_many_addresses_give_way_to_who_asks_the_oldest_first(
    few_connections: Launched,
) -> None:
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(120):
            held.append(stack.enter_context(half_head(few_connections, f"127.0.1.{number % 12 + 1}")))
            time.sleep(0.02)
        wait_for(lambda: is_served(few_connections, "/info", "127.0.0.1"), "all of them to be taken")
        for path in ("/health", "/livez", "/info") * 5:
            assert status_from(few_connections, path, "127.0.0.1") == 200
        alive = [is_open(connection) for connection in held]
        assert not any(alive[:40]), "the oldest are gone"
        assert any(alive[-20:]), "the newest are not"


def test_probes_are_answered_when_every_connection_is_at_work(few_connections: Launched) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(40):
            stack.enter_context(half_body(few_connections, f"127.0.2.{number % 4 + 1}"))
        wait_for(
            lambda: status_from(few_connections, "/info", "127.0.0.1") == 503, "every connection to be taken"
        )
        for path in ("/health", "/livez", "/readyz"):
            assert status_from(few_connections, path, "127.0.0.1") == 200
        # Half heads in the reserve, too.
        late = []
        for number in range(40):
            late.append(stack.enter_context(half_head(few_connections, f"127.0.3.{number % 4 + 1}")))
            time.sleep(0.02)
        time.sleep(0.2)
        wait_for(lambda: is_served(few_connections, "/livez", "127.0.0.1"), "a probe to be answered")
    wait_for(lambda: status_from(few_connections, "/info", "127.0.0.1") == 200, "room again")


def test_a_client_at_its_limit_is_told_so_and_a_trusted_proxy_has_none(few_connections: Launched) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(half_body(few_connections, "127.0.4.1"))

        def refused() -> bool:
            with connect(few_connections, "127.0.4.1") as connection:
                connection.settimeout(20)
                try:
                    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    answer = b"".join(iter(lambda: connection.recv(65536), b""))
                except ConnectionError:
                    return True
            return b" 503 " in answer and b"connections of this address" in answer

        wait_for(refused, "the client's limit")
        assert status_from(few_connections, "/info", "127.0.4.2") == 200

    def has_none() -> bool:
        """False while the server has not read yet that those before were closed: 40 is the limit of all."""
        with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError, IndexError):
            proxied = [stack.enter_context(half_body(few_connections, "127.0.9.7")) for _ in range(30)]
            return status_from(few_connections, "/info", "127.0.9.7") == 200 and all(map(is_open, proxied))
        return False

    wait_for(has_none, "more connections of a trusted proxy than an address may have")


# File descriptors.

LIMITED = ("bash", "-c", 'ulimit -n "$0" && exec "$@"')


def descriptors(launched: Launched) -> int:
    return len(list(Path(f"/proc/{launched.process.pid}/fd").iterdir()))


def restarts(launched: Launched) -> int:
    """Over a connection of an address that holds no other."""
    with connect(launched, "127.0.5.1") as connection:
        connection.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b'"worker_restarts":')[1].split(b",")[0]) if b"worker_restarts" in answer else -1


def recoveries(launched: Launched) -> int:
    """As its log tells them, for as long as nobody else is answered."""
    return launched.log().count("recovered: the workers are back")


def gone_or_recovered(launched: Launched, losses: int) -> bool:
    return launched.process.poll() is not None or recoveries(launched) == losses


@pytest.mark.parametrize("limit", [72, 100])
def test_a_lost_worker_is_replaced_while_clients_hold_every_connection(launch: Launch, limit: int) -> None:
    """With connections up to `ulimit -n`, the launcher could not start another worker, and gave up."""
    launched = launch("--body-timeout", "600", prefix=(*LIMITED, str(limit))).wait_ready()
    assert "no more open files" in launched.log()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(half_body(launched, f"127.0.6.{n % 200 + 1}")) for n in range(2 * limit)]
        stack.enter_context(dripping(held))
        wait_for(lambda: sum(map(is_refused, held)) >= limit, "the limit to be reached")
        assert descriptors(launched) < limit
        for losses in (1, 2):
            worker = launched.worker()
            worker.signal(signal.SIGKILL)
            wait_for(partial(gone_or_recovered, launched, losses), "another worker", 120)
            assert launched.process.poll() is None, launched.log()[-3000:]
            wait_for(lambda: is_served(launched, "/health", "127.0.5.1"), "probes to be told so")
            assert launched.worker().pid != worker.pid
    wait_for(lambda: restarts(launched) == 2, "room, and both restarts")


def test_descriptors_that_run_out_are_waited_for(launch_null: Launch) -> None:
    """The limit falls below what is open, so that nothing can be opened any more, while the worker is lost."""
    launched = launch_null().wait_ready()
    pid = launched.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
    launched.worker().signal(signal.SIGKILL)
    wait_for(
        lambda: launched.process.poll() is not None or launched.log().count("trying again") >= 3, "tries", 60
    )
    assert launched.process.poll() is None, launched.log()[-3000:]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    wait_for(lambda: is_served(launched, "/health", "127.0.5.1"), "the worker to be replaced", 120)
    assert restarts(launched) == 1


def test_too_few_descriptors_are_an_error_at_start(launch_null: Launch) -> None:
    launched = launch_null(prefix=(*LIMITED, "48"))
    assert launched.wait_ended(30) == 1
    assert "48 open files" in launched.stderr(), launched.stderr()
