"""The equations of docs/metrics.md against the books that a load generator keeps of itself: with refusals,
clients that leave, an overload, and a worker that is killed in the middle.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch
from exposition import GENERATED_TOKENS, IN_FLIGHT, PROMPT_TOKENS, QUEUED, RESTARTS, RUNNING, Exposition
from launched import Launched
from load import Ask, Refused, begin, complete, follow
from processes import wait_for
from prompts import user

KEYS = {"team-a": "sesame-of-a", "team-b": "sesame-of-b"}
LIMIT = 7  # fewer than 8, of which no place is kept for the other key
LEAVING = 4
ARE_YOU_THERE = {"prompt": "are you there", "max_tokens": 1, "temperature": 0}


@dataclass
class Books:
    """What the load generator knows of its requests."""

    started: int = 0
    succeeded: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0  # of those that succeeded
    generated_tokens: int = 0
    answers: int = 0
    by_key: Counter[str] = field(default_factory=Counter)

    def success(self, prompt_tokens: int, generated_tokens: int, answers: int = 1) -> None:
        self.succeeded += 1
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens
        self.answers += answers


def of(team: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[team]}"}


def failures(now: Exposition) -> dict[str, float]:
    """By cause, those that there are."""
    found = [sample for sample in now.samples if sample.name == "tgi_request_failure"]
    return {sample.labels["err"]: sample.value for sample in found if sample.value}


def balance(now: Exposition) -> None:
    """Started = finished + failed + cancelled + in flight."""
    ended = now.value("tgi_request_success") + now.value("tgi_request_failure")
    assert now.value("tgi_request_count") == ended + now.value(IN_FLIGHT)


def told(launched: Launched) -> list[dict[str, Any]]:
    """The log's lines about requests that generate."""
    lines = [json.loads(line) for line in launched.stdout().splitlines()]
    return [line for line in lines if line.get("message") == "answered"]


@pytest.fixture
def served(launch: Launch, tmp_path: Path) -> Launched:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
    flags = ("--api-key-file", str(keys), "--max-concurrent-requests", str(LIMIT), "--json-output")
    return launch(*flags, hold=tmp_path / "hold").wait_ready()


class Generator:
    """Sends requests with one key or the other, and keeps the books."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.address = launched.address
        self.books = Books()

    def post(self, path: str, body: object, team: str = "team-a", **headers: str) -> wire.Reply:
        self.books.started += 1
        self.books.by_key[team] += 1
        return wire.post(self.address, path, body, headers={**of(team), **headers})

    def whole(self, path: str, body: dict[str, Any], answers: int) -> None:
        """A request with several sequences, on an OpenAI route."""
        reply = self.post(path, body)
        assert reply.status == 200, reply.text
        usage = reply.json()["usage"]
        self.books.success(usage["prompt_tokens"], usage["completion_tokens"], answers)

    def refused(self, path: str, body: object, status: int, why: str) -> None:
        assert self.post(path, body, "team-b").status == status
        self.books.failed[why] += 1

    def open(self, number: int) -> tuple[Ask, wire.Events]:
        team = ("team-a", "team-b")[number % 2]
        request = complete(f"{number} boats went out and", 1200)
        request = Ask(request.path, request.body, of(team))
        self.books.started += 1
        self.books.by_key[team] += 1
        return request, begin(self.address, request)

    def fill_and_break(self) -> None:
        """Fills the server, is refused once, leaves some streams, and kills the worker under the others."""
        seen = threading.Semaphore(0)

        def read(place: int) -> None:
            request, events = staying[place]
            with events:
                answers[place] = follow(events, request, seen.release)

        # None ends before the worker is lost.
        with self.launched.slow_worker():
            streams = [self.open(number) for number in range(LIMIT)]
            now = self.launched.metrics()
            balance(now)
            assert now.value(IN_FLIGHT) == LIMIT
            self.refused("/generate", {"inputs": "one too many"}, 429, "overloaded")
            balance(self.launched.metrics())

            for _, events in streams[:LEAVING]:
                events.close()
                self.books.failed["dropped"] += 1
            staying = streams[LEAVING:]
            answers: list[Any] = [None] * len(staying)
            threads = [
                threading.Thread(target=read, args=(place,), daemon=True) for place in range(len(staying))
            ]
            for thread in threads:
                thread.start()
            for _ in range(5 * len(staying)):
                assert seen.acquire(timeout=60)
            self.lose_the_worker()
        self.ask_until_it_is_back()
        for thread in threads:
            thread.join(wire.TIMEOUT)
        for answer in answers:
            assert answer is not None and answer.error is None, answer
            assert answer.pieces[-1] == 1200
            self.books.success(answer.prompt_tokens, answer.pieces[-1])

    def lose_the_worker(self) -> None:
        """Asks while there is none."""
        with self.launched.without_worker():
            reply = self.post("/v1/completions", ARE_YOU_THERE)
            assert reply.status == 503 and reply.headers["retry-after"], reply
            self.books.failed["unavailable"] += 1

    def ask_until_it_is_back(self) -> None:
        """One request after the other, until one is served."""

        def back() -> bool:
            reply = self.post("/v1/completions", ARE_YOU_THERE)
            if reply.status == 200:
                usage = reply.json()["usage"]
                self.books.success(usage["prompt_tokens"], usage["completion_tokens"])
                return True
            assert reply.status == 503 and reply.headers["retry-after"], reply
            self.books.failed["unavailable"] += 1
            return False

        wait_for(back, "the worker to be replaced", 180, 0.05)

    def several_sequences(self) -> None:
        """Requests that count once, whatever they ask for."""
        one: dict[str, Any] = {"max_tokens": 3, "temperature": 1, "ignore_eos": True}
        self.whole("/v1/chat/completions", {"messages": user("x"), "n": 2, **one}, 2)
        self.whole("/v1/completions", {"prompt": ["x y", "z"], "n": 2, **one}, 4)
        self.whole("/v1/completions", {"prompt": "x", "n": 1, "best_of": 2, **one}, 2)
        parameters = {"max_new_tokens": 1, "do_sample": True, "best_of": 2, "details": True}
        reply = self.post("/generate", {"inputs": "x", "parameters": parameters})
        assert reply.status == 200
        self.books.success(int(reply.headers["x-prompt-tokens"]), 2, 2)
        instances = [{"inputs": text, "parameters": {"max_new_tokens": 1}} for text in ("x", "y z")]
        lengths = [
            len(wire.post(self.address, "/tokenize", {"inputs": i["inputs"]}, headers=of("team-a")).json())
            for i in instances
        ]
        assert self.post("/vertex", {"instances": instances}).status == 200
        self.books.success(sum(lengths), 2, 2)
        reply = self.post("/invocations", {"inputs": "x", "parameters": {"max_new_tokens": 1}})
        assert reply.status == 200
        self.books.success(int(reply.headers["x-prompt-tokens"]), 1)

    def refusals(self) -> None:
        self.refused("/generate", {"inputs": ""}, 422, "validation")
        self.refused("/generate", {"inputs": "x", "parameters": {"top_p": 7}}, 422, "validation")
        self.refused("/generate_stream", {"inputs": "x", "parameters": {"best_of": 2}}, 422, "validation")
        self.refused("/v1/completions", b"{", 400, "validation")
        self.refused("/invocations", {"neither": "nor"}, 422, "validation")
        self.refused("/vertex", {"instances": []}, 422, "validation")
        # Not let in, so not counted as a request.
        assert wire.post(self.address, "/generate", {"inputs": "x"}).status == 401
        with pytest.raises(Refused):
            begin(self.address, complete("x", 1))


def test_the_books_balance_through_refusals_cancellations_and_a_restart(served: Launched) -> None:
    generator = Generator(served)
    generator.refusals()
    generator.several_sequences()
    generator.fill_and_break()
    books = generator.books

    def still() -> Exposition | None:
        now = served.metrics()
        at_rest = now.value(IN_FLIGHT) == now.value(RUNNING) == now.value(QUEUED) == 0
        return now if at_rest and len(told(served)) >= books.started else None

    now = wait_for(still, "every request to have ended")

    # Started = finished + failed + cancelled + in flight, here and there.
    balance(now)
    assert now.value("tgi_request_count") == books.started
    assert now.value("tgi_request_success") == books.succeeded
    assert failures(now) == books.failed
    assert books.failed["dropped"] == LEAVING and books.failed["overloaded"] == 1
    assert now.value(RESTARTS) == 1

    # What is observed once for each request that succeeded.
    for name in ("duration", "validation_duration", "queue_duration", "inference_duration"):
        assert now.value(f"tgi_request_{name}_count") == books.succeeded, name
    assert now.value("tgi_request_mean_time_per_token_duration_count") == books.succeeded
    assert now.value("tgi_request_generated_tokens_count") == books.succeeded
    assert now.value("tgi_request_generated_tokens_sum") == books.generated_tokens
    assert now.value("penstock_finish_reason") == books.answers
    accepted = books.succeeded + LEAVING
    assert now.value("tgi_request_input_length_count") == accepted
    assert now.value("tgi_request_max_new_tokens_count") == accepted
    assert now.value("penstock_time_to_first_token_duration_count") == accepted

    # The sums over the requests are the counters; the log tells of each request once.
    lines = told(served)
    assert len(lines) == books.started
    well = [line for line in lines if line["outcome"] == "success"]
    assert sum(line["generated_tokens"] for line in well) == books.generated_tokens
    assert sum(line["prompt_tokens"] for line in well) == books.prompt_tokens
    assert sum(line["generated_tokens"] for line in lines) == now.value(GENERATED_TOKENS)
    assert sum(line["prompt_tokens"] for line in lines) == now.value(PROMPT_TOKENS)
    assert now.value("tgi_request_input_length_sum") == now.value(PROMPT_TOKENS)
    outcomes = Counter(line["outcome"] for line in lines if line["outcome"] != "success")
    assert outcomes == books.failed

    # By key, whose names alone are told.
    for name in KEYS:
        assert now.value("penstock_key_requests", key=name) == books.by_key[name]
        assert sum(line["key"] == name for line in lines) == books.by_key[name]
    assert now.value("penstock_key_requests") == books.started
    assert now.value("penstock_key_tokens", kind="generated") == now.value(GENERATED_TOKENS)
    assert now.value("penstock_key_tokens", kind="prompt") == now.value(PROMPT_TOKENS)
    exposed = wire.get(served.address, "/metrics").text
    assert not any(key in exposed or key in served.log() for key in KEYS.values())

    # Errors on all routes, by what their bodies call them.
    assert now.value("penstock_errors", type="invalid_api_key") == 2
    assert now.value("penstock_errors", type="unavailable") == books.failed["unavailable"]
    kinds = now.value("penstock_errors", type="validation") + now.value(
        "penstock_errors", type="malformed_body"
    )
    assert kinds == books.failed["validation"]
    assert now.value("penstock_http_requests", route="/generate", status="401") == 1


def test_tokens_of_a_sequence_are_timed_one_after_the_other(served: Launched) -> None:
    reply = Generator(served).post(
        "/v1/completions", {"prompt": "a b c", "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    )
    assert reply.status == 200
    now = served.metrics()
    assert now.value("penstock_inter_token_duration_count") == 19
    total = now.value("tgi_request_inference_duration_sum")
    assert 0 < now.value("penstock_inter_token_duration_sum") <= total
