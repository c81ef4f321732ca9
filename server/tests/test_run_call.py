"""The loop that executes plans, with an engine that computes nothing: what waits for masks, and what may overtake what."""

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from client import Numbering, make_plan, mask_of, row, u32
from penstock.engine import arrays
from penstock.engine.plan import MASKED, OF_WORDS, MaskColumns, Plan
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.run_call import Queued, RunCall
from penstock.rpc.servicer import WorkerServicer
from penstock_kernels.run import Inbox

VOCABULARY = 64


@dataclass
class Step:
    """A step that was launched."""

    number: int
    awaits: bool
    looks: int = 0


class Device:
    """As an accelerator: a step takes a while, so that as many as may be are launched before it is done."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.events: list[tuple[str, int]] = []

    def clear(self) -> None:
        """There is nothing to forget."""

    def go_on(self, inbox: Inbox) -> Step | None:
        """Never asked to: another thread reads."""
        raise AssertionError("it reads by itself")

    def launch(self, plan: Plan) -> Step:
        """Waits for masks where a row is masked."""
        self.events.append(("launch", plan.number))
        return Step(plan.number, bool((plan.flags & MASKED).any()))

    def awaits_masks(self, launched: Step) -> bool:
        """Until `choose`."""
        return launched.awaits

    def choose(self, launched: Step, masks: MaskColumns) -> None:
        """Takes the masks."""
        assert masks.only.tolist() == [OF_WORDS] and len(masks.words) == VOCABULARY // 32
        self.events.append(("choose", launched.number))
        launched.awaits = False

    def is_done(self, launched: Step) -> bool:
        """When it was looked at often enough for a plan that was sent to be there."""
        launched.looks += 1
        return not launched.awaits and launched.looks > 50

    def finish(self, launched: Step) -> pb.StepResult:
        """What was chosen."""
        assert not launched.awaits, "a step ended that had not sampled"
        self.events.append(("finish", launched.number))
        return pb.StepResult(number=launched.number)


class Router:
    """Sends two plans ahead; the masks of a plan when the result of the one before it is there."""

    def __init__(self, masked: list[bool]) -> None:
        self.masked = masked
        self.messages: queue.SimpleQueue[pb.ToWorker | None] = queue.SimpleQueue()
        self.numbering = Numbering()
        self.sent = 0

    def plan(self) -> None:
        """The next plan, if there is one."""
        if self.sent < len(self.masked):
            made = make_plan([row(0, [5], 0, [0], start={}, masked=self.masked[self.sent])])
            self.messages.put(pb.ToWorker(plan=self.numbering.stamp(made)))
            self.sent += 1

    def masks(self, number: int) -> None:
        """Those of this plan, if it needs some."""
        if number <= len(self.masked) and self.masked[number - 1]:
            words = mask_of([7], VOCABULARY)
            masks = pb.Masks(number=number, only=u32([OF_WORDS]), words=words)
            self.messages.put(pb.ToWorker(masks=masks))

    def run(self, device: Device) -> list[int]:
        """The numbers of the results."""
        source = Queued()
        call = RunCall(source)
        threads = [
            threading.Thread(target=source.read, args=(iter(self.messages.get, None),), daemon=True),
            threading.Thread(target=call.execute, args=(device,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        self.plan()
        self.plan()
        self.masks(1)
        numbers = []
        results: Iterator[pb.StepResult] = call.results()
        for _ in self.masked:
            number = next(results).number
            numbers.append(number)
            self.plan()
            self.masks(number + 1)
        self.messages.put(None)
        assert list(results) == []
        for thread in threads:
            thread.join(10)
        return numbers


def within(seconds: float, function: Callable[[], list[int]]) -> list[int]:
    """What the function returns, unless it takes longer: then a wait never ends."""
    results: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    threading.Thread(target=lambda: results.put(function()), daemon=True).start()
    return results.get(timeout=seconds)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_masks_that_need_the_result_before_them_never_wait_for_each_other(depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    masked = [bool(rng.random() < 0.5) for _ in range(30)] if seed else [True] * 30
    device = Device(depth)
    assert within(30, lambda: Router(masked).run(device)) == list(range(1, 31))
    events = device.events
    for number in range(2, 31):
        # What a masked step samples, the next one feeds; and a step ends when it has sampled.
        if masked[number - 2]:
            assert events.index(("choose", number - 1)) < events.index(("launch", number))
        if masked[number - 1]:
            assert events.index(("finish", number - 1)) < events.index(("choose", number))


def test_free_plans_are_launched_ahead_on_a_device() -> None:
    device = Device(2)
    within(30, lambda: Router([False] * 10).run(device))
    ahead = [device.events.index(("launch", n + 1)) < device.events.index(("finish", n)) for n in range(2, 9)]
    assert any(ahead)


class Here:
    """In place of the engine's thread: whoever calls computes."""

    def call(self, function: Callable[[], pb.Prepared]) -> pb.Prepared:
        return function()


def test_routers_that_come_while_a_worker_prepares_wait_for_its_answer() -> None:
    """One that was started again asks while the first one's Prepare goes on."""
    prepared: list[pb.PrepareRequest] = []
    again = threading.Event()

    def prepare(request: pb.PrepareRequest) -> pb.Prepared:
        prepared.append(request)
        if len(prepared) > 1:
            again.set()
        again.wait(0.2)  # for as long as a second one may take to come, if it were let in
        return pb.Prepared(pages=len(prepared))

    servicer = WorkerServicer(None, prepare, Here(), pb.ModelDescription(), lambda *_: None)  # type: ignore[arg-type]
    answers: queue.SimpleQueue[pb.Prepared] = queue.SimpleQueue()
    request = pb.PrepareRequest(max_slots=1)
    calls = [
        threading.Thread(target=lambda: answers.put(servicer.prepare(request, None)))  # type: ignore[arg-type]
        for _ in range(3)
    ]
    for call in calls:
        call.start()
    assert [answers.get(timeout=10).pages for _ in calls] == [1, 1, 1]
    assert len(prepared) == 1


def test_a_cache_that_the_system_refuses_is_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `ulimit -v` bounds what a process maps: the router must not take it for a crash."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("penstock.engine.arrays.mmap.mmap", refuse)
    failures: list[Exception] = []

    def prepare(_: pb.PrepareRequest) -> pb.Prepared:
        arrays.fresh_memory(1 << 46)
        raise AssertionError("not reached")

    class Context:
        def abort(self, code: grpc.StatusCode, details: str) -> None:
            raise Aborted(code, details)

    class Aborted(Exception):
        pass

    description = pb.ModelDescription()
    servicer = WorkerServicer(None, prepare, Here(), description, lambda error, _: failures.append(error))  # type: ignore[arg-type]
    with pytest.raises(Aborted) as caught:
        servicer.prepare(pb.PrepareRequest(max_slots=1), Context())  # type: ignore[arg-type]
    code, details = caught.value.args
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and not failures
    assert "67108864 MiB" in details and "--max-batch-total-tokens" in details and "ulimit -v" in details
