"""A worker that computes nothing: the same contract, a constant token at once.

    python benchmarks/null_worker.py --socket FOLDER/worker.sock [--vocab-size N] [--step-us N]

Measures what router and gRPC cost per step beyond the model's own time. It reads every plan as the real
worker does (number, digest, columns) and answers every row that samples. Its folder must exist.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

import grpc
import numpy as np

from penstock.engine.engine_thread import EngineThread  # noqa: E402
from penstock.engine.plan import SAMPLE, START, U32, Plan
from penstock.errors import BadPlan, OutOfStep
from penstock.proto import penstock_pb2 as pb
from penstock.proto.contract import CONTRACT
from penstock.rpc.handlers import handlers
from penstock.rpc.run_call import RunCall

BLOCK_SIZE = 16


class NullSteps:
    """Executes nothing, on the thread and by the queues of the real worker."""

    depth = 1

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.top_counts = np.zeros(1024, np.int64)
        self.steps = 0

    def clear(self) -> None:
        """There is nothing to forget."""

    def launch(self, plan: Plan) -> pb.StepResult:
        """A constant token for every row that samples."""
        began = time.perf_counter_ns()
        if plan.starts is not None:
            self.top_counts[plan.slots[(plan.flags & START) != 0]] = plan.starts.top_tokens
        slots = plan.slots[(plan.flags & SAMPLE) != 0]
        tops = int(self.top_counts[slots].sum())
        read = time.perf_counter_ns()
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.steps += 1
        return pb.StepResult(
            number=plan.number,
            sampled=np.full(len(slots), 5, "<u4").tobytes(),
            logprobs=np.full(len(slots), -1, "<f4").tobytes(),
            top_tokens=np.full(tops, 5, "<u4").tobytes(),
            top_logprobs=np.full(tops, -1, "<f4").tobytes(),
            prompt_logprobs=np.full(len(plan.prompt_targets), -1, "<f4").tobytes(),
            prepare_ns=read - began,
            forward_ns=time.perf_counter_ns() - read,
        )

    def awaits_masks(self, launched: pb.StepResult) -> bool:
        """It samples among none."""
        return False

    def choose(self, launched: pb.StepResult, words: U32) -> None:
        """Never asked to."""

    def number(self, launched: pb.StepResult) -> int:
        """Of its plan."""
        return launched.number

    def is_done(self, launched: pb.StepResult) -> bool:
        """At once."""
        return True

    def finish(self, launched: pb.StepResult) -> pb.StepResult:
        """The launch made it."""
        return launched


class NullService:
    """The four calls of the contract."""

    def __init__(self, vocab_size: int, steps: NullSteps, thread: EngineThread) -> None:
        self.vocab_size = vocab_size
        self.steps = steps
        self.thread = thread

    def describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ModelDescription:
        """A model without weights."""
        return pb.ModelDescription(
            model_type="null",
            recipe="null",
            vocab_size=self.vocab_size,
            dtype="float32",
            device="cpu",
            device_name="null",
            block_size=BLOCK_SIZE,
            max_positions=1 << 20,
            world_size=1,
            stages=1,
            max_top_tokens=20,
            contract=CONTRACT,
        )

    def prepare(self, request: pb.PrepareRequest, context: grpc.ServicerContext) -> pb.Prepared:
        """As many pages as asked for."""
        self.steps.top_counts = np.zeros(request.max_slots, np.int64)
        longest = request.max_sequence_tokens or 1 << 20
        tokens = request.max_cache_tokens or request.max_slots * longest
        fixed = max(self.steps.step_seconds * 1e9, 1000)
        cost = pb.CostModel(fixed_ns=fixed, per_token_ns=1, per_context_token_ns=0)
        return pb.Prepared(
            pages=min(tokens // BLOCK_SIZE, 1 << 24), full_tables=1, cost=cost, free_bytes=1 << 30
        )

    def run(self, messages: Iterator[pb.ToWorker], context: grpc.ServicerContext) -> Iterator[pb.StepResult]:
        """As the real worker does it."""
        context.send_initial_metadata(())
        run = RunCall()
        self.thread.submit(lambda: run.execute(self.steps))
        threading.Thread(target=run.read, args=(messages,), daemon=True).start()
        try:
            yield from run.results()
        except (OutOfStep, BadPlan) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckReply:
        """Alive."""
        return pb.CheckReply(steps=self.steps.steps)


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--step-us", type=float, default=0, help="pretend that a step takes this long")
    arguments, _ = parser.parse_known_args()  # the launcher's other arguments mean nothing here
    thread = EngineThread()
    service = NullService(arguments.vocab_size, NullSteps(arguments.step_us / 1e6), thread)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handlers(service)])
    server.add_insecure_port(f"unix:{arguments.socket}")
    server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    thread.serve()


if __name__ == "__main__":
    main()
