"""Resource exhaustion by made-up users: without keys, a client can name as many as it likes. It gets no more for that
than its address.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections import Counter

from conftest import Launch
from launched import Launched
from processes import wait_for

FLOODER, HONEST = "127.0.0.1", "127.0.0.2"  # all of 127.0.0.0/8 is this machine
PLACES = 16


def ask(launched: Launched, source: str, user: str) -> int:
    """The status of a small completion, asked from an address."""
    address = launched.address
    connection = http.client.HTTPConnection(
        address.host, address.port, timeout=120, source_address=(source, 0)
    )
    try:
        body = json.dumps({"prompt": "x", "max_tokens": 2, "user": user})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def in_flight(launched: Launched) -> float:
    return launched.metrics().value("penstock_requests_in_flight")


def test_made_up_users_do_not_fill_the_places_of_all(launch_null: Launch) -> None:
    """64 requests of 32 made-up users from one address, held by a frozen worker: they get the places but for the last
    eighth, and a client at another address that nobody has made up gets one of those."""
    server = launch_null("--max-concurrent-requests", str(PLACES), "--step-timeout", "120").wait_ready()
    assert ask(server, HONEST, "honest") == 200
    statuses: Counter[tuple[str, int]] = Counter()

    def keep(source: str, user: str) -> None:
        statuses[source, ask(server, source, user)] += 1

    flood = [
        threading.Thread(target=keep, args=(FLOODER, f"user {number % 32}"), daemon=True)
        for number in range(64)
    ]
    honest = [threading.Thread(target=keep, args=(HONEST, "honest"), daemon=True) for _ in range(2)]
    worker = server.worker()
    worker.signal(signal.SIGSTOP)
    try:
        for client in flood:
            client.start()
        most = PLACES - PLACES // 8
        wait_for(lambda: statuses[FLOODER, 429] == len(flood) - most, "the flood to be refused")
        for client in honest:
            client.start()
        wait_for(lambda: in_flight(server) == PLACES, "the honest client to be taken")
    finally:
        worker.signal(signal.SIGCONT)
    for client in (*flood, *honest):
        client.join(120)
    assert statuses == {(FLOODER, 429): len(flood) - most, (FLOODER, 200): most, (HONEST, 200): 2}, statuses
