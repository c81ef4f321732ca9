"""One Run call between whoever speaks to the router and the engine's thread: plans and masks in, results out.

Used by the servicer. Knows neither model nor device, and does not import torch. Messages are read by a thread (`Queued`), or
where plans are executed (`FrameCall` in `frames`), and there the engine may read some by itself.
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
from penstock_kernels.run import Inbox

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

    def go_on(self, inbox: Inbox) -> L | None:
        """Where it can, reads plans and answers them by itself, until there is one that it cannot. A step of which something is left is returned."""

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


class Source(Protocol):
    """Where the plans and masks of one Run come from. Raises what ended them, and what is wrong with them."""

    @property
    def inbox(self) -> Inbox | None:
        """What was received of a connection, where the thread that executes plans reads them; the engine may read some by itself."""

    def plan(self) -> Plan | None:
        """The next one, or None at the end."""

    def has_waited(self) -> bool:
        """Whether the next message was not there, and is now: the engine is to look at it first."""

    def plan_within(self, seconds: float) -> Plan | None:
        """The next one if it comes in time. The end is left for `plan`."""

    def masks(self) -> MaskColumns | None:
        """The masks of the oldest plan that needs some, or None at the end."""

    def owe(self, number: int) -> None:
        """Masks are due of this plan, which somebody else has read."""

    def end(self, why: Exception) -> None:
        """There is nothing more than what was read."""


class Owed:
    """Plans whose masks are due."""

    def __init__(self) -> None:
        self._numbers: deque[int] = deque(maxlen=MOST_OWED)

    def add(self, number: int) -> None:
        """This plan's, too."""
        self._numbers.append(number)

    def take(self, number: int) -> None:
        """Those of this plan have come. Raises OutOfStep unless it is the oldest."""
        due = self._numbers.popleft() if self._numbers else None
        if number != due:
            were_due = "none were due" if due is None else f"those of plan {due} were due"
            raise OutOfStep(f"masks of plan {number} came where {were_due}")


def check_message(message: pb.ToWorker) -> None:
    """Raises BadPlan for one that says nothing."""
    if not (message.HasField("plan") or message.HasField("masks")):
        raise BadPlan("message: neither a plan nor masks")


class Queued:
    """A Source whose messages another thread reads: gRPC gives them to a thread of its own."""

    inbox: Inbox | None = None

    def __init__(self) -> None:
        self._plans: queue.SimpleQueue[Plan | Exception | None] = queue.SimpleQueue()
        self._masks: queue.SimpleQueue[pb.Masks | Exception | None] = queue.SimpleQueue()
        self._owed = Owed()

    def read(self, messages: Iterator[pb.ToWorker]) -> None:
        """Reads the stream to its end."""
        reader = PlanReader()
        end: Exception | None = None
        try:
            for message in messages:
                check_message(message)
                has_plan, has_masks = message.HasField("plan"), message.HasField("masks")
                # Those of an older plan are waited for more than the plan.
                if has_masks and has_plan and message.masks.number < message.plan.number:
                    self._read_masks(message.masks)
                    has_masks = False
                if has_plan:
                    plan = reader.read(message.plan)
                    if (plan.flags & MASKED).any():
                        self._owed.add(plan.number)
                    self._plans.put(plan)
                if has_masks:
                    self._read_masks(message.masks)
        except grpc.RpcError:
            pass  # the client went away, which ends the stream as well
        except Exception as error:
            # grpcio raises a bare Exception when the call was cancelled; anything else must be seen.
            end = None if type(error) is Exception else error
        self._put(end)

    def _read_masks(self, masks: pb.Masks) -> None:
        self._owed.take(masks.number)
        self._masks.put(masks)

    def end(self, why: Exception) -> None:
        """See Source."""
        self._put(why)

    def _put(self, why: Exception | None) -> None:
        self._plans.put(why)
        self._masks.put(why)

    def plan(self) -> Plan | None:
        """See Source."""
        item = self._plans.get()
        if isinstance(item, Exception):
            raise item
        return item

    def plan_within(self, seconds: float) -> Plan | None:
        """See Source."""
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

    def masks(self) -> MaskColumns | None:
        """See Source."""
        item = self._masks.get()
        if isinstance(item, Exception):
            raise item
        return None if item is None else read_masks(item)

    def has_waited(self) -> bool:
        """Nobody else reads plans."""
        return False

    def owe(self, number: int) -> None:
        """Nobody else reads plans."""
        raise AssertionError(f"plan {number} was read by somebody else")


class RunCall:
    """One Run call: the plans of a source, executed, and their results.

    So the next step is computed while gRPC still sends the last one's result.
    """

    def __init__(
        self, source: Source, deliver: Callable[[pb.StepResult | Exception | None], None] | None = None
    ) -> None:
        """`deliver` is given each result on the thread that computes, and last what ended the call; None: `results` is asked for them."""
        self._source = source
        self._results: queue.SimpleQueue[pb.StepResult | Exception | None] = queue.SimpleQueue()
        self._deliver = deliver or self._results.put
        self.over = threading.Event()  # it executes nothing any more

    def supersede(self) -> None:
        """Ends the execution after the plans that were read."""
        self._source.end(Superseded())

    def execute(self, engine: Steps[L]) -> None:
        """Executes plans until they end; whatever goes wrong is the last result."""
        end: Exception | None = None
        source = self._source
        try:
            engine.clear()
            launched: deque[L] = deque()
            while True:
                if not launched and (inbox := source.inbox) is not None:
                    left = engine.go_on(inbox)
                    if left is None and source.has_waited():
                        continue
                    if left is not None:
                        launched.append(left)
                        source.owe(inbox.number)
                if not launched:
                    plan = source.plan()
                    if plan is None:
                        break
                    launched.append(engine.launch(plan))
                if engine.awaits_masks(launched[0]):
                    masks = source.masks()
                    if masks is None:
                        break
                    engine.choose(launched[0], masks)
                # What a masked step samples, the next one may feed.
                while (
                    len(launched) < engine.depth
                    and not engine.awaits_masks(launched[-1])
                    and not engine.is_done(launched[0])
                ):
                    plan = source.plan_within(GLANCE_SECONDS)
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
