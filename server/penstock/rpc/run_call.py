"""One Run call between whoever speaks to the router and the engine's thread: queues of plans and masks in, results out.

Used by the servicer. Knows neither model nor device, and does not import torch.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import grpc

from penstock.engine.plan import MASKED, MaskColumns, Plan
from penstock.errors import BadPlan, OutOfStep
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.plan_reader import PlanReader, read_masks

# While a step is on an accelerator, how long to wait for the next plan before looking at the step again.
GLANCE_SECONDS = 0.0002

# Plans whose masks are remembered to be due: more than can be in flight. Ranks that do not sample get no masks.
MOST_OWED = 1024

L = TypeVar("L")


class Steps(Protocol[L]):
    """What executes plans; L is a step that was launched."""

    @property
    def depth(self) -> int:
        """Steps worth launching before the first is finished."""

    def clear(self) -> None:
        """Forgets all slots."""

    def launch(self, plan: Plan) -> L:
        """Begins a step. Raises BadPlan."""

    def awaits_masks(self, launched: L) -> bool:
        """Whether the step goes on with `choose`."""

    def choose(self, launched: L, masks: MaskColumns) -> None:
        """Samples with these masks. Raises BadPlan."""

    def is_done(self, launched: L) -> bool:
        """Whether `finish` would return at once."""

    def finish(self, launched: L) -> pb.StepResult:
        """Waits for the step and packs its result."""


class Superseded(Exception):
    """A newer Run took the engine."""

    def __str__(self) -> str:
        return "a newer Run began"


class RunCall:
    """One Run call and its threads: one reads plans, one executes them, and where `deliver` is not given, one sends results.

    So the next step is computed while gRPC still sends the last one's result.
    """

    def __init__(self, deliver: Callable[[pb.StepResult | Exception | None], None] | None = None) -> None:
        """`deliver` is given each result on the thread that computes, and last what ended the call; None: `results` is asked for them."""
        self._plans: queue.SimpleQueue[Plan | Exception | None] = queue.SimpleQueue()
        self._masks: queue.SimpleQueue[pb.Masks | Exception | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[pb.StepResult | Exception | None] = queue.SimpleQueue()
        self._deliver = deliver or self._results.put
        self.over = threading.Event()  # it executes nothing any more

    def read(self, messages: Iterator[pb.ToWorker]) -> None:
        """Reads the stream to its end."""
        reader = PlanReader()
        owed: deque[int] = deque(maxlen=MOST_OWED)
        end: Exception | None = None
        try:
            for message in messages:
                has_plan, has_masks = message.HasField("plan"), message.HasField("masks")
                if not (has_plan or has_masks):
                    raise BadPlan("message: neither a plan nor masks")
                # Those of an older plan are waited for more than the plan.
                if has_masks and has_plan and message.masks.number < message.plan.number:
                    self._read_masks(message.masks, owed)
                    has_masks = False
                if has_plan:
                    plan = reader.read(message.plan)
                    if (plan.flags & MASKED).any():
                        owed.append(plan.number)
                    self._plans.put(plan)
                if has_masks:
                    self._read_masks(message.masks, owed)
        except grpc.RpcError:
            pass  # the client went away, which ends the stream as well
        except Exception as error:
            # grpcio raises a bare Exception when the call was cancelled; anything else must be seen.
            end = None if type(error) is Exception else error
        self._end(end)

    def _read_masks(self, masks: pb.Masks, owed: deque[int]) -> None:
        _check_due(masks.number, owed)
        self._masks.put(masks)

    def supersede(self) -> None:
        """Ends the execution after the plans that were read."""
        self._end(Superseded())

    def _end(self, why: Exception | None) -> None:
        self._plans.put(why)
        self._masks.put(why)

    def execute(self, engine: Steps[L]) -> None:
        """Executes plans until they end; whatever goes wrong is the last result."""
        end: Exception | None = None
        try:
            engine.clear()
            launched: deque[L] = deque()
            while True:
                if not launched:
                    plan = self._next_plan()
                    if plan is None:
                        break
                    launched.append(engine.launch(plan))
                if engine.awaits_masks(launched[0]):
                    masks = self._next_masks()
                    if masks is None:
                        break
                    engine.choose(launched[0], masks)
                # What a masked step samples, the next one may feed.
                while (
                    len(launched) < engine.depth
                    and not engine.awaits_masks(launched[-1])
                    and not engine.is_done(launched[0])
                ):
                    plan = self._next_plan_within(GLANCE_SECONDS)
                    if plan is not None:
                        launched.append(engine.launch(plan))
                self._deliver(engine.finish(launched.popleft()))
        except Exception as error:
            end = error
        self._deliver(end)
        self.over.set()

    def results(self) -> Iterator[pb.StepResult]:
        """Results as they come. Raises what ended the execution."""
        while True:
            item = self._results.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                return
            yield item

    def _next_plan(self) -> Plan | None:
        item = self._plans.get()
        if isinstance(item, Exception):
            raise item
        return item

    def _next_masks(self) -> MaskColumns | None:
        """The masks of the oldest plan that needs some."""
        item = self._masks.get()
        if isinstance(item, Exception):
            raise item
        return None if item is None else read_masks(item)

    def _next_plan_within(self, seconds: float) -> Plan | None:
        """The next plan if it comes in time. The end of the stream is left for `_next_plan`."""
        try:
            item = self._plans.get(timeout=seconds)
        except queue.Empty:
            return None
        if item is None:
            self._plans.put(None)
            return None
        if isinstance(item, Exception):
            raise item
        return item


def _check_due(number: int, owed: deque[int]) -> None:
    """Takes the oldest plan off those that masks are owed of, which this is to be. Raises OutOfStep."""
    due = owed.popleft() if owed else None
    if number != due:
        were_due = "none were due" if due is None else f"those of plan {due} were due"
        raise OutOfStep(f"masks of plan {number} came where {were_due}")
