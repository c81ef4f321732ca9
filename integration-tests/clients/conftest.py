"""What the tests of every client share. They run in the client's own environment, where there is pytest and the
client and nothing of the project; servers, and the recorder of golden requests, are started by `../test_clients.py`.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

import exposition
import processes
import wire

# A stream that goes on for as long as a test needs it, for clients that know TGI's sampling and nothing more: at
# this temperature one token of 4,096 is as likely as another, the end of the text too, and with this seed none of the
# first 2,000 random numbers falls where the ends are (a test of huggingface_hub looks).
ENDLESS_TEMPERATURE = 100.0
ENDLESS_SEED = 500
ENDLESS_TOKENS = 1_900


@dataclass(frozen=True)
class Guarded:
    """A server that wants a key, and does one request at a time."""

    url: str
    key: str


def address_of(url: str) -> wire.Address:
    parts = urlsplit(url)
    return wire.Address(parts.hostname or "", parts.port or 0)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The server all tests share; of a golden test, what it sends there is recorded."""
    if request.node.get_closest_marker("golden") is None:
        yield os.environ["PENSTOCK_URL"]
        return
    recorder = os.environ["PENSTOCK_RECORDER"]
    assert wire.post(address_of(recorder), "/-/record", request.node.name).status == 204
    yield recorder
    assert wire.post(address_of(recorder), "/-/stop", "").status == 204


@pytest.fixture
def guarded() -> Guarded:
    return Guarded(os.environ["PENSTOCK_GUARDED_URL"], os.environ["PENSTOCK_KEY"])


@pytest.fixture
def busy(guarded: Guarded) -> Iterator[Guarded]:
    """The same, while somebody else's request occupies it: the next one is a 429."""
    address = address_of(guarded.url)
    headers = {"Authorization": f"Bearer {guarded.key}", "Content-Type": "application/json"}
    # Larger than what lies between the two: it keeps its place until it is read.
    body = {
        "prompt": "For ever",
        "max_tokens": ENDLESS_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "logprobs": 5,
    }

    def occupied() -> http.client.HTTPConnection | None:
        """Whoever had the one place before has left it only once the server has noticed."""
        connection = http.client.HTTPConnection(address.host, address.port, timeout=wire.TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status == 200:
            answer.readline()
            return connection
        connection.close()
        return None

    connection = processes.wait_for(occupied, "the one place of the server")
    yield guarded
    connection.close()


@pytest.fixture
def starting() -> str:
    """A server whose model never gets loaded: 503 to everything."""
    return os.environ["PENSTOCK_STARTING_URL"]


@pytest.fixture
def thinking() -> str:
    """A server whose model answers as `prompts.echoed` asks, with thoughts where there are such."""
    return os.environ["PENSTOCK_THINKING_URL"]


Noticed = Callable[[], Iterator[None]]

# So many requests may have all their tokens before their clients leave them: a machine may be busy.
LEFT_TOO_LATE = 5


@pytest.fixture
def noticed() -> Noticed:
    """`for _ in noticed():` fails unless the server of `url` sees the request that its body makes and leaves be given
    up. The body runs again where that one had all its tokens before its client left it, which says nothing: whether
    it counts as answered then or as dropped depends on how much of the answer the socket took."""
    address = address_of(os.environ["PENSTOCK_URL"])

    def ended() -> tuple[float, float]:
        """Sequences that were given up, and requests that ended in whatever way."""
        metrics = exposition.parse(wire.get(address, "/metrics").text)
        dropped = metrics.value(exposition.FAILED, err="dropped")
        return metrics.value(exposition.CANCELLED), metrics.value(exposition.ANSWERED) + dropped

    def attempts() -> Iterator[None]:
        cancelled, _ = ended()
        for _ in range(LEFT_TOO_LATE):
            before = ended()
            yield
            gc.collect()  # What a client still holds in a circle of references keeps its connection open.
            processes.wait_for(lambda: ended() != before, "the server to notice that its client has left")  # noqa: B023
            if ended()[0] > cancelled:
                return
        raise AssertionError(f"{LEFT_TOO_LATE} requests had all their tokens before their clients left")

    return attempts
