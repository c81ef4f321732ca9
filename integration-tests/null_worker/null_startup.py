"""In place of `penstock.startup`: a worker that computes nothing, and so imports no torch and reads no weights.

The process, its arguments, signals and log, what is said against a model's folder, the servicer and its threads are those
of every worker. What is missing is the model: each row that samples gets the token that its position has, after
PENSTOCK_NULL_STEP_US microseconds. So a text depends on nothing but where it begins, and is the same alone, in a batch
and across a lost worker. Masks and drafts it does not know.
"""

import argparse
import gc
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from penstock.engine.engine_thread import EngineThread
from penstock.engine.plan import PROMPT_LOGPROBS, SAMPLE, START, MaskColumns, Plan
from penstock.engine.slots import MAX_TOP_TOKENS
from penstock.engine.tables import BLOCK_SIZE
from penstock.loading.model_files import GENERATION, eos_ids, read_config, read_json
from penstock.proto import penstock_pb2 as pb
from penstock.proto.contract import CONTRACT
from penstock.rpc.address import Address
from penstock.rpc.server import ProcessExit, listen
from penstock.rpc.servicer import WorkerServicer
from penstock.telemetry import log
from penstock_kernels.run import Inbox

# Ordinary words of the vocabulary of the model that ships, and of those that tests make with its tokenizer.
FIRST_TOKEN, TOKENS = 400, 16
# Of a prompt's tokens, one after the other.
ALTERNATIVES = 64
MOST_PAGES = 1 << 24


class NullEngine:
    """Executes plans without computing anything, on the thread and by the queues of the real worker."""

    depth = 1

    def __init__(self, step_seconds: float, answers: bool, max_positions: int) -> None:
        """`answers`: this rank samples; the others' results are empty."""
        self.step_seconds = step_seconds
        self.max_positions = max_positions
        self.answers = answers
        self.prepared = False
        self.steps = 0
        self.top_counts = np.zeros(0, np.int64)

    def prepare(self, request: pb.PrepareRequest) -> pb.Prepared:
        """As many pages as are asked for."""
        self.top_counts = np.zeros(request.max_slots, np.int64)
        self.prepared = True
        longest = request.max_sequence_tokens or min(
            self.max_positions, request.max_cache_tokens or self.max_positions
        )
        tokens = request.max_cache_tokens or request.max_slots * longest
        fixed = max(self.step_seconds * 1e9, 1000)
        return pb.Prepared(
            pages=min(max(tokens // BLOCK_SIZE, 1), MOST_PAGES),
            groups=[pb.CacheGroup(kind=pb.CACHE_KIND_FULL, tables=1, layers=1)],
            cost=pb.CostModel(fixed_ns=fixed, per_token_ns=1, per_context_token_ns=0),
            free_bytes=1 << 30,
            max_sequence_tokens=longest,
        )

    def check(self) -> None:
        """There is no device that could fail."""

    def clear(self) -> None:
        """There is nothing to forget."""

    def go_on(self, inbox: Inbox) -> pb.StepResult | None:
        """Every plan comes to `launch`."""
        return None

    def launch(self, plan: Plan) -> pb.StepResult:
        """A token for every row that samples."""
        began = time.perf_counter_ns()
        if plan.starts is not None:
            self.top_counts[plan.slots[(plan.flags & START) != 0]] = plan.starts.top_tokens
        samples = (plan.flags & SAMPLE) != 0
        tops = int(self.top_counts[plan.slots[samples]].sum())
        told = (plan.flags & PROMPT_LOGPROBS) != 0
        prompt_tops = int((plan.counts[told] * self.top_counts[plan.slots[told]]).sum())
        ends = (plan.positions + plan.counts)[samples]
        read = time.perf_counter_ns()
        if self.step_seconds and len(plan.slots):
            time.sleep(self.step_seconds)
        self.steps += 1
        if not self.answers:
            return pb.StepResult(number=plan.number)
        return pb.StepResult(
            number=plan.number,
            sampled=(FIRST_TOKEN + ends % TOKENS).astype("<u4").tobytes(),
            logprobs=np.full(len(ends), -1, "<f4").tobytes(),
            top_tokens=np.full(tops, FIRST_TOKEN, "<u4").tobytes(),
            top_logprobs=np.full(tops, -1, "<f4").tobytes(),
            prompt_logprobs=np.full(len(plan.prompt_targets), -1, "<f4").tobytes(),
            prompt_top_tokens=(FIRST_TOKEN + np.arange(prompt_tops) % ALTERNATIVES).astype("<u4").tobytes(),
            prompt_top_logprobs=np.full(prompt_tops, -1, "<f4").tobytes(),
            prepare_ns=read - began,
            forward_ns=time.perf_counter_ns() - read,
        )

    def awaits_masks(self, launched: pb.StepResult) -> bool:
        """It samples among none."""
        return False

    def choose(self, launched: pb.StepResult, masks: MaskColumns) -> None:
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


def description_of(
    config: Mapping[str, Any], eos: list[int], arguments: argparse.Namespace
) -> pb.ModelDescription:
    """The model of config.json, without weights."""
    dtype = config.get("torch_dtype", "bfloat16") if arguments.dtype == "auto" else arguments.dtype
    return pb.ModelDescription(
        model_type=str(config.get("model_type", "")),
        recipe="null",
        vocab_size=config["vocab_size"],
        eos_ids=eos,
        dtype=dtype,
        device="cpu",
        device_name="null",
        block_size=BLOCK_SIZE,
        max_positions=config["max_position_embeddings"],
        rank=arguments.rank,
        world_size=arguments.world_size,
        stages=arguments.stages,
        max_top_tokens=min(MAX_TOP_TOKENS, config["vocab_size"]),
        contract=CONTRACT,
    )


def serve(
    arguments: argparse.Namespace, address: Address, listening: threading.Event, began: float
) -> NoReturn:
    """Serves on this thread until a signal handler raises, and sets `listening` when it does. Raises UnusableModel."""
    gc.enable()
    folder: Path = arguments.model_dir
    config = read_config(folder)
    description = description_of(config, eos_ids(config, read_json(folder, GENERATION)), arguments)
    # The first shard of the last stage.
    answers = arguments.rank == arguments.world_size - arguments.world_size // arguments.stages
    seconds = int(os.environ["PENSTOCK_NULL_STEP_US"]) / 1e6
    engine = NullEngine(seconds, answers, description.max_positions)
    thread = EngineThread()
    servicer = WorkerServicer(engine, engine.prepare, thread, description, ProcessExit())
    _server = listen(servicer, address)  # stops when it is collected
    listening.set()
    log("INFO", "ready", listening=True, start_seconds=round(time.perf_counter() - began, 3), device="null")
    thread.serve()
