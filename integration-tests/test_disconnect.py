"""Clients that go away, in every stage of a request: their blocks come back and the computing stops.

A checkpoint made for it has room for long prompts and never ends by itself, and its server takes two sequences per step, so
that there is a queue. What is to be caught in the middle is computed by a worker that is slowed down or halted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

import wire
from checkpoints import random_llama
from exposition import BATCH_TOKENS, CANCELLED, IN_FLIGHT, KV_USED, QUEUED, RUNNING, STEPS, WASTED
from launched import Launched
from load import Refused, ask, complete
from processes import wait_for

CHUNK = 32
LONG_PROMPT = "one two three four " * 700  # some thousand tokens: more than a hundred steps of CHUNK


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = random_llama(
        tmp_path_factory.mktemp("slow") / "model", hidden=256, layers=6, heads=8, kv_heads=4, positions=8192
    )
    arguments = ("--model-id", str(folder), "--max-batch-size", "2", "--max-batch-prefill-tokens", str(CHUNK))
    with Launched(
        tmp_path_factory.mktemp("slow-server"),
        *arguments,
        *("--max-concurrent-requests", "8", "--step-timeout", "120"),
    ) as launched:
        yield launched.wait_ready()


def idle(launched: Launched) -> bool:
    now = launched.metrics()
    return all(now.value(name) == 0 for name in (KV_USED, RUNNING, QUEUED, IN_FLIGHT))


def wait_idle(launched: Launched, seconds: float = 10) -> None:
    """And every request counted, which comes after the last that its client sees."""
    wait_for(lambda: idle(launched), "no block in use, nothing running, nothing queued", seconds)


def body(prompt: str, tokens: int, stream: bool) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}


STREAMING = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


class Books:
    """What the metrics said before, to compare with."""

    def __init__(self, launched: Launched) -> None:
        wait_idle(launched)
        self.launched = launched
        self.before = launched.metrics()

    def grown(self, name: str, **labels: str) -> float:
        return self.launched.metrics().value(name, **labels) - self.before.value(name, **labels)

    def settle(self, cancelled: int, most_wasted_each: int) -> None:
        wait_idle(self.launched)
        assert self.grown(CANCELLED) == cancelled
        # One step that runs and one that is in flight behind it are what a disconnect may still cost.
        assert self.grown(WASTED) <= cancelled * most_wasted_each


@STREAMING
def test_a_client_that_leaves_while_decoding(slow: Launched, stream: bool) -> None:
    books = Books(slow)
    with slow.slow_worker():
        connection = wire.exchange(
            slow.address, wire.raw_post("/v1/completions", body("Once upon", 4000, stream))
        )
        wait_for(lambda: books.grown(STEPS) >= 5, "some tokens")
        connection.close()
        wait_for(lambda: books.grown(CANCELLED) == 1, "the request to be cancelled")
    books.settle(cancelled=1, most_wasted_each=2)


@STREAMING
def test_a_client_that_leaves_in_the_middle_of_a_long_prompt(slow: Launched, stream: bool) -> None:
    books = Books(slow)
    with slow.slow_worker():
        connection = wire.exchange(
            slow.address, wire.raw_post("/v1/completions", body(LONG_PROMPT, 10, stream))
        )
        wait_for(lambda: slow.metrics().value(KV_USED) >= 4, "the prompt to be computed")
        connection.close()
        wait_for(lambda: books.grown(CANCELLED) == 1, "the request to be cancelled")
    books.settle(cancelled=1, most_wasted_each=2 * CHUNK)
    tokens = len(wire.post(slow.address, "/tokenize", {"inputs": LONG_PROMPT}).json())
    assert books.grown(BATCH_TOKENS) < tokens, (
        "it was computed to the end, so that the test has shown nothing"
    )


@STREAMING
def test_a_client_that_leaves_the_queue(slow: Launched, stream: bool) -> None:
    books = Books(slow)
    with slow.slow_worker(), Occupied(slow):
        cancelled = books.grown(CANCELLED)
        waiting = wire.exchange(slow.address, wire.raw_post("/v1/completions", body("Waiting", 50, stream)))
        wait_for(lambda: slow.metrics().value(QUEUED) == 1, "the request to be queued")
        waiting.close()
        wait_for(lambda: slow.metrics().value(QUEUED) == 0, "the request to leave the queue", 5)
        assert slow.metrics().value(RUNNING) == 2, "those before it are still at work"
        assert books.grown(CANCELLED) == cancelled + 1
    wait_idle(slow)


class Occupied:
    """Two streams that take both places of a step until the block is left."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.streams: list[wire.Events] = []

    def __enter__(self) -> None:
        self.streams = [
            wire.Events(self.launched.address, "/v1/completions", body("For ever", 4000, True))
            for _ in range(2)
        ]
        wait_for(lambda: self.launched.metrics().value(RUNNING) == 2, "both to run")

    def __exit__(self, *exception: object) -> None:
        for stream in self.streams:
            stream.close()


def hang_up(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    """Closes with a TCP reset, as a client does whose process is killed with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def half_close(connection: socket.socket) -> None:
    """Ends its sending side only, then goes."""
    connection.shutdown(socket.SHUT_WR)
    connection.close()


@pytest.mark.parametrize("leave", [hang_up, reset, half_close])
@STREAMING
def test_a_client_that_leaves_before_it_reads_the_headers(
    slow: Launched, leave: Callable[[socket.socket], None], stream: bool
) -> None:
    wait_idle(slow)
    for _ in range(10):
        leave(wire.exchange(slow.address, wire.raw_post("/v1/completions", body(LONG_PROMPT, 4000, stream))))

    def asked() -> str | None:
        # The server may read them, and find that they have left, only now.
        try:
            return ask(slow.address, complete("Hello", 3)).finish
        except Refused:
            return None

    assert wait_for(asked, "nothing of them to be left in the way") == "length"
    wait_idle(slow)


def test_a_client_that_leaves_in_the_middle_of_its_body(slow: Launched) -> None:
    books = Books(slow)
    raw = wire.raw_post("/generate", {"inputs": "x"}, length=1000)
    for _ in range(10):
        wire.exchange(slow.address, raw).close()
    assert ask(slow.address, complete("Hello", 3)).finish == "length"
    wait_idle(slow)
    assert books.grown("tgi_request_success") == 1


def test_one_of_several_choices_does_not_outlive_the_request(slow: Launched) -> None:
    books = Books(slow)
    request = {**body("Once upon", 4000, True), "prompt": ["One", "Two", "Three", "Four"]}
    with slow.slow_worker(), wire.Events(slow.address, "/v1/completions", request) as stream:
        next(iter(stream))
    wait_idle(slow)
    assert books.grown(CANCELLED) == 4


def test_many_clients_that_leave_at_once_cost_the_others_nothing(slow: Launched) -> None:
    request = complete("The one that stays", 60)
    undisturbed = ask(slow.address, request)
    books = Books(slow)
    left = 0

    def somebody_leaves() -> None:
        nonlocal left
        left += 1
        if left % 10 == 0:
            stage = LONG_PROMPT if left % 20 else "short"
            wire.exchange(slow.address, wire.raw_post("/v1/completions", body(stage, 400, True))).close()

    assert ask(slow.address, request, somebody_leaves).same_as(undisturbed)
    wait_idle(slow)
    assert books.grown("tgi_request_success") == 1


def test_a_stopped_text_frees_its_blocks_like_a_finished_one(slow: Launched) -> None:
    books = Books(slow)
    whole = ask(slow.address, complete("Stop here", 40))
    stopped = ask(slow.address, complete("Stop here", 4000, stop=whole.text[20:24]))
    assert stopped.finish == "stop"
    wait_idle(slow)
    assert books.grown(CANCELLED) == 0, "a stop string is an end, not a cancellation"
