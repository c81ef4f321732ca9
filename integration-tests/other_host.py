"""Another host for a test: a network namespace, joined with this one by a cable that can be pulled. And what is started there: `penstock
worker`, as somebody would by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from launched import BINARY, START_DEADLINE, STOP_DEADLINE
from processes import MARK, Process, marked, wait_for

LISTENS = "the worker is loaded, and listens at"


def why_there_are_no_hosts() -> str | None:
    """What this machine lacks for namespaces of networks; None where they can be made."""
    if os.geteuid() != 0:
        return "making a network takes root"
    try:
        with Host():
            return None
    except subprocess.CalledProcessError as error:
        return f"no network can be made here: {' '.join(error.cmd)}: {error.stderr.strip()}"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


class Host:
    """Another host. It is at `address`."""

    def __init__(self) -> None:
        number = int(uuid.uuid4().hex[:3], 16)
        # Of the addresses for tests of devices between networks (RFC 2544).
        network = f"198.18.{number >> 6}.{(number & 63) * 4}"
        here, self.address = (f"{network.rsplit('.', 1)[0]}.{(number & 63) * 4 + at}" for at in (1, 2))
        self._near, self._far = f"psn{number:x}", f"psf{number:x}"
        self._here = here

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        try:
            own = os.readlink("/proc/self/ns/net")
            wait_for(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/net") != own, "a network of its own")
            run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far)
            run("ip", "link", "set", self._far, "netns", str(self._holder.pid))
            run("ip", "address", "add", f"{self._here}/30", "dev", self._near)
            run("ip", "link", "set", self._near, "up")
            run(*self.prefix, "ip", "address", "add", f"{self.address}/30", "dev", self._far)
            run(*self.prefix, "ip", "link", "set", "lo", "up")
            self.plug_in()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["ip", "link", "delete", self._near], capture_output=True)
        self._holder.kill()
        self._holder.wait(STOP_DEADLINE)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Runs the rest of a command there."""
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--")

    def pull_the_cable(self) -> None:
        """From now on nothing comes through, and nobody is told."""
        run(*self.prefix, "ip", "link", "set", self._far, "down")

    def plug_in(self) -> None:
        run(*self.prefix, "ip", "link", "set", self._far, "up")


class RemoteWorker:
    """One run of `penstock worker`. Its logs are `stdout` and `stderr` in `folder`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        prefix: Sequence[str] = (),
        program: Sequence[str] = (str(BINARY), "worker"),
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.mark = uuid.uuid4().hex
        inherited = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")
            if name in os.environ
        }
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                [*prefix, *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**inherited, "HF_HUB_OFFLINE": "1", **(env or {}), MARK: self.mark},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"--- the worker's log, {self.folder}:\n{self.log()[-8000:]}", file=sys.stderr)
        if self.process.poll() is None:
            for worker in self.workers():
                worker.signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            # A server that still uses it keeps it: the second one ends it at once.
            wait_for(lambda: self.process.poll() is not None or "SIGTERM" in self.log(), "the signal", 10)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_DEADLINE)
            wait_for(lambda: not marked(self.mark), "every process of the worker to end", 10)
        finally:
            for process in marked(self.mark):
                process.signal(signal.SIGKILL)
            self.process.wait(STOP_DEADLINE)

    def log(self) -> str:
        return "".join((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))

    def starts(self) -> int:
        """How many times the worker process has come to listen."""
        return self.log().count(LISTENS)

    def workers(self) -> list[Process]:
        return [process for process in marked(self.mark) if process.is_worker]

    def worker(self) -> Process:
        """The process that holds the model."""
        return wait_for(lambda: self.workers()[:1], "the worker process")[0]

    def wait_listening(self, starts: int = 1) -> Self:
        def listens() -> bool:
            code = self.process.poll()
            assert code is None, f"it ended with code {code}:\n{self.log()[-4000:]}"
            return self.starts() >= starts

        wait_for(listens, "the worker to listen", START_DEADLINE)
        return self
