"""Worker sockets and rendezvous: what another program of this machine can reach of the workers.

Tried: every TCP port of a model in two shards, before and after a lost worker (gloo's took whoever connected: eight bytes
from each of 20 strangers held both ranks for as long as anybody looked, 40 s); the folder of the sockets removed
between two losses; a worker that prints one line without an end; a worker that stops while it loads; secrets in the
environment of the workers.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sys
import textwrap
from pathlib import Path

import pytest

import wire
from conftest import Launch
from launched import Launched
from load import ask, complete
from processes import Process, wait_for

STORY = complete("Once upon a time", 12)
# In hexadecimal, in /proc/net/tcp: a socket that takes connections.
LISTENING = "0A"


def listening_ports(process: Process) -> list[int]:
    """The TCP ports at which a process takes connections."""
    inodes = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING and words[9] in inodes:
                ports.append(int(words[1].rpartition(":")[2], 16))
    return ports


def socket_folder(process: Process) -> Path:
    words = process.command.split()
    return Path(words[words.index("--listen") + 1].removeprefix("unix:")).parent


def lose(launched: Launched, rank: int) -> None:
    worker = launched.worker(rank)
    worker.signal(signal.SIGKILL)
    wait_for(
        lambda: (
            len(launched.workers()) >= 1
            and all(other.pid != worker.pid for other in launched.workers())
            and wire.get(launched.address, "/health").status == 200
        ),
        "another worker",
        90,
    )


@pytest.mark.tail
@pytest.mark.parametrize(
    "division", [("--num-shard", "2"), pytest.param(("--pipeline-parallel", "2"), marks=pytest.mark.tail)]
)
def test_shards_on_cpus_listen_at_no_port_and_lose_nothing_to_strangers(
    launch: Launch, division: tuple[str, ...]
) -> None:
    launched = launch(*division, "--dtype", "float32").wait_ready()
    before = ask(launched.address, STORY)
    seen = 0
    for rank in (1, 0):
        killed = launched.worker(rank)
        killed.signal(signal.SIGKILL)

        def replaced(pid: int = killed.pid) -> bool:
            workers = [worker.pid for worker in launched.workers()]
            return len(workers) == 2 and pid not in workers

        wait_for(replaced, "new workers", 60)
        # All the while that the ranks find each other again.
        while wire.get(launched.address, "/health").status != 200:
            for worker in launched.workers():
                try:
                    assert listening_ports(worker) == [], f"{worker} can be reached over TCP"
                    seen += 1
                except FileNotFoundError:
                    continue  # it has just ended
        assert ask(launched.address, STORY) == before
    assert seen > 0, "no worker was looked at while it started"


def test_the_sockets_lie_in_a_folder_that_only_this_user_enters(launch: Launch) -> None:
    launched = launch("--num-shard", "2").wait_ready()
    folder = socket_folder(launched.worker(1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.geteuid()
    left = {path.name for path in folder.iterdir()}
    assert not any("ranks" in name for name in left), f"where ranks met is left open: {left}"


def test_a_folder_of_sockets_that_was_removed_is_made_again(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    before = ask(launched.address, STORY)
    for _ in range(2):
        folder = socket_folder(launched.worker())
        shutil.rmtree(folder)
        assert ask(launched.address, STORY) == before, "what is connected stays connected"
        lose(launched, 0)
        assert ask(launched.address, STORY) == before
    assert not folder.exists()
    new = socket_folder(launched.worker())
    assert stat.S_IMODE(new.stat().st_mode) == 0o700
    launched.stop()
    assert not new.exists(), "it goes with the server"


def test_workers_are_given_no_secrets(launch_null: Launch) -> None:
    secrets = {
        "API_KEY": "sesame",
        "HF_TOKEN": "sesame",
        "AWS_SECRET_ACCESS_KEY": "sesame",
        "DB_PASSWORD": "sesame",
    }
    launched = launch_null(env={**secrets, "OMP_WAIT_POLICY": "passive"}).wait_ready()
    given = Path(f"/proc/{launched.worker().pid}/environ").read_bytes().decode().split("\0")
    assert not [entry for entry in given if "sesame" in entry]
    assert "OMP_WAIT_POLICY=passive" in given, "what is no secret stays"
    assert wire.get(launched.address, "/v1/models").status == 401, "the key counts all the same"


def stand_in(folder: Path, script: str) -> tuple[str, ...]:
    """A program in place of Python that does this instead of what a worker does."""
    folder.mkdir(exist_ok=True)
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
    program.chmod(0o755)
    return ("--python", str(program))


def test_an_endless_line_of_a_worker_costs_no_memory(launch: Launch, tmp_path: Path) -> None:
    python = stand_in(
        tmp_path / "bin",
        """\
        import os
        for number in range(7_000):
            os.write(2, b"x" * 65536)
        open(os.path.join(os.path.dirname(__file__), "done"), "w").close()
        import time
        time.sleep(600)
        """,
    )
    model = Path(str(__import__("penstock").__file__)).parent / "tiny" / "model"
    launched = launch("--model-id", str(model), *python)
    wait_for((tmp_path / "bin" / "done").exists, "460 MB of one line", 120)
    (line,) = [
        line
        for line in Path(f"/proc/{launched.process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    assert int(line.split()[1]) < 300_000, line


def test_a_worker_that_hangs_while_it_loads_ends_the_start_with_the_reason(
    launch: Launch, tmp_path: Path
) -> None:
    python = stand_in(tmp_path / "bin", "import time\ntime.sleep(600)\n")
    model = Path(str(__import__("penstock").__file__)).parent / "tiny" / "model"
    launched = launch("--model-id", str(model), *python, "--load-timeout", "1")
    assert wire_refuses(launched)
    assert launched.wait_ended(60) == 1
    (line,) = launched.stderr().strip().splitlines()
    assert "failed to start 3 times" in line and "--load-timeout" in line, line


def wire_refuses(launched: Launched) -> bool:
    """Health says that it is not ready, as long as it is there."""
    health = wait_for(launched.health, "the port", 30)
    assert health is not None
    return health.status == 503


def test_a_recovery_whose_worker_is_stopped_while_it_loads_goes_on(launch: Launch, tmp_path: Path) -> None:
    launched = launch("--load-timeout", "5", hold=tmp_path / "hold").wait_ready()
    before = ask(launched.address, STORY)
    with launched.without_worker() as second:
        second.signal(signal.SIGSTOP)
    assert wire.get(launched.address, "/health").status == 503, "it is not ready, and says so"
    wait_for(lambda: wire.get(launched.address, "/health").status == 200, "recovery", 90)
    assert launched.worker().pid != second.pid
    assert "was stopped by a signal while it was loading" in launched.log()
    assert ask(launched.address, STORY) == before


def test_a_stranger_at_the_loopback_learns_nothing(launch: Launch) -> None:
    """Connections to every port that the whole server listens at: only the HTTP port is there."""
    launched = launch("--num-shard", "2").wait_ready()
    ports = {port for process in launched.processes() for port in listening_ports(process)}
    assert ports == {launched.address.port}
    with socket.create_connection((launched.address.host, launched.address.port)):
        assert ask(launched.address, STORY).error is None
