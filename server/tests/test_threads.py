"""The number of threads follows what is measured: simulated processors, on which time is what the test says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine.threads import (
    CHEAP_NS,
    KINDS,
    LONGEST_PAUSE,
    PAUSE,
    SLOW_STEPS,
    TURN,
    TURNS,
    WORTH,
    WORTH_ALONE,
    Choice,
    Threads,
)
from penstock.loading.host import threads_of

pytestmark = pytest.mark.alone


STEP_NS = 200_000.0


def run(choice: Choice, steps: int, ratios: dict[int, float], at: float, each: float = 0.01) -> float:
    """So many steps, of which one takes `ratios` of its threads; returns the time after them."""
    for _ in range(steps):
        choice.observe(ratios[choice.now], at, STEP_NS * ratios[choice.now])
        at += each
    return at


def test_the_number_of_threads_is_what_openmp_makes_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = len(os.sched_getaffinity(0))
    for said, expected in (
        ("3", 3),
        (" 4 , 2", 4),
        ("", processors),
        ("0,2", processors),
        ("all", processors),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert (threads_of(0), threads_of(5)) == (expected, 5), said


def test_all_threads_stay_while_steps_take_what_they_should() -> None:
    choice = Choice(2)
    for ratio in (1.0, 1.5, 5.0) * 100:  # now and then one is slow
        choice.observe(ratio, 0.0, STEP_NS * ratio)
        assert choice.now == 2


def test_one_thread_takes_over_beside_a_load_and_all_return_after_it() -> None:
    choice = Choice(2)
    busy, idle = {1: 2.5, 2: 20.0}, {1: 1.8, 2: 1.0}
    at = run(choice, SLOW_STEPS + 2 * TURN * TURNS, busy, 0.0)
    assert choice.settled == 1 and choice.now == 1
    at = run(choice, 1000, busy, at)
    assert choice.settled == 1
    at = run(choice, int(LONGEST_PAUSE / 0.01) + 100, idle, at)
    assert choice.settled == 2
    run(choice, 50, idle, at)
    assert choice.now == 2


def test_trials_that_change_nothing_become_rare() -> None:
    choice, trials, at = Choice(2), 0, 0.0
    for _ in range(60_000):  # ten minutes of steps that are slow with any number
        trials += choice.now == 1
        at = run(choice, 1, {1: 5.0, 2: 4.0}, at)
    assert 0 < trials < 300, trials


def test_all_threads_have_to_be_worth_what_they_cost_others() -> None:
    choice = Choice(2)
    choice.settle(1.0, 1.0 / (WORTH_ALONE - 0.1))
    assert choice.settled == 1
    # Tried again now and then, beside router and clients, whose share is in what is measured then.
    at = run(choice, 10_000, {1: 1.0, 2: 1.0 / WORTH}, 0.0)
    assert choice.settled == 1
    run(choice, 10_000, {1: 1.0, 2: 1.0 / (WORTH_ALONE - 0.1)}, at)
    assert choice.settled == 2
    choice.settle(1.0, 1.0 / (WORTH_ALONE + 0.1))
    assert choice.settled == 2


def test_one_thread_is_tried_where_all_seem_to_do_well() -> None:
    """They may keep others from what the next step needs; steps that are far slower are not waited for, nor are long ones tried."""
    choice = Choice(2)
    run(choice, int(PAUSE / 0.01) + 1 + 2 * TURN * TURNS, {1: 0.9, 2: 1.0}, 0.0)
    assert choice.settled == 1
    tried = 0
    far, at = Choice(2), 0.0
    for _ in range(1000):
        tried += far.now == 1
        at = run(far, 1, {1: 1.6, 2: 1.0}, at)
    assert far.settled == 2 and tried == 3 * TURN, "after 1 second, 2 and 4 more"
    long = Choice(2)
    for number in range(1000):
        assert long.now == 2
        long.observe(1.0, 0.01 * number, CHEAP_NS)


def test_after_a_change_trials_come_soon_again() -> None:
    choice = Choice(2)
    at = run(choice, 20_000, {1: 1.1, 2: 1.0}, 0.0)
    assert choice.settled == 2
    # Now all of them take longer, but not so long that a step is slow.
    at = run(choice, 500, {1: 1.1, 2: 1.6}, at)
    assert choice.settled == 1


def test_of_long_steps_all_threads_are_worth_a_small_share() -> None:
    choice = Choice(2)
    choice.settle(1.2 * 50e6, 50e6)
    assert choice.settled == 2
    choice.settle(50.2e6, 50e6)
    assert choice.settled == 1
    for number in range(1000):
        choice.observe(1.2 if choice.now == 1 else 1.0, 0.06 * number, 60e6 if choice.now == 1 else 50e6)
    assert choice.settled == 2


def test_each_kind_of_steps_has_a_choice() -> None:
    applied: list[int] = []
    threads = Threads(4, applied.append)
    threads.begin(1)
    threads.choice(1).settle(1.0, 1.0)
    threads.begin(1)
    assert applied == []  # no cost model yet: who measures says how many
    threads.expected = lambda fed, attended: 1000.0 * fed
    for tokens in (1, *(kind + 1 for kind in KINDS)):
        threads.begin(tokens)
        threads.end(tokens, 0, 1000.0 * tokens)
    assert applied == [1, 4]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, "100000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)],
)
def test_waiting_threads_do_not_spin_for_long_unless_told_to(
    given: dict[str, str], wanted: str | None
) -> None:
    code = "import os\nfrom penstock.worker import _set_threads\n_set_threads(2)\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP", "OMP"))}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**plain, **given}, check=True
    )
    assert ended.stdout.strip() == str(wanted)


def test_the_openmp_of_torch_is_the_one_whose_setting_this_is() -> None:
    """Another one would read another variable."""
    code = "import torch\ntorch.ones(2) + 1\nprint(open('/proc/self/maps').read())"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = {Path(line.split()[-1]).name for line in loaded.splitlines() if ".so" in line}
    assert any(name.startswith("libgomp") for name in names)
    assert not any(name.startswith(("libiomp", "libomp")) for name in names)
