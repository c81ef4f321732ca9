"""The four calls of the worker contract: Describe, Prepare, Run and Check.

Turns messages into calls of the engine and errors into status codes; holds nothing of a request. Plans may be
sent ahead: they wait in the stream, or in the socket. Does not import torch: a null worker is served by it, too.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import grpc

from penstock.engine.engine_thread import EngineThread
from penstock.errors import BadPlan, OtherLimits, OutOfStep, PeerLost, RunEnded, TooLittleMemory, one_line
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.frames import FrameCall
from penstock.rpc.run_call import Queued, RunCall, Steps, Superseded
from penstock.telemetry import log


class ServedEngine(Steps[Any], Protocol):
    """What the servicer asks of an engine, beside executing plans."""

    @property
    def steps(self) -> int:
        """Begun since the worker began."""

    @property
    def prepared(self) -> bool:
        """Whether Prepare has succeeded."""

    def check(self) -> None:
        """Computes something on the device. Raises when that fails."""


class WorkerServicer:
    """One engine behind the four calls of the contract."""

    def __init__(
        self,
        engine: ServedEngine,
        prepare: Callable[[pb.PrepareRequest], pb.Prepared],
        thread: EngineThread,
        description: pb.ModelDescription,
        on_failure: Callable[[Exception, threading.Event], None],
        meets_again: bool = False,
    ) -> None:
        """`prepare` makes the engine ready for these limits. Raises ValueError naming the field, or TooLittleMemory.

        `meets_again`: this is one of several ranks that nobody ends together, so that each ends with its Run, and those that are
        started in their place meet anew.
        """
        self._engine = engine
        self._prepare = prepare
        self._thread = thread
        self.description = description
        self._on_failure = on_failure
        self._meets_again = meets_again
        self._run: RunCall | None = None
        self._runs = 0
        self._counting = threading.Lock()
        self._prepared: tuple[pb.PrepareRequest, pb.Prepared] | None = None
        self._preparing = threading.Lock()

    def describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ModelDescription:
        """What the loaded model is."""
        return self.description

    def prepare(self, request: pb.PrepareRequest, context: grpc.ServicerContext) -> pb.Prepared:
        """Allocates, warms up and measures, once. A router that connects again gets the same answer; for one that wants other limits
        the process ends, and is started anew by whoever looks after it.
        """
        # One at a time: a router that was started again may come while the first one's Prepare goes on.
        with self._preparing:
            if self._prepared is not None:
                before, answer = self._prepared
                if request == before:
                    return answer
                self._fail(
                    context, OtherLimits("it is prepared for other limits, and ends to be started anew")
                )
            try:
                prepared = self._thread.call(lambda: self._prepare(request))
            except ValueError as error:
                _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except (TooLittleMemory, MemoryError) as error:
                _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error) or "out of memory")
            except Exception as error:
                self._fail(context, error)
            self._prepared = (request, prepared)
        log("INFO", "prepared", pages=prepared.pages, cache_bytes=prepared.cache_bytes)
        return prepared

    def run(self, messages: Iterator[pb.ToWorker], context: grpc.ServicerContext) -> Iterator[pb.StepResult]:
        """Executes plans in order until the client ends the stream or a newer Run begins."""
        context.send_initial_metadata(())
        if self._meets_again:
            self._end_with(context)
        if not self._engine.prepared:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, "Prepare was not called")
        source = Queued()
        run = RunCall(source)
        with self._serving():
            self._execute(run)
            threading.Thread(target=source.read, args=(messages,), name="plans", daemon=True).start()
            try:
                yield from run.results()
            except Exception as error:
                code = refusal(error)
                if code is None:
                    self._fail(context, error)
                _abort(context, code, str(error))

    def run_frames(self, call: FrameCall) -> None:
        """What `run` does, for a router that has connected to the socket for frames; returns when the call is over."""
        if not self._engine.prepared:
            call.fail(grpc.StatusCode.FAILED_PRECONDITION, "Prepare was not called")
            return
        call.begin()

        def deliver(item: pb.StepResult | Exception | None) -> None:
            if item is None:
                call.close()
            elif not isinstance(item, Exception):
                call.answer(item)
            elif (code := refusal(item)) is not None:
                call.fail(code, str(item))
            else:
                answered = threading.Event()
                self._on_failure(item, answered)
                call.fail(*_failure(item))
                answered.set()

        run = RunCall(call, deliver)
        with self._serving():
            self._execute(run)
            run.over.wait()

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        """A router has the worker for as long as this lasts. `penstock worker` is told of that, which does not take it away when all hosts are
        asked to end: the router may drain. One that comes anew may be there before the former is seen to have left.
        """
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._counting:
            before, self._runs = self._runs, self._runs + more
            if not before:
                log("INFO", "a router has connected", serving=True)
            elif not self._runs:
                log("INFO", "the router has left", serving=False)

    def _execute(self, run: RunCall) -> None:
        """On the engine's thread, behind a former call, which ends."""
        former, self._run = self._run, run
        if former is not None:
            former.supersede()
        self._thread.submit(lambda: run.execute(self._engine))

    def check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckReply:
        """Computes something on the device, beside a step that may be running."""
        try:
            self._engine.check()
        except Exception as error:
            self._fail(context, error)
        return pb.CheckReply(steps=self._engine.steps)

    def _end_with(self, context: grpc.ServicerContext) -> None:
        """Ends the process when the call is over, also while a step waits for a rank that has died and will meet this one anew."""
        over = threading.Event()

        def end() -> None:
            over.set()
            self._on_failure(RunEnded("the router has left; the ranks are to meet anew"), over)

        if not context.add_callback(end):
            end()

    def _fail(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        """Ends the call and the process: what the device holds is not to be trusted any more."""
        self._on_failure(error, _answered(context))
        _abort(context, *_failure(error))


def refusal(error: Exception) -> grpc.StatusCode | None:
    """With what a call ends after which the worker goes on; None: what the device holds is not to be trusted any more."""
    match error:
        case OutOfStep():
            return grpc.StatusCode.FAILED_PRECONDITION
        case BadPlan():
            return grpc.StatusCode.INVALID_ARGUMENT
        case Superseded():
            return grpc.StatusCode.CANCELLED
    return None


def _failure(error: Exception) -> tuple[grpc.StatusCode, str]:
    """With what a call ends whose process does, too. The router blames the rank that was lost, not the one that says so."""
    codes = {PeerLost: grpc.StatusCode.ABORTED, OtherLimits: grpc.StatusCode.UNAVAILABLE}
    return codes.get(type(error), grpc.StatusCode.INTERNAL), f"{type(error).__name__}: {one_line(error)}"


def _answered(context: grpc.ServicerContext) -> threading.Event:
    """Set when the call is over, for the client as well."""
    answered = threading.Event()
    if not context.add_callback(answered.set):
        answered.set()
    return answered


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort returns never")
