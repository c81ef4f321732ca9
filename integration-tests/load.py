"""Clients that keep a server busy, each in its own thread, and what each of them was answered.

An answer is compared token by token where the route tells tokens, and else text by text. A client notices by
itself when a token is lost or doubled: the indices of a stream count up by one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import wire
from launched import Launched
from processes import wait_for


@dataclass(frozen=True)
class Ask:
    """One request. `body` is of `/generate_stream`, or with `stream` of `/v1/completions` or of a chat."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    text: str = ""
    pieces: list[Any] = field(
        default_factory=list
    )  # token ids, or only their number where a route tells no ids
    finish: str | None = None
    error: str | None = None
    prompt_tokens: int = 0  # where the route tells it

    def same_as(self, other: Answer) -> bool:
        return (self.text, self.pieces, self.finish) == (other.text, other.pieces, other.finish)


def generate(prompt: str, tokens: int, **parameters: Any) -> Ask:
    parameters = {"max_new_tokens": tokens, "details": True, **parameters}
    return Ask("/generate_stream", {"inputs": prompt, "parameters": parameters})


def complete(prompt: str, tokens: int, **options: Any) -> Ask:
    """Never ends by itself, so that it gives exactly `tokens`."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    return Ask("/v1/completions", {**body, "stream_options": {"include_usage": True}, **options})


def chat(messages: list[Any], tokens: int, **options: Any) -> Ask:
    body = {"messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0}
    return Ask("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}, **options})


class Refused(Exception):
    """The server did not take the request."""

    def __init__(self, reply: wire.Reply) -> None:
        super().__init__(f"{reply.status}: {reply.text}")
        self.reply = reply


def ask(address: wire.Address, request: Ask, seen: Callable[[], None] = lambda: None) -> Answer:
    """Runs one stream to its end; calls `seen` at each event with a token."""
    with begin(address, request) as events:
        return follow(events, request, seen)


def begin(address: wire.Address, request: Ask) -> wire.Events:
    """An open stream, with its first token on the way."""
    events = wire.Events(address, request.path, request.body, headers=request.headers)
    if events.status != 200:
        with events:
            raise Refused(events.read())
    return events


def follow(events: wire.Events, request: Ask, seen: Callable[[], None] = lambda: None) -> Answer:
    """Reads an open stream to its end."""
    answer = Answer()
    read = READERS[request.path]
    for event in events:
        if event == "[DONE]":
            continue
        data = json.loads(event)
        if "error" in data:
            answer.error = json.dumps(data)
            break
        read(answer, data)
        seen()
    return answer


def _read_tgi(answer: Answer, data: dict[str, Any]) -> None:
    token = data["token"]
    answer.pieces.append(token["id"])
    assert data["index"] == len(answer.pieces), f"token {data['index']} came as number {len(answer.pieces)}"
    if not token["special"]:
        answer.text += token["text"]
    if data["details"] is not None:
        assert data["generated_text"] == answer.text, "the stream is not the text"
        answer.finish = data["details"]["finish_reason"]


def _read_completion(answer: Answer, data: dict[str, Any]) -> None:
    for choice in data["choices"]:
        answer.text += choice["text"]
        answer.finish = choice["finish_reason"] or answer.finish
    _read_usage(answer, data)


def _read_chat(answer: Answer, data: dict[str, Any]) -> None:
    for choice in data["choices"]:
        answer.text += choice["delta"].get("content") or ""
        answer.finish = choice["finish_reason"] or answer.finish
    _read_usage(answer, data)


def _read_usage(answer: Answer, data: dict[str, Any]) -> None:
    if data.get("usage"):
        answer.pieces.append(data["usage"]["completion_tokens"])
        answer.prompt_tokens = data["usage"]["prompt_tokens"]


READERS: dict[str, Callable[[Answer, dict[str, Any]], None]] = {
    "/generate_stream": _read_tgi,
    "/v1/completions": _read_completion,
    "/v1/chat/completions": _read_chat,
}


def once(action: Callable[[], None], at: int = 1) -> Callable[[], None]:
    """Does it when it is called for the `at`-th time, by whichever thread."""
    lock, calls = threading.Lock(), 0

    def call() -> None:
        nonlocal calls
        with lock:
            calls += 1
            now = calls == at
        if now:
            action()

    return call


def ask_all(
    address: wire.Address, requests: Sequence[Ask], seen: Callable[[], None] = lambda: None
) -> list[Answer]:
    """All at once, each from its own connection; `seen` as in `ask`."""
    answers: list[Answer | BaseException | None] = [None] * len(requests)

    def run(number: int) -> None:
        try:
            answers[number] = ask(address, requests[number], seen)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(wire.TIMEOUT)
    done = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None, "a stream did not end in time"
        done.append(answer)
    return done


def arrivals(server: Launched) -> int:
    """Requests that have come to it so far."""
    return int(server.metrics().value("tgi_request_count"))


def ask_all_through(
    server: Launched, requests: Sequence[Ask], action: Callable[[], None], at: int = 1, of: int | None = None
) -> list[Answer]:
    """`ask_all`, with something done to the server when `at` tokens were read and all requests have come to it: on a busy machine some
    come late, and a server without its worker takes none. `of` are all arrivals by then, where somebody else asks as well.
    """
    expected = arrivals(server) + len(requests) if of is None else of

    def act() -> None:
        wait_for(lambda: arrivals(server) >= expected, "all requests to arrive")
        action()

    return ask_all(server.address, requests, once(act, at))
