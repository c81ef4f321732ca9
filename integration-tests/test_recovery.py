"""Workers that die or freeze under load: the streams pause, go on, and end complete and correct.

The faults are real signals to the real worker process, at random moments. Random here means: after a random
number of tokens, counted over all streams, so that no test sleeps and a slow machine gets the same mix.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

import wire
from checkpoints import random_llama
from conftest import Launch
from exposition import RESTARTS
from launched import EXACT, Launched
from load import Answer, Ask, Refused, ask, ask_all, complete, generate
from processes import Process, wait_for
from prompts import QUESTIONS, as_text

# How often the worker is killed, and how often frozen.
FAULTS = ((1, 1), pytest.param((20, 5), marks=pytest.mark.tail))
CLIENTS = 12
# Tokens of the longest request: short enough that many requests begin and end between two faults.
LONGEST = 96

# A sequence that came this much further since a crash is no suspect any more.
PAST = 8

# Longer than a worker stands still on a busy machine.
QUICK_TO_NOTICE = ("--step-timeout", "5")


def mixed_requests() -> list[Ask]:
    """Greedy and seeded, both routes, some with penalties; most go on to their full length."""
    asks: list[Ask] = []
    for number in range(CLIENTS):
        text = f"{'and then ' * (number % 4 * 12)}story {number}: once upon a time"
        asks.append(complete(text, LONGEST - 4 * number))
        asks.append(complete(text, LONGEST - 4 * number, temperature=1.3, seed=1000 + number))
        asks.append(generate(as_text(QUESTIONS[number % len(QUESTIONS)]), LONGEST))
        asks.append(generate(text, LONGEST, do_sample=True, temperature=1.1, seed=2000 + number, top_k=200))
        asks.append(
            complete(text, 64, presence_penalty=0.8, frequency_penalty=0.4, temperature=0.9, seed=number)
        )
    return asks


@dataclass
class OpenStream:
    tokens: int = 0
    at_fault: int | None = None  # how many it had when the last fault was over; None if it has seen none


class Crowd:
    """Clients that ask the same things over and over, until the block is left."""

    def __init__(self, address: wire.Address, requests: list[Ask]) -> None:
        self.address = address
        self.requests = requests
        self.answers: list[tuple[int, Answer]] = []
        self.failures: list[BaseException] = []
        self.faults_survived = 0
        self._tokens = 0
        self._lock = threading.Lock()
        self._open: dict[int, OpenStream] = {}
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(wire.TIMEOUT)

    def _client(self, number: int) -> None:
        turn = number
        while not self._ending.is_set() and not self.failures:
            request = turn % len(self.requests)
            stream = OpenStream()

            def seen(stream: OpenStream = stream) -> None:
                with self._lock:
                    stream.tokens += 1
                    self._tokens += 1

            with self._lock:
                self._open[number] = stream
            try:
                answer = ask(self.address, self.requests[request], seen)
            except Refused as refusal:
                if refusal.reply.status == 503:  # recovering: a new request is told so, and comes again
                    wait_for(lambda: wire.get(self.address, "/health").status == 200, "recovery", 60)
                    continue
                self.failures.append(refusal)
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                self.failures.append(error)
            else:
                with self._lock:
                    self.answers.append((request, answer))
                    self.faults_survived += stream.at_fault is not None
                turn += CLIENTS - 1  # coprime to the number of requests: each client meets them all
            finally:
                with self._lock:
                    del self._open[number]

    def raise_failures(self) -> None:
        if self.failures:
            raise AssertionError("a client failed") from self.failures[0]

    def wait_for_tokens(self, more: int, past_last_fault: bool) -> None:
        """More tokens have come; and when asked for, each stream is well past where the last fault met it."""
        goal = self._tokens + more

        def ripe() -> bool:
            self.raise_failures()
            with self._lock:
                past = [s.at_fault is None or s.tokens >= s.at_fault + PAST for s in self._open.values()]
                return (
                    self._tokens >= goal and len(past) >= CLIENTS // 2 and (all(past) or not past_last_fault)
                )

        wait_for(ripe, f"{more} more tokens", 120, every=0.002)

    def fault_is_over(self) -> None:
        with self._lock:
            for stream in self._open.values():
                stream.at_fault = stream.tokens

    def survived(self) -> int:
        """How many answers had a fault in them, once all of those have ended."""

        def ended() -> bool:
            self.raise_failures()
            with self._lock:
                return all(stream.at_fault is None for stream in self._open.values())

        wait_for(ended, "the answers that had a fault in them", 120)
        return self.faults_survived


def strike_and_recover(launched: Launched, worker: Process, fault: signal.Signals) -> None:
    if reply := strike(launched, worker, fault):
        is_why(reply)
    wait_ready_again(launched, worker)


def strike(launched: Launched, worker: Process, fault: signal.Signals) -> wire.Reply | None:
    """And what health says when it is not ready; None where it is over already, since the test stood still. A freeze takes the step's time
    limit to be noticed, which grows with what steps took lately: on a machine that is busy with other things, tens of seconds.
    """
    before = launched.metrics().value(RESTARTS)
    worker.signal(fault)

    def reply_or_over() -> wire.Reply | bool:
        return not_ready(launched) or launched.metrics().value(RESTARTS) > before

    found = wait_for(reply_or_over, f"health to say that worker {worker.rank} is lost", 90, every=0.002)
    return found if isinstance(found, wire.Reply) else None


def is_why(reply: wire.Reply) -> None:
    body = reply.json()
    assert body["error_type"] == "healthcheck"
    assert "worker" in body["error"], body


def wait_ready_again(launched: Launched, old: Process) -> None:
    """With another worker."""

    def ready() -> bool:
        assert launched.process.poll() is None, launched.log()[-4000:]
        health = launched.health()
        return health is not None and health.status == 200

    wait_for(ready, "the server to be ready again", 60)
    assert launched.worker(old.rank).pid != old.pid


def not_ready(launched: Launched) -> wire.Reply | None:
    reply = launched.health()
    assert reply is not None, "the server itself must stay up"
    return reply if reply.status == 503 else None


@pytest.mark.parametrize("planned", FAULTS, ids=str)
def test_kills_and_freezes_under_load_lose_no_token(launch: Launch, planned: tuple[int, int]) -> None:
    kills, freezes = planned
    launched = launch(*EXACT, *QUICK_TO_NOTICE).wait_ready()
    requests = mixed_requests()
    undisturbed = [
        answer
        for part in range(0, len(requests), 12)
        for answer in ask_all(launched.address, requests[part : part + 12])
    ]
    assert all(answer.error is None for answer in undisturbed)

    chance = random.Random(3)
    faults = [signal.SIGKILL] * kills + [signal.SIGSTOP] * freezes
    chance.shuffle(faults)
    restarts = 0
    with Crowd(launched.address, requests) as crowd:
        # Short answers may be over when their fault comes; then more faults follow.
        for number, fault in enumerate([*faults, *[signal.SIGKILL] * 4]):
            if number >= len(faults) and crowd.survived() >= CLIENTS:
                break
            # A request that gets no further between three crashes is failed as their cause, and rightly so.
            # Every fifth fault comes at once after the last, so that all are suspected and run alone; none
            # comes before they are past that.
            if number % 5 == 4:
                crowd.wait_for_tokens(1, past_last_fault=False)
            else:
                crowd.wait_for_tokens(chance.randrange(1, 6000 if kills > 1 else 1200), past_last_fault=True)
            strike_and_recover(launched, launched.worker(), fault)
            crowd.fault_is_over()
            restarts += 1
    crowd.raise_failures()

    wrong = [
        f"{requests[number]}\nundisturbed: {undisturbed[number]}\nnow:         {answer}"
        for number, answer in crowd.answers
        if not answer.same_as(undisturbed[number])
    ]
    assert not wrong, f"{len(wrong)} of {len(crowd.answers)} answers differ; the first:\n{wrong[0]}"
    assert crowd.faults_survived >= CLIENTS, "hardly any of the answers had a fault in it"
    assert launched.metrics().value(RESTARTS) == restarts


def test_a_worker_killed_while_it_loads_is_started_once_more(launch: Launch) -> None:
    launched = launch(*EXACT).wait_ready()
    request = complete("Once upon a time", 200)
    undisturbed = ask(launched.address, request)
    killed: list[int] = []

    def kill_on_the_tenth_token() -> None:
        killed.append(1)
        if len(killed) == 10:
            first = launched.worker()
            first.signal(signal.SIGKILL)
            # The next one is killed as soon as its process is there, long before it has loaded the model.
            (second,) = wait_for(
                lambda: [worker for worker in launched.workers() if worker.pid != first.pid],
                "the next worker",
            )
            second.signal(signal.SIGKILL)

    assert ask(launched.address, request, kill_on_the_tenth_token).same_as(undisturbed)


def test_new_requests_are_refused_with_the_reason_while_recovering(launch: Launch, tmp_path: Path) -> None:
    launched = launch(hold=tmp_path / "hold").wait_ready()
    chat = {"messages": [{"role": "user", "content": "x"}]}
    with launched.without_worker():
        tgi = wire.post(launched.address, "/generate", {"inputs": "x"})
        openai = wire.post(launched.address, "/v1/chat/completions", chat)
        assert tgi.status == openai.status == wire.get(launched.address, "/readyz").status == 503
        assert "worker" in tgi.json()["error"]
        assert "worker" in openai.json()["error"]["message"]
        assert wire.get(launched.address, "/livez").status == 200, "the server lives, it is only not ready"
    launched.wait_ready()


@pytest.mark.tail
def test_a_request_that_crashes_its_worker_three_times_fails_alone(launch: Launch, tmp_path: Path) -> None:
    """The router cannot know why a worker dies; it sees that it dies whenever a certain request runs.

    So the test plays the poison: it kills the worker whenever the first of two requests runs, which are both
    slow to prefill. After two crashes each of the two is run alone, and only the first crashes then too.
    """
    folder = random_llama(tmp_path / "model", hidden=512, layers=8, heads=8, kv_heads=8, positions=4096)
    launched = launch("--model-id", str(folder), "--max-batch-prefill-tokens", "4096").wait_ready()
    poison = generate("poison " * 800, 40)
    other = complete("and others " * 400, 40)
    undisturbed = ask(launched.address, other)

    outcomes: dict[str, Answer | Refused] = {}

    def run(name: str, request: Ask) -> None:
        try:
            outcomes[name] = ask(launched.address, request)
        except Refused as refused:
            outcomes[name] = refused

    def steps_sent() -> float:
        return launched.metrics().value("tgi_batch_inference_count")

    # Frozen, so that nothing is answered before both requests are there.
    launched.worker().signal(signal.SIGSTOP)
    arrived, sent = launched.metrics().value("tgi_request_count"), steps_sent()
    threads = []
    for name, request in (("poison", poison), ("other", other)):
        threads.append(threading.Thread(target=run, args=(name, request), daemon=True))
        threads[-1].start()
        arrived += 1
        wait_for(lambda at=arrived: launched.metrics().value("tgi_request_count") == at, "its arrival")  # type: ignore[misc]
    for _ in range(3):
        # The oldest request is in the first step that is sent, and that step takes long.
        wait_for(lambda at=sent: steps_sent() > at, "the poison to run", 60, every=0.001)  # type: ignore[misc]
        worker = launched.worker()
        if reply := strike(launched, worker, signal.SIGKILL):
            is_why(reply)
        sent = steps_sent()
        wait_ready_again(launched, worker)
    for thread in threads:
        thread.join(60)
    failed, survived = outcomes["poison"], outcomes["other"]
    assert isinstance(survived, Answer) and survived.same_as(undisturbed), "the other request must not suffer"
    if isinstance(failed, Refused):
        assert failed.reply.status >= 500 or failed.reply.status == 424
        message = failed.reply.json()["error"]
    else:  # On a busy machine it may have had a token before it was killed.
        message = failed.error or "the request that was alone in the third crash must fail"
    assert "crashed three times" in message and "request" in message, message
    assert ask(launched.address, other).same_as(undisturbed), "and the server goes on"


def test_an_idle_server_recovers_too(launch: Launch) -> None:
    launched = launch(*EXACT).wait_ready()
    before = ask(launched.address, complete("Once upon a time", 20))
    strike_and_recover(launched, launched.worker(), signal.SIGKILL)
    assert ask(launched.address, complete("Once upon a time", 20)).same_as(before)


def test_the_cause_is_in_the_log_and_no_orphan_is_left(launch: Launch, tmp_path: Path) -> None:
    launched = launch("--json-output").wait_ready()
    worker = launched.worker()
    strike_and_recover(launched, worker, signal.SIGKILL)
    assert str(worker.pid) not in {str(process.pid) for process in launched.processes()}
    lines = [json.loads(line) for line in launched.stdout().splitlines() if line.strip()]
    assert any("worker" in json.dumps(line) and line["level"] in ("WARN", "ERROR") for line in lines), lines[
        -5:
    ]
