"""A client of the worker contract for tests: starts a worker process, builds plans, keeps the digest."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from penstock.engine.plan import NO_PAGE, NO_SNAPSHOT, NO_TOKEN, OF_WORDS, START_COLUMNS
from penstock.engine.tables import BLOCK_SIZE, ONE_TABLE, Tables
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.address import UnixSocket
from penstock.rpc.frames import HEAD

# `make test-gpu` sets it to "cuda".
DEVICE = os.environ.get("PENSTOCK_TEST_DEVICE", "cpu")

START, CONTINUE, SAMPLE, PROMPT_LOGPROBS, MASKED, OWN_DRAFTS = (
    pb.ROW_FLAG_START,
    pb.ROW_FLAG_CONTINUE,
    pb.ROW_FLAG_SAMPLE,
    pb.ROW_FLAG_PROMPT_LOGPROBS,
    pb.ROW_FLAG_MASKED,
    pb.ROW_FLAG_OWN_DRAFTS,
)


def row(
    slot: int,
    tokens: list[int] | None = None,
    position: int = 0,
    blocks: list[int] | None = None,
    *,
    start: dict[str, Any] | None = None,
    sample: bool = True,
    targets: list[int] | None = None,
    masked: bool = False,
    drafts: list[int] | None = None,
    own: int = 0,
    parents: list[int] | None = None,
    saves: list[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """One row of a plan. No tokens: CONTINUE. `drafts` are fed behind them, each behind the one before it or behind its entry of
    `parents`, or `own` that the worker makes. `start`: what its entry of Starts has other than defaults.

    Of models with a recurrent state: `saves` are (tokens, snapshot), and `state_source` in `start` is a snapshot.
    """
    return {
        "slot": slot,
        "tokens": tokens,
        "position": position,
        "blocks": blocks or [],
        "start": start,
        "sample": sample,
        "targets": targets,
        "masked": masked,
        "drafts": drafts or [],
        "own": own,
        "parents": parents,
        "saves": saves or [],
    }


def mask_of(tokens: list[int], vocabulary: int) -> bytes:
    """One row's mask, as the contract has it."""
    bits = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def masks_of(masks: list[list[int]], vocabulary: int) -> tuple[bytes, bytes]:
    """Of samples that may be these tokens each, the columns `only` and `words`."""
    listed = [tokens for tokens in masks if len(tokens) > 1]
    only = [OF_WORDS if len(tokens) > 1 else (*tokens, NO_TOKEN)[0] for tokens in masks]
    return u32(only), b"".join(mask_of(tokens, vocabulary) for tokens in listed)


def u32(values: list[int]) -> bytes:
    """A column."""
    return np.array(values, "<u4").tobytes()


def make_plan(
    rows: list[dict[str, Any]],
    released: list[int] | None = None,
    tables: Tables = ONE_TABLE,
    has_state: bool = False,
    copies: list[tuple[int, int]] | None = None,
) -> pb.StepPlan:
    """Packs rows into columns; number and digest are set when it is sent. Saves and sources of states are left out where the
    model has no state.

    Blocks have the pages of their number, those of one block side by side; but none behind a window of a row that
    starts. `copies`: (source, target) of blocks.
    """
    pages = []
    for r in rows:
        first = [0] * tables.count
        if r["start"] is not None:
            for group in tables.windows:
                read_from = group.first_read(r["position"]) // BLOCK_SIZE
                first[group.first : group.first + group.count] = [read_from] * group.count
        for number, block in enumerate(r["blocks"]):
            for table in range(tables.count):
                pages.append(NO_PAGE if number < first[table] else block * tables.count + table)
    flags = []
    for r in rows:
        flag = START if r["start"] is not None else 0
        flag |= CONTINUE if r["tokens"] is None else 0
        flag |= SAMPLE if r["sample"] else 0
        flag |= PROMPT_LOGPROBS if r["targets"] is not None else 0
        flag |= MASKED if r["masked"] else 0
        flag |= OWN_DRAFTS if r["own"] else 0
        flags.append(flag)
    drafts = [len(r["drafts"]) + r["own"] for r in rows]
    plan = pb.StepPlan(
        released=u32(released or []),
        slots=u32([r["slot"] for r in rows]),
        flags=bytes(flags),
        positions=u32([r["position"] for r in rows]),
        counts=u32(
            [
                (1 if r["tokens"] is None else len(r["tokens"])) + made
                for r, made in zip(rows, drafts, strict=True)
            ]
        ),
        tokens=u32([t for r in rows for t in [*(r["tokens"] or []), *r["drafts"]]]),
        new_block_counts=u32([len(r["blocks"]) for r in rows]),
        new_pages=u32(pages),
        prompt_targets=u32([t for r in rows for t in r["targets"] or []]),
        drafts=u32(drafts) if any(drafts) else b"",
        copies=u32(
            [
                block * tables.count + table
                for copy in copies or []
                for table in range(tables.count)
                for block in copy
            ]
        ),
    )
    if any(r["parents"] is not None for r in rows):
        chains = (list(range(count)) for count in drafts)
        each = zip(rows, chains, strict=True)
        plan.draft_parents = u32([p for r, chain in each for p in r["parents"] or chain])
    starting = [r["start"] for r in rows if r["start"] is not None]
    if starting:
        for column in START_COLUMNS:
            if not (column.ragged_by or column.optional):
                values = [s.get(column.name, column.default) for s in starting]
                setattr(plan.starts, column.name, np.array(values, column.dtype).tobytes())
        history = [s.get("history", []) for s in starting]
        plan.starts.history_counts = u32([len(h) for h in history])
        plan.starts.history = u32([t for h in history for t in h])
        bias = [s.get("bias", {}) for s in starting]
        plan.starts.bias_counts = u32([len(b) for b in bias])
        plan.starts.bias_tokens = u32([t for b in bias for t in b])
        plan.starts.biases = np.array([v for b in bias for v in b.values()], "<f4").tobytes()
        ends = [s.get("ends", []) for s in starting]
        plan.starts.end_counts = u32([len(e) for e in ends])
        plan.starts.end_tokens = u32([t for e in ends for t in e])
        if any("encoder" in s for s in starting):
            plan.starts.encoder_counts = u32([s["encoder"] for s in starting])
        if has_state:
            plan.starts.state_sources = u32([s.get("state_source", NO_SNAPSHOT) for s in starting])
        if any("adapter" in s for s in starting):
            plan.starts.adapters = u32([s.get("adapter", 0) for s in starting])
    if has_state:
        saves = [(at, *save) for at, r in enumerate(rows) for save in r["saves"]]
        plan.saves = u32([number for save in saves for number in save])
    return plan


def columns(plan: pb.StepPlan) -> Iterator[bytes]:
    """Every column in the order of the digest."""
    for field in plan.DESCRIPTOR.fields:
        if field.name == "starts":
            if plan.HasField("starts"):
                yield from (getattr(plan.starts, f.name) for f in plan.starts.DESCRIPTOR.fields)
        elif field.name not in ("number", "digest"):
            yield getattr(plan, field.name)


class Numbering:
    """Numbers and digests of the plans of one Run."""

    def __init__(self) -> None:
        self.number = 0
        self.digest = 0

    def stamp(self, plan: pb.StepPlan) -> pb.StepPlan:
        """Sets both for the next plan."""
        self.number += 1
        self.digest = zlib.crc32(self.number.to_bytes(8, "little"), self.digest)
        for column in columns(plan):
            self.digest = zlib.crc32(column, self.digest)
        plan.number, plan.digest = self.number, self.digest
        return plan


class Run:
    """One Run call: plans are sent as they are given, results read in order."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.numbering = Numbering()
        self._messages: queue.SimpleQueue[pb.ToWorker | None] = queue.SimpleQueue()
        call = channel.stream_stream(
            "/penstock.v1.Worker/Run", pb.ToWorker.SerializeToString, pb.StepResult.FromString
        )
        self.call = call(iter(self._messages.get, None), timeout=60)

    def send(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> None:
        """Sends a plan of these rows."""
        self.send_raw(self.numbering.stamp(make_plan(rows, released)))

    def send_raw(self, plan: pb.StepPlan) -> None:
        """Sends a plan as it is."""
        self.send_message(pb.ToWorker(plan=plan))

    def send_message(self, message: pb.ToWorker) -> None:
        """Sends it as it is."""
        self._messages.put(message)

    def send_masks(
        self, words: bytes, number: int | None = None, only: list[int] | tuple[int, ...] = (OF_WORDS,)
    ) -> None:
        """Sends the masks of a plan, of the last one if no number is given."""
        due = self.numbering.number if number is None else number
        self.send_message(pb.ToWorker(masks=pb.Masks(number=due, only=u32(list(only)), words=words)))

    def wait_begun(self) -> None:
        """Until the worker says so."""
        assert self.call.initial_metadata() is not None

    def cancel(self) -> None:
        """Goes away."""
        self.call.cancel()

    def receive(self) -> pb.StepResult:
        """The next result. Raises grpc.RpcError."""
        return next(self.call)

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> pb.StepResult:
        """Sends and receives."""
        self.send(rows, released)
        return self.receive()

    def end(self) -> None:
        """No more plans."""
        self._messages.put(None)


class FrameError(grpc.RpcError):
    """What a call in frames ended with, as gRPC tells it of a call of its own."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(details)
        self._code = next(known for known in grpc.StatusCode if known.value[0] == code)

    def code(self) -> grpc.StatusCode:
        """As of a call."""
        return self._code

    def details(self) -> str:
        """As of a call."""
        return str(self)


class FrameRun(Run):
    """The same at the worker's socket for frames."""

    def __init__(self, socket_path: Path) -> None:
        self.numbering = Numbering()
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(60)
        self.connection.connect(str(socket_path))
        self._incoming = self.connection.makefile("rb")
        self._has_begun = False

    def send_bytes(self, payload: bytes) -> None:
        """Sends a frame of them."""
        with contextlib.suppress(OSError):  # the worker has ended it; why is read
            self.connection.sendall(HEAD.pack(len(payload), 0) + payload)

    def send_message(self, message: pb.ToWorker) -> None:
        """Sends it as it is."""
        self.send_bytes(message.SerializeToString())

    def wait_begun(self) -> None:
        """Until the worker says so."""
        if not self._has_begun:
            self._has_begun = True
            assert self._read() == b""

    def receive(self) -> pb.StepResult:
        """The next result. Raises FrameError, and StopIteration at the end."""
        self.wait_begun()
        return pb.StepResult.FromString(self._read())

    def end(self) -> None:
        """No more plans."""
        self.connection.shutdown(socket.SHUT_WR)

    def cancel(self) -> None:
        """Goes away."""
        self._incoming.close()
        self.connection.close()

    def _read(self) -> bytes:
        if not (head := self._incoming.read(HEAD.size)):
            raise StopIteration
        length, code = HEAD.unpack(head)
        payload = self._incoming.read(length)
        if code:
            raise FrameError(code, payload.decode())
        return payload


def sampled(result: pb.StepResult) -> list[int]:
    """The column as a list."""
    return [int(t) for t in np.frombuffer(result.sampled, "<u4")]


def floats(column: bytes) -> list[float]:
    """A column of f32 as a list."""
    return [float(x) for x in np.frombuffer(column, "<f4")]


class Worker:
    """A worker process that listens; `log` holds its lines so far."""

    uses_frames = False
    """How `run` calls it."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        *arguments: str,
        program: tuple[str, ...] = ("-m", "penstock.worker"),
        ignores_signals: bool = False,
    ) -> None:
        """`ignores_signals`: it is started as the launcher starts it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.socket = folder / "worker.sock"
        self.log: list[dict[str, Any]] = []
        command = [
            sys.executable,
            *program,
            "--model-dir",
            str(model),
            "--listen",
            f"unix:{self.socket}",
        ]
        # The shell's `trap ''` outlives its exec.
        ignoring = ["sh", "-c", "trap '' TERM INT && exec \"$@\"", "sh"] if ignores_signals else []
        self.process = subprocess.Popen(
            [*ignoring, *command, "--device", DEVICE, *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"},
        )
        self._ready = threading.Event()
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"message": line, "level": "RAW"}
            self.log.append(entry)
            if entry["message"] == "ready":
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> Self:
        assert self._ready.wait(240)
        assert self.process.poll() is None, self.log
        self.channel = grpc.insecure_channel(f"unix:{self.socket}")
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait(10)

    def exit_status(self) -> int:
        """Waits for the end of the process and of its log."""
        status = self.process.wait(60)
        assert self._ready.wait(10)
        return status

    def describe(self) -> pb.ModelDescription:
        """Describe."""
        return self._unary("Describe", pb.DescribeRequest(), pb.ModelDescription)  # type: ignore[no-any-return]

    def prepare(self, **limits: Any) -> pb.Prepared:
        """Prepare, small unless said otherwise."""
        wanted = {
            "max_slots": 8,
            "max_step_tokens": 256,
            "max_sequence_tokens": 256,
            "max_cache_tokens": 4096,
            "memory_fraction": 0.9,
            "max_step_drafts": 16,
            **limits,
        }
        return self._unary("Prepare", pb.PrepareRequest(**wanted), pb.Prepared)  # type: ignore[no-any-return]

    def check(self) -> pb.CheckReply:
        """Check."""
        return self._unary("Check", pb.CheckRequest(), pb.CheckReply)  # type: ignore[no-any-return]

    def run(self) -> Run:
        """Begins a Run."""
        return FrameRun(UnixSocket(self.socket).for_frames) if self.uses_frames else Run(self.channel)

    def _unary(self, name: str, request: Any, reply: Any) -> Any:
        call = self.channel.unary_unary(
            f"/penstock.v1.Worker/{name}", type(request).SerializeToString, reply.FromString
        )
        return call(request, timeout=60)
