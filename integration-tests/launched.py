"""The real `penstock` command as a test starts it: on a free port, watched, and ended by its own pid.

`Launched` is one run of the launcher with all that it started. Leaving it as a context manager ends it and
fails when a process of it is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import wire
from exposition import Exposition, parse
from penstock_kernels.cpu_engine import LIBRARY
from processes import MARK, Process, marked, wait_for

# Beside the interpreter that runs the tests: what `make install` put into the same environment.
BINARY = Path(sys.executable).parent / "penstock"

# With these flags equal means equal, whatever else is in the batch. The CPU engine, which computes bf16 alone, is batch-invariant
# and starts in a fraction of torch's time. torch takes another order of sums for another batch shape, and only in float32
# does that not tip a near-tie. PENSTOCK_TEST_ON_TORCH=1 runs the same tests on torch.
ON_TORCH = ("--dtype", "float32")
EXACT = ON_TORCH if os.environ.get("PENSTOCK_TEST_ON_TORCH") == "1" or not LIBRARY.exists() else ()

# Where the session's servers keep what they have packed: the flag's variable, which `conftest` sets.
PACKED_CACHE_DIR = "PACKED_CACHE_DIR"

# On PYTHONPATH, it makes workers that compute nothing, or that wait at their start.
NULL_WORKER = Path(__file__).parent / "null_worker"
# As long as a step of the shipped model takes.
NULL_STEP_US = 2000
# For texts of null workers that are to be under way until the test has done what it is about: long beside what a test stands still on a
# busy machine.
SLOW_STEPS = {"PENSTOCK_NULL_STEP_US": "40000"}

# Stops the process of a descriptor, and lets it run for a moment again and again. It goes before others, where it may, or a moment would
# be as long as they keep it waiting.
HOLDS = """
import os, signal, sys, time
descriptor = int(sys.argv[1])
try:
    os.nice(-20)
except PermissionError:
    pass
def send(number):
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        sys.exit()
send(signal.SIGSTOP)
print(flush=True)
while True:
    time.sleep(0.048)
    send(signal.SIGCONT)
    time.sleep(0.002)
    send(signal.SIGSTOP)
"""

# A cold start on a busy two-core machine takes a few seconds, most of it importing torch.
START_DEADLINE = 120.0
STOP_DEADLINE = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fair_share() -> dict[str, str]:
    """Beside other processes of tests, workers compute with this one's share of the processors: threads that wait for one that
    does not run make a step ten times as long."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes == 1:
        return {}
    return {"WORKER_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}


class Launched:
    """One run of `penstock`. Its logs are `stdout` and `stderr` in `folder`.

    `null_worker`: its workers are processes like any other, but compute nothing, start in a fraction of the time, and give
    any old text (`null_worker/null_startup.py`): for tests of the router and the launcher alone.
    `output`: a descriptor that gets its standard output and error; the files are empty then.
    `hold`: a file; a worker that starts while it exists waits before it loads (`null_worker/sitecustomize.py`).
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        prefix: Sequence[str] = (),
        null_worker: bool = False,
        binary: Path = BINARY,
        output: int | None = None,
        hold: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.hold = hold
        self.mark = uuid.uuid4().hex
        self.address = wire.Address("127.0.0.1", port or free_port())
        command = [
            *prefix,
            str(binary),
            "--hostname",
            self.address.host,
            "--port",
            str(self.address.port),
            *arguments,
        ]
        # Flags may come from the environment too; a test must not depend on the shell that runs it.
        kept = ["PATH", "HOME", "LANG", "TMPDIR"]
        if "--worker-address" not in arguments:
            kept.append(PACKED_CACHE_DIR)
        inherited = {name: os.environ[name] for name in kept if name in os.environ}
        if "--worker-address" not in arguments:
            inherited |= fair_share()
        if null_worker:
            inherited |= {"PYTHONPATH": str(NULL_WORKER), "PENSTOCK_NULL_STEP_US": str(NULL_STEP_US)}
        if hold is not None:
            inherited |= {"PYTHONPATH": str(NULL_WORKER), "PENSTOCK_HELD_START": str(hold)}
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out if output is None else output,
                stderr=err if output is None else output,
                env={**inherited, "HF_HUB_OFFLINE": "1", **(env or {}), MARK: self.mark},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"--- the server's log, {self.folder}:\n{self.log()[-8000:]}", file=sys.stderr)
            self.end_everything()
        else:
            self.stop()

    # What it is doing.

    @property
    def url(self) -> str:
        return self.address.url

    def log(self) -> str:
        return self.stdout() + self.stderr()

    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def wait_told(self, *texts: str) -> None:
        """Until its log has each of them: a thread writes it, and what a worker says comes by way of the launcher."""
        for text in texts:
            wait_for(lambda: text in self.log(), f"the log to say {text!r}")  # noqa: B023

    def processes(self) -> list[Process]:
        return marked(self.mark)

    def workers(self) -> list[Process]:
        return [process for process in self.processes() if process.is_worker]

    def worker(self, rank: int = 0) -> Process:
        """The process that holds the model, or the part of it that is this rank's."""
        (worker,) = wait_for(
            lambda: [worker for worker in self.workers() if worker.rank == rank][:1], f"worker {rank}"
        )
        return worker

    @contextlib.contextmanager
    def without_worker(self) -> Iterator[Process]:
        """The worker is killed, and the next one, which this gives, is held before it loads: the server recovers for as long as this lasts."""
        assert self.hold is not None, "the server's workers cannot be held"
        lost = self.worker()
        self.hold.touch()
        try:
            lost.signal(signal.SIGKILL)
            (next_one,) = wait_for(
                lambda: [worker for worker in self.workers() if worker.pid != lost.pid][:1], "the next worker"
            )
            wait_for(lambda: (reply := self.health()) and reply.status == 503, "the loss to be noticed")
            yield next_one
        finally:
            self.hold.unlink()

    @contextlib.contextmanager
    def halted_worker(self) -> Iterator[None]:
        """Nothing that is asked for is computed for as long as this lasts. The server has to be patient: `--step-timeout`."""
        worker = self.worker()
        worker.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def slow_worker(self) -> Iterator[Callable[[], None]]:
        """The worker runs 2 of every 50 ms, so that no answer is over before its first tokens were seen. Gives what kills it."""
        descriptor = os.pidfd_open(self.worker().pid)

        def send(number: signal.Signals) -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)

        # A process, since a thread of this one would wait for whatever the test does.
        holder = subprocess.Popen(
            [sys.executable, "-S", "-c", HOLDS, str(descriptor)],
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        try:
            holder.stdout.readline()
            yield lambda: send(signal.SIGKILL)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
            send(signal.SIGCONT)
            os.close(descriptor)

    def interruptions(self) -> Iterator[Callable[[], None]]:
        """Gives what kills the slow worker; again, up to five times, until a kill has interrupted something: on a busy machine a text
        may be over before its first tokens were seen.
        """

        for _ in range(5):
            recoveries, lost = len(self._went_on()), self.worker().pid
            with self.slow_worker() as kill:
                yield kill
            wait_for(partial(self._is_replaced, lost), "a new worker", 60)
            self.wait_ready()
            if any(self._went_on()[recoveries:]):
                return
        raise AssertionError("five times the texts were over before the worker was killed")

    def _is_replaced(self, worker: int) -> bool:
        return self.worker().pid != worker

    def _went_on(self) -> list[int]:
        """For each recovery so far: the sequences that were unfinished and went on behind it."""
        told = re.findall(r"streams go on.*?\bsequences=(\d+)", self.log())
        return [int(count) for count in told]

    def metrics(self) -> Exposition:
        return parse(wire.get(self.address, "/metrics").text)

    def health(self) -> wire.Reply | None:
        """None while nothing listens."""
        try:
            return wire.get(self.address, "/health", timeout=10)
        except OSError:
            return None

    # Its life.

    def wait_ready(self, seconds: float = START_DEADLINE) -> Launched:
        def ready() -> bool:
            code = self.process.poll()
            assert code is None, f"penstock ended with code {code} before it was ready:\n{self.log()[-4000:]}"
            reply = self.health()
            return reply is not None and reply.status == 200

        wait_for(ready, "the server to be ready", seconds)
        return self

    def wait_ended(self, seconds: float = STOP_DEADLINE) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, the exit code, and no process left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_DEADLINE)
            except subprocess.TimeoutExpired:
                self.end_everything()
                raise AssertionError(f"SIGTERM did not end the server:\n{self.log()[-4000:]}") from None
        self.assert_no_orphan()
        return self.process.returncode

    def assert_no_orphan(self, seconds: float = 10.0) -> None:
        try:
            wait_for(lambda: not self.processes(), "every process of the server to end", seconds)
        except AssertionError:
            left = self.processes()
            self.end_everything()
            raise AssertionError(f"left behind: {left}\n{self.log()[-4000:]}") from None

    def end_everything(self) -> None:
        """After a failure: by the mark, so that nothing of a broken run disturbs the next test."""
        for process in self.processes():
            try:
                process.signal(signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(STOP_DEADLINE)


def memory(launched: Launched, name: str = "VmRSS") -> int:
    """Of the router's process, in bytes; `VmHWM` is the most since `forget_the_peak`."""
    with open(f"/proc/{launched.process.pid}/status") as status:
        line = next(line for line in status if line.startswith(name))
    return int(line.split()[1]) * 1024


def forget_the_peak(launched: Launched) -> int:
    with open(f"/proc/{launched.process.pid}/clear_refs", "w") as clear:
        clear.write("5")
    return memory(launched)
