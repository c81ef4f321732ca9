"""A model in two parts: the same text as in one, and whichever rank is lost is named, replaced, and no token missed.

What one rank goes through is in test_recovery.py and test_lifecycle.py; here is what only several can get wrong.
"""

from __future__ import annotations

import json
import random
import signal
import socket
from pathlib import Path

import pytest

import wire
from checkpoints import random_llama
from conftest import Launch, assert_no_stack_trace
from exposition import RESTARTS
from launched import ON_TORCH, Launched
from load import Answer, Ask, ask, ask_all, complete, generate
from prompts import QUESTIONS, as_text
from test_lifecycle import Running
from test_recovery import CLIENTS, Crowd, mixed_requests, strike, wait_ready_again

TWO = ("--num-shard", "2")
TWO_ON_TORCH = (*TWO, *ON_TORCH)
STAGES = ("--pipeline-parallel", "2", *ON_TORCH)

# Longer than the machine's hiccups, with two workers and a dozen clients on two cores.
QUICK_TO_NOTICE = ("--step-timeout", "5")

# Each rank in each way.
FAULTS = [(signal.SIGKILL, 1), (signal.SIGSTOP, 0), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)]


def greedy_requests() -> list[Ask]:
    asks = [generate(as_text(question), 48) for question in QUESTIONS[:4]]
    asks += [complete(f"{'and then ' * (60 * number)}once upon a time", 40) for number in range(4)]
    return asks


def disturb(launched: Launched, fault: signal.Signals, rank: int) -> None:
    """Health names the rank that had the fault, and no other."""
    worker = launched.worker(rank)
    if reply := strike(launched, worker, fault):
        what = "died" if fault == signal.SIGKILL else "stopped answering"
        assert f"worker {rank} {what}" in reply.json()["error"], reply.json()
    wait_ready_again(launched, worker)


@pytest.mark.parametrize(
    ("division", "faults"),
    [
        pytest.param(TWO, FAULTS[:1], id="shards"),
        pytest.param(TWO, FAULTS, marks=pytest.mark.tail, id="shards, each lost in each way"),
        pytest.param(
            TWO_ON_TORCH, FAULTS, marks=pytest.mark.tail, id="shards on torch, each lost in each way"
        ),
        pytest.param(STAGES, FAULTS, marks=pytest.mark.tail, id="stages, each lost in each way"),
    ],
)
def test_two_parts_give_the_text_of_one_and_survive_the_loss_of_either(
    launch: Launch, division: tuple[str, ...], faults: list[tuple[signal.Signals, int]]
) -> None:
    one = launch(*division[2:])
    launched = launch(*division, *QUICK_TO_NOTICE, "--json-output").wait_ready()
    one.wait_ready()
    assert sorted(worker.rank for worker in launched.workers()) == [0, 1]

    info = wire.get(launched.address, "/info").json()
    alone = wire.get(one.address, "/info").json()
    parts = (1, 2) if division == STAGES else (2, 1)
    assert (info["num_shard"], info["pipeline_parallel"]) == parts
    assert (alone["num_shard"], alone["pipeline_parallel"]) == (1, 1)
    assert info["parameters"] == alone["parameters"], "of the whole model, over all parts"
    assert launched.metrics().value("penstock_workers") == 2

    greedy = greedy_requests()
    assert ask_all(launched.address, greedy) == ask_all(one.address, greedy), "in two parts, another text"
    one.stop()

    requests = mixed_requests()[:30]
    undisturbed: list[Answer] = []
    for part in range(0, len(requests), CLIENTS):
        undisturbed += ask_all(launched.address, requests[part : part + CLIENTS])
    assert all(answer.error is None for answer in undisturbed)
    chance = random.Random(5)
    with Crowd(launched.address, requests) as crowd:
        # Short answers may be over when their fault comes; then more faults follow.
        for count, (fault, rank) in enumerate([*faults, *faults[:1] * 4], 1):
            crowd.wait_for_tokens(chance.randrange(1, 600), past_last_fault=True)
            disturb(launched, fault, rank)
            crowd.fault_is_over()
            if count >= len(faults) and crowd.survived() >= CLIENTS // 2:
                break
    crowd.raise_failures()
    wrong = [
        f"{requests[number]}\nundisturbed: {undisturbed[number]}\nnow:         {answer}"
        for number, answer in crowd.answers
        if not answer.same_as(undisturbed[number])
    ]
    assert not wrong, f"{len(wrong)} of {len(crowd.answers)} answers differ; the first:\n{wrong[0]}"
    assert crowd.faults_survived >= CLIENTS // 2, "hardly any of the answers had a fault in it"
    assert launched.metrics().value(RESTARTS) == count

    lines = [json.loads(line) for line in launched.stdout().splitlines() if line.strip()]
    told = [line["message"] for line in lines if line["level"] == "WARN"]
    for fault, rank in set(faults):
        fate = "was killed by SIGKILL" if fault == signal.SIGKILL else "was stopped by a signal"
        blamed = [line for line in told if f"worker {rank} {fate}" in line]
        assert len(blamed) == faults.count((fault, rank)), f"worker {rank} {fate}: {told}"
    assert_no_stack_trace(launched.log())


@pytest.mark.parametrize("fault", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.tail)])
def test_an_idle_group_notices_the_loss_of_its_second_rank(launch: Launch, fault: signal.Signals) -> None:
    launched = launch(*TWO, *QUICK_TO_NOTICE).wait_ready()
    before = ask(launched.address, complete("Once upon a time", 12))
    disturb(launched, fault, 1)
    assert ask(launched.address, complete("Once upon a time", 12)) == before


def test_two_shards_drain_and_leave_no_process(launch: Launch) -> None:
    launched = launch(*TWO).wait_ready()
    story = complete("A long story", 200)
    undisturbed = ask(launched.address, story)
    running = Running(launched.address, story)
    launched.process.send_signal(signal.SIGTERM)
    assert running.finish().same_as(undisturbed)
    assert launched.wait_ended() == 0
    launched.assert_no_orphan()


def test_killing_the_launcher_leaves_neither_shard(launch: Launch) -> None:
    launched = launch(*TWO).wait_ready()
    running = Running(launched.address)
    assert len(launched.workers()) == 2
    launched.worker(1).signal(signal.SIGSTOP)
    launched.process.send_signal(signal.SIGKILL)
    launched.wait_ended()
    launched.assert_no_orphan()
    running.thread.join(60)


def test_shards_meet_at_the_address_they_are_given(launch: Launch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launched = launch(*TWO_ON_TORCH, "--master-addr", "127.0.0.1", "--master-port", port).wait_ready()
    worker = launched.worker(1)
    assert f"--rendezvous tcp://127.0.0.1:{port}/" in worker.command
    before = ask(launched.address, complete("Once upon a time", 12))
    # The next group meets at the same address, and not the last one's names.
    disturb(launched, signal.SIGKILL, 0)
    assert ask(launched.address, complete("Once upon a time", 12)) == before


@pytest.mark.parametrize(
    ("flag", "number", "reason"),
    [
        ("--num-shard", "3", "does not divide"),
        ("--pipeline-parallel", "3", "more than the model's layers (2)"),
    ],
)
def test_a_number_that_does_not_divide_the_model_is_one_line_before_serving(
    launch: Launch, tmp_path: Path, flag: str, number: str, reason: str
) -> None:
    model = random_llama(tmp_path / "model", heads=4, layers=2)
    launched = launch("--model-id", str(model), flag, number)
    assert launched.wait_ended(120) == 1
    (line,) = launched.stderr().strip().splitlines()
    assert f"{flag} {number}" in line and reason in line, line
    assert "ready in" not in launched.stdout()
    assert_no_stack_trace(launched.log())
    launched.assert_no_orphan()
