"""Fairness between keys and users, and deadlines, with the real server: a flood delays another tenant by one
sequence, not by its queue; what cannot be answered in time is refused early; what runs out of time ends.
"""

from __future__ import annotations

import json
import re
import select
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import EXACT, SLOW_STEPS, Launched
from processes import wait_for

FLOODER, OTHER = "key-of-the-flood", "key-of-another"
FLOOD = 64
LENGTH = 60  # tokens of each request of the flood
SLOTS = 2
# The worker is halted while requests come, until they are all there.
PATIENT = ("--step-timeout", "120")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def long_answer(number: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Never ends by itself."""
    prompt = f"request {number}"
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def queued(launched: Launched) -> float:
    return launched.metrics().value("tgi_queue_size")


def taken(launched: Launched) -> float:
    """Sequences that wait or run."""
    now = launched.metrics()
    return now.value("tgi_queue_size") + now.value("tgi_batch_current_size")


def refused_meanwhile(launched: Launched, request_id: str, seconds: float | None = None) -> int:
    """Other requests that the server has worked on and refused while it had this one, or in the first `seconds` of that. By its log: on a
    busy machine the test sees things later than they were.
    """

    def told() -> list[dict[str, Any]] | None:
        whole, _, _ = launched.stdout().rpartition("\n")
        lines = [line for line in map(json.loads, whole.splitlines()) if line.get("message") == "answered"]
        return lines if any(line["request_id"] == request_id for line in lines) else None

    lines = wait_for(told, f"a line about {request_id}")
    (own,) = (line for line in lines if line["request_id"] == request_id)
    end = datetime.fromisoformat(own["timestamp"])
    began = end - timedelta(seconds=own["total_s"])
    until = end if seconds is None else began + timedelta(seconds=seconds)
    refused = [
        datetime.fromisoformat(line["timestamp"]) for line in lines if line["status"] == 422 and line != own
    ]
    return sum(began < other <= until for other in refused)


class Flood:
    """Requests on connections of their own, whose answers are read at the end, or never."""

    def __init__(self, launched: Launched, count: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode()
        self.connections = []
        for number in range(count):
            raw = wire.raw_post("/v1/completions", {**body, "prompt": f"{body['prompt']} {number}"})
            raw = raw.replace(b"\r\nHost: test", b"\r\nHost: test" + lines)
            self.connections.append(wire.exchange(launched.address, raw))

    def answered(self) -> None:
        statuses = [connection.recv(100)[9:12] for connection in self.connections]
        assert statuses == [b"200"] * len(self.connections)
        self.leave()

    def inference_times(self) -> list[int]:
        """In milliseconds, of those that are answered by now."""
        answered, _, _ = select.select(self.connections, [], [], 0)
        heads = [connection.recv(4096, socket.MSG_PEEK) for connection in answered]
        return [int(time) for head in heads for time in re.findall(rb"x-inference-time: (\d+)", head)]

    def leave(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.fixture
def narrow(launch_null: Launch) -> Iterator[Launched]:
    """Two sequences run at a time, so that there is a queue."""
    flags = ("--max-batch-size", str(SLOTS), "--api-key", FLOODER, "--api-key", OTHER, *PATIENT)
    yield launch_null(*flags, env=SLOW_STEPS).wait_ready()


def test_a_flooding_key_delays_another_by_one_sequence_at_most(narrow: Launched) -> None:
    flood = flooded(narrow, FLOOD, bearer(FLOODER))
    reply = wire.post(narrow.address, "/v1/completions", long_answer(1, 1), headers=bearer(OTHER))
    waits_for_one_at_most(reply, flood)
    assert queued(narrow) > FLOOD / 2, "most of the flood still waits"
    flood.leave()


def flooded(launched: Launched, count: int, headers: dict[str, str], **more: Any) -> Flood:
    """Once all of them are there."""
    once = long_answer(0, 1, **more)
    assert wire.post(launched.address, "/v1/completions", once, headers=headers).status == 200
    with launched.halted_worker():
        flood = Flood(launched, count, long_answer(0, LENGTH, **more), headers)
        wait_for(lambda: taken(launched) == count, "the queue to fill")
    return flood


def waits_for_one_at_most(reply: wire.Reply, flood: Flood) -> None:
    """By the server's own figures, in which a machine that stands still is on both sides."""
    assert reply.status == 200, reply
    waited, one_takes = int(reply.headers["x-queue-time"]), max(wait_for(flood.inference_times, "one to end"))
    # In the order of arrival it would have been FLOOD / SLOTS of them.
    assert waited <= 2 * one_takes, (waited, one_takes)


def costly_schema(number: int) -> dict[str, Any]:
    """Takes a second to refuse, and is another one for each number."""
    options = [{"type": "integer", "minimum": n * 10, "maximum": n * 10 + 5} for n in range(2000)]
    return {"title": f"number {number}", "oneOf": options}


def schema_as_long(number: int) -> dict[str, Any]:
    """Of a length for which costly ones and it have the same threads."""
    return {"enum": [f"{number} {'x' * 100} {n}" for n in range(400)]}


def test_a_key_that_has_costly_schemas_compiled_delays_another_by_one_of_them(launch: Launch) -> None:
    flags = ("--validation-workers", "1", "--grammar-timeout-ms", "500", "--json-output")
    launched = launch(*flags, "--api-key", FLOODER, "--api-key", OTHER).wait_ready()

    def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
        asked = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "response_format": asked}

    def ask(number: int) -> wire.Reply:
        headers = bearer(OTHER) | {"x-request-id": f"other-{number}"}
        reply = wire.post(
            launched.address, "/v1/chat/completions", with_schema(schema_as_long(number)), headers=headers
        )
        assert reply.status == 200, reply
        return reply

    ask(0)
    lines = f"\r\nHost: test\r\nAuthorization: Bearer {FLOODER}".encode()
    flood = [
        wire.exchange(
            launched.address,
            wire.raw_post("/v1/chat/completions", with_schema(costly_schema(number))).replace(
                b"\r\nHost: test", lines
            ),
        )
        for number in range(40)
    ]
    try:
        # The first was worked on, and the others wait.
        assert flood[0].recv(12).endswith(b" 422")
        for number in (1, 2):
            compiling = int(ask(number).headers["x-validation-time"]) / 1000
            # The one that is compiled when it comes; those before it in the order of arrival would have it wait for too long.
            assert refused_meanwhile(launched, f"other-{number}", compiling) < 5, compiling
    finally:
        for connection in flood:
            connection.close()


def test_a_key_whose_long_chats_are_read_delays_another_by_one_of_them(launch: Launch) -> None:
    """Chats of 1.5 MB, which are read before they have a place."""
    flags = ("--validation-workers", "1", "--api-key", FLOODER, "--api-key", OTHER, "--json-output")
    launched = launch(*flags).wait_ready()
    body = {"messages": [{"role": "user", "content": "a b c d " * 190_000}], "max_tokens": 4}
    short = {"messages": [{"role": "user", "content": "a b c d " * 20_000}], "max_tokens": 4}

    lines = f"\r\nHost: test\r\nAuthorization: Bearer {FLOODER}".encode()
    raw = wire.raw_post("/v1/chat/completions", body).replace(b"\r\nHost: test", lines)
    flood = [wire.exchange(launched.address, raw) for _ in range(60)]
    try:
        headers = bearer(OTHER) | {"x-request-id": "the-other"}
        reply = wire.post(launched.address, "/v1/chat/completions", short, headers=headers)
        assert reply.status == 422, "it is too long for the model, which is known when it was read"
        answered = [connection.recv(12) for connection in flood]
    finally:
        for connection in flood:
            connection.close()
    assert all(status.startswith(b"HTTP/1.1 4") for status in answered)
    before = refused_meanwhile(launched, "the-other")
    print(f"{before} of the flood were read first")
    assert before < len(flood) / 2


def test_without_keys_the_queue_is_fair_between_users(launch_null: Launch) -> None:
    open_to_all = launch_null("--max-batch-size", str(SLOTS), *PATIENT, env=SLOW_STEPS).wait_ready()
    flood = flooded(open_to_all, FLOOD // 2, {}, user="flood")
    body = long_answer(1, 1, user="another")
    reply = wire.post(open_to_all.address, "/v1/completions", body)
    waits_for_one_at_most(reply, flood)
    assert "warnings" not in reply.json()
    flood.leave()


def test_a_higher_priority_takes_a_running_place_and_nobody_loses_a_token(
    launch: Launch, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"batch priority=5: {FLOODER}\nchat: {OTHER}\n")
    flags = ("--max-batch-size", str(SLOTS), "--api-key-file", str(keys), "--highest-priority", "-10")
    narrow = launch(*flags, *EXACT, *PATIENT).wait_ready()

    length = 12 * LENGTH

    def ask(number: int, key: str, **more: Any) -> wire.Reply:
        # Of its own salt, so that no cached prefix makes one shorter.
        body = long_answer(number, length, cache_salt=str(number), **more)
        return wire.post(narrow.address, "/v1/completions", body, headers=bearer(key))

    # Its key's priority is the highest that it gets.
    alone = ask(0, FLOODER, priority=-10).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        # So slow that those that run do so for ten seconds.
        with narrow.slow_worker():
            batch = [pool.submit(ask, 0, FLOODER) for _ in range(6)]
            wait_for(
                lambda: queued(narrow) == 6 - SLOTS and taken(narrow) == 6,
                "each place to be taken, and the others to wait",
            )
            # The key's own, 0, is higher than that of the batch.
            reply = wire.post(narrow.address, "/v1/completions", long_answer(1, 1), headers=bearer(OTHER))
            # Behind those that ran it would have waited for nearly all of their steps.
            assert reply.status == 200 and not any(asked.done() for asked in batch)
        assert narrow.metrics().value("penstock_priority_preemptions") >= 1
        texts = [asked.result().json()["choices"][0]["text"] for asked in batch]
    assert texts == [alone] * len(texts)
    refused = ask(2, OTHER, priority=-11)
    assert refused.status == 422 and "--highest-priority" in refused.json()["error"]["message"], refused


def test_a_flooding_key_does_not_take_every_place(launch_null: Launch) -> None:
    full = launch_null(
        *("--max-concurrent-requests", "16", "--api-key", FLOODER, "--api-key", OTHER),
        *PATIENT,
    ).wait_ready()
    ask = long_answer(1, 1)
    assert wire.post(full.address, "/v1/completions", ask, headers=bearer(OTHER)).status == 200
    with full.halted_worker():
        flood = Flood(full, 14, long_answer(0, 4), bearer(FLOODER))
        wait_for(lambda: taken(full) == 14, "the flood to be taken")
        refused = wire.post(full.address, "/v1/completions", ask, headers=bearer(FLOODER))
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
        other = Flood(full, 2, long_answer(5, 1), bearer(OTHER))
        wait_for(lambda: taken(full) == 16, "the other key to find its places")
    flood.answered()
    other.answered()


# Deadlines.

ONE_TOKEN = {"inputs": "x", "parameters": {"max_new_tokens": 1}}


@pytest.mark.parametrize("value", ["soon", "0", "-1", "1.5", "1e3", "99999999999", ""])
def test_a_deadline_that_is_none_is_a_422_that_names_the_header(server: Launched, value: str) -> None:
    headers = {"x-request-deadline-ms": value}
    reply = wire.post(server.address, "/generate", {"inputs": "x"}, headers=headers)
    assert reply.status == 422 and "`x-request-deadline-ms` must be a whole number" in reply.json()["error"]


def test_what_waits_past_its_deadline_is_refused_then(launch_null: Launch) -> None:
    narrow = launch_null("--max-batch-size", "1", *PATIENT).wait_ready()
    assert wire.post(narrow.address, "/generate", ONE_TOKEN).status == 200
    with narrow.halted_worker():
        busy = Flood(narrow, 1, long_answer(0, 900), {})
        wait_for(lambda: narrow.metrics().value("tgi_batch_current_size") == 1, "the slot to be taken")
        headers = {"x-request-deadline-ms": "700"}
        # When its time is over, and not when its turn comes.
        reply = wire.post(narrow.address, "/generate", {"inputs": "x"}, headers=headers, timeout=20)
    assert reply.status == 429 and reply.json()["error_type"] == "overloaded"
    assert int(reply.headers["retry-after"]) >= 1
    busy.leave()
    assert wire.post(narrow.address, "/generate", ONE_TOKEN).status == 200


def test_what_runs_past_its_deadline_ends_with_an_error(launch_null: Launch) -> None:
    launched = launch_null(*PATIENT).wait_ready()
    worker = launched.worker()
    endless = long_answer(0, 1800)
    host = b"Host: test\r\nX-Request-Deadline-Ms: 3000\r\nConnection: close"
    raw = wire.raw_post("/v1/completions", {**endless, "stream": True}).replace(b"Host: test", host)
    with wire.exchange(launched.address, raw) as connection, connection.makefile("rb") as lines:
        events: list[Any] = []
        try:
            for line in lines:
                if line.startswith(b"data: {"):
                    worker.signal(signal.SIGSTOP)
                    events.append(json.loads(line[5:]))
        finally:
            worker.signal(signal.SIGCONT)
    assert len(events) >= 2, "tokens came, and then the error"
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert "the deadline passed after" in events[-1]["error"]["message"]

    # The worker is stopped when the request runs: one that still waits is refused with a 429 instead.
    wait_for(lambda: launched.metrics().value("tgi_batch_current_size") == 0, "the first one to be released")
    head = {"x-request-deadline-ms": "3000"}
    with ThreadPoolExecutor(1) as beside:
        answer = beside.submit(wire.post, launched.address, "/v1/completions", endless, headers=head)
        wait_for(lambda: launched.metrics().value("tgi_batch_current_size") == 1, "the second one to run")
        worker.signal(signal.SIGSTOP)
        try:
            reply = answer.result(wire.TIMEOUT)
        finally:
            worker.signal(signal.SIGCONT)
    assert reply.status == 504 and reply.json()["error"]["code"] == "deadline_exceeded"
    assert launched.metrics().value("tgi_request_failure", err="deadline") == 2
    assert wire.post(launched.address, "/generate", ONE_TOKEN).status == 200


def test_max_time_ends_the_text_as_its_length_does(launch_null: Launch) -> None:
    launched = launch_null(env=SLOW_STEPS).wait_ready()
    # Of eight seconds.
    parameters = {"max_new_tokens": 200, "max_time": 2.0, "details": True}
    body = {"inputs": "Tell me a long story", "parameters": parameters}
    with wire.Events(launched.address, "/generate_stream", body) as events:
        data = [json.loads(event) for event in events]
    assert data[-1]["details"]["finish_reason"] == "length"
    assert data[-1]["details"]["generated_tokens"] == len(data) < 200


def test_a_max_time_that_is_none_is_a_422(server: Launched) -> None:
    for value in (0, -1, 1e9, "soon"):
        body = {"inputs": "x", "parameters": {"max_time": value}}
        reply = wire.post(server.address, "/generate", body)
        assert reply.status == 422 and "`max_time` must be a number > 0 and <= 86400" in reply.json()["error"]
