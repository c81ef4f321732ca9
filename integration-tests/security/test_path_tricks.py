"""Class: authentication by path tricks, and requests that two servers read differently.

Tried: what needs a key, by other spellings of its path over HTTP/2, by headers with which some frameworks route, by
methods; heads with a bare line feed, several hosts, or two ways to say where a body ends, each with a second request
hidden behind it; other names for the server (DNS rebinding). Spellings over HTTP/1.1 are in `test_access.py`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

import http2
import wire
from conftest import Launch
from launched import Launched

KEY = "sesame-Open-2"
SECRETS = (b"model_id", b"max_total_tokens", b"penstock_keys")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("guarded")
    with Launched(folder, "--api-key", KEY, "--guard-metrics", "--kserve", null_worker=True) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("named")
    with Launched(folder, "--allowed-hosts", "localhost,*.models.example", null_worker=True) as launched:
        yield launched.wait_ready()


def raw(launched: Launched, request: bytes) -> bytes:
    """All that comes until the server closes."""
    received = b""
    with socket.create_connection((launched.address.host, launched.address.port), timeout=20) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
    return received


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def get_over_http_2(launched: Launched, method: str, path: str, more: dict[str, str]) -> tuple[int, bytes]:
    """Status 0: the stream was reset."""
    with http2.Connection(launched.address) as client:
        fields = {":method": method, ":scheme": "http", ":authority": "x", ":path": path, **more}
        block = b"".join(http2.literal(name, value) for name, value in fields.items())
        client.socket.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, block))
        try:
            return client.answer(1)
        except (EOFError, ConnectionError):
            return 0, b""


SPELLINGS = (
    "//info", "/info/", "/./info", "/health/../info", "/health%2f..%2finfo", "/%69nfo", "/INFO", "/info;/health",
    "/info?/health", "/metrics", "/%6detrics", "/v2/health/ready/../../models", "/page/../info", "/page/%2e%2e/info",
    "/page/..%2finfo", "*", "info", "http://x/info", "/v1/models/..%2f..%2fhealth", "/v2/models/tiny/ready",
)  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_a_path_gets_around_the_key_over_http_2(guarded: Launched, path: str) -> None:
    status, body = get_over_http_2(guarded, "GET", path, {})
    assert status in (0, 400, 401, 404), (status, body[:200])
    assert status != 404 or path.startswith("/page/"), "an unknown path needs a key as well"
    assert not any(secret in body for secret in SECRETS)


@pytest.mark.parametrize(
    "name", ["x-original-url", "x-rewrite-url", "x-forwarded-prefix", "x-forwarded-path"]
)
def test_no_header_names_another_path(guarded: Launched, name: str) -> None:
    for path, other in (("/health", "/info"), ("/info", "/health")):
        reply = wire.get(guarded.address, path, headers={name: other})
        assert reply.status == (200 if path == "/health" else 401)
        assert not any(secret in reply.body for secret in SECRETS)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "get", "GET\t"])
def test_what_is_open_is_open_for_reading_only(guarded: Launched, method: str) -> None:
    override = f"X-HTTP-Method-Override: {method.strip()}\r\n"
    end = "Host: x\r\nConnection: close\r\nContent-Length: 0\r\n"
    answer = raw(guarded, f"{method} /health HTTP/1.1\r\n{end}\r\n".encode())
    assert statuses(answer) in ([401], [400]), answer[:200]
    answer = raw(guarded, f"GET /info HTTP/1.1\r\n{end}{override}\r\n".encode())
    assert statuses(answer) == [401], answer[:200]


def test_metrics_ask_for_a_key_where_they_are_guarded(guarded: Launched, launch_null: Launch) -> None:
    assert wire.get(guarded.address, "/metrics").status == 401
    bearer = {"Authorization": f"Bearer {KEY}"}
    asked = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    assert wire.post(guarded.address, "/generate", asked, headers=bearer).status == 200
    shown = wire.get(guarded.address, "/metrics", headers=bearer)
    assert shown.status == 200 and 'key="flag-1"' in shown.text
    paths = wire.get(guarded.address, "/api-doc/openapi.json").json()["paths"]
    assert "security" in paths["/metrics"]["get"]
    keyless = launch_null("--guard-metrics")
    assert keyless.wait_ended(30) in (1, 2)
    assert "--guard-metrics needs --api-key" in keyless.stderr()


# Two readings of one request.

HIDDEN = b"GET /livez HTTP/1.1\r\nHost: hidden\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
DOUBTFUL = {
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "the same host twice": b"GET /livez HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
    "an empty host": b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n",
    "a host with a user": b"GET /livez HTTP/1.1\r\nHost: x@y\r\n\r\n",
    "a bare line feed": b"GET /livez HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n",
    "a bare line feed after the first line": b"GET /livez HTTP/1.1\nHost: x\r\n\r\n",
    "a bare line feed at the end": b"GET /livez HTTP/1.1\r\nHost: x\r\n\n",
    "a bare line feed before": b"\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare carriage return": b"GET /livez HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "gzip, chunked": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"POST /generate HTTP/1.1\r\nHost: x\r\n" + 2 * CHUNKED + b"\r\n0\r\n\r\n",
    "identity": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
    "chunked, not last": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "length and chunked": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    + CHUNKED
    + b"\r\n0\r\n\r\n",
    "chunked and length": b"POST /generate HTTP/1.1\r\nHost: x\r\n"
    + CHUNKED
    + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
    "a list of lengths": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 0, 0\r\n\r\n",
    "a signed length": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: +0\r\n\r\n",
    "a space before the colon": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n",
    "a folded line": b"GET /livez HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "chunked in an old version": b"POST /generate HTTP/1.0\r\nHost: x\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_can_be_read_in_two_ways_is_refused_and_hides_nothing(server: Launched, name: str) -> None:
    answer = raw(server, DOUBTFUL[name] + HIDDEN)
    assert statuses(answer) == [400], answer[:400]


def test_a_doubtful_head_behind_a_good_request_is_found(server: Launched) -> None:
    good = wire.raw_post("/tokenize", {"inputs": "a\nb"})
    chunked = (
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + CHUNKED
        + b'\r\n6\r\n{"inpu\r\nA\r\nts": "\\n"}\r\n0\r\n\r\n'
    )
    bad = b"GET /livez HTTP/1.1\nHost: x\r\n\r\n"
    answer = raw(server, good + chunked + HIDDEN + good + bad + HIDDEN)
    assert statuses(answer) == [200, 200, 200, 200, 400], answer


def test_http_2_names_one_host(server: Launched) -> None:
    assert get_over_http_2(server, "GET", "/livez", {"host": "x"})[0] == 200
    assert get_over_http_2(server, "GET", "/livez", {"host": "y"})[0] == 400


# Other names.


@pytest.mark.parametrize("path", ["/info", "/metrics", "/docs", "/", "/v1/models", "/page/main.js"])
def test_only_allowed_hosts_are_answered_for(named: Launched, path: str) -> None:
    for host, status in (
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("a.models.example", 200),
        ("models.example", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1", 421),
    ):
        reply = wire.get(named.address, path, headers={"Host": host})
        assert reply.status == status, host
    assert get_over_http_2(named, "GET", path, {})[0] == 421


def test_probes_come_to_any_name(named: Launched) -> None:
    for path in ("/health", "/livez", "/readyz", "/ping"):
        assert wire.get(named.address, path, headers={"Host": "10.1.2.3:3000"}).status == 200
    reply = wire.post(named.address, "/health", {}, headers={"Host": "10.1.2.3"})
    assert reply.status == 421


def test_the_reference_is_protected_like_the_page(server: Launched) -> None:
    page = wire.get(server.address, "/", headers={"Accept": "text/html"})
    docs = wire.get(server.address, "/docs")
    for name in ("content-security-policy", "x-content-type-options", "referrer-policy"):
        assert docs.headers[name] == page.headers[name]
    assert "<style" not in docs.text and 'href="page/docs.css"' in docs.text
    assert wire.get(server.address, "/page/docs.css").headers["content-type"].startswith("text/css")
