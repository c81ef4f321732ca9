"""Where the log goes: to a pipe that nobody reads, whose reader has left, or that is read late. None of them is the server's to wait for.

Standard output and error are one pipe, as with `2>&1 |` and in a container. What a line says is tested where it is said.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import wire
from conftest import Launch
from launched import Launched
from load import begin, complete, follow
from processes import wait_for

STORY = complete("A long story", 900)
# The least that Linux makes of a pipe (fcntl(2)): some twenty lines.
SMALLEST_PIPE = 4096
LOST = re.compile(r"lines of the log were lost.*\blines=(\d+)")


class Reader:
    """Reads a pipe from now on, until its end."""

    def __init__(self, descriptor: int) -> None:
        self._read = bytearray()
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while read := os.read(self._descriptor, 1 << 16):
            self._read += read
        os.close(self._descriptor)

    def so_far(self) -> str:
        return self._read.decode(errors="replace")

    def all(self) -> str:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the pipe has no end"
        return self.so_far()


def unread(launch: Launch, *arguments: str) -> tuple[Launched, int]:
    """A server whose log is a small pipe, and the end at which it is read."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    launched = launch(*arguments, output=writer)
    os.close(writer)
    return launched, reader


def ask_in_vain(address: wire.Address, times: int) -> None:
    """Each is a line `refused`."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
    for _ in range(times):
        connection.request("GET", "/no/such/route")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 404
    connection.close()


def test_a_log_that_nobody_reads_holds_up_nothing(launch_null: Launch) -> None:
    launched, reader = unread(launch_null)
    launched.wait_ready()
    ask_in_vain(launched.address, 500)
    assert wire.get(launched.address, "/health", timeout=20).status == 200
    with begin(launched.address, STORY) as story:
        launched.process.send_signal(signal.SIGTERM)
        assert follow(story, STORY).finish == "length"
    assert launched.wait_ended() == 0
    os.close(reader)


def test_a_log_that_is_read_late_has_lost_no_line(launch_null: Launch) -> None:
    launched, reader = unread(launch_null)
    launched.wait_ready()
    ask_in_vain(launched.address, 500)
    log = Reader(reader)

    def refused() -> int:
        return sum(" refused " in line and "/no/such/route" in line for line in log.so_far().splitlines())

    # Who ends waits for a reader, but not for long.
    wait_for(lambda: refused() == 500, "every line")
    launched.stop()
    assert "SIGTERM" in log.all() and not LOST.search(log.all()) and refused() == 500


def test_lines_that_find_no_room_are_lost_and_told(launch_null: Launch) -> None:
    launched, reader = unread(launch_null, "--log-prompts", "--max-client-batch-size", "100")
    launched.wait_ready()
    # A third of a megabyte for the line of each: more than waits at most.
    asked, body = 40, {"prompt": ["once upon a time " * 200] * 100, "max_tokens": 1}
    for _ in range(asked):
        assert wire.post(launched.address, "/v1/completions", body).status == 200
    log = Reader(reader)
    (told,) = wait_for(lambda: LOST.findall(log.so_far()), "the log to tell of what was lost", every=0.5)
    counted = launched.metrics().value("penstock_log_lines_lost")

    def answered() -> int:
        return sum(" answered " in line for line in log.so_far().splitlines())

    wait_for(lambda: answered() == asked - int(told), "the others to be read", every=0.5)
    launched.stop()
    assert log.all() and int(told) == counted == asked - answered() > 0


def test_a_log_whose_reader_has_left_disturbs_nothing(launch_null: Launch) -> None:
    """Who starts a server may read until it is ready, and go."""
    reader, writer = os.pipe()
    launched = launch_null(output=writer)
    os.close(writer)
    told = b""
    while b"ready in" not in told:
        told += os.read(reader, 1 << 16)
    os.close(reader)
    for _ in range(3):
        reply = wire.post(launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}})
        assert reply.status == 200
    assert launched.process.poll() is None
    with begin(launched.address, STORY) as story:
        launched.process.send_signal(signal.SIGTERM)
        assert follow(story, STORY).finish == "length"
    assert launched.wait_ended() == 0


def test_ctrl_c_beside_tee_drains(launch_null: Launch, tmp_path: Path) -> None:
    """The terminal sends SIGINT to both."""
    file = tmp_path / "server.log"
    with subprocess.Popen(["tee", str(file)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as tee:
        assert tee.stdin is not None
        launched = launch_null(output=tee.stdin.fileno())
        tee.stdin.close()
        launched.wait_ready()
        with begin(launched.address, STORY) as story:
            wait_for(lambda: "ready in" in file.read_text(), "the log to say that it is ready")
            tee.kill()  # as SIGINT ends it, unless whoever began the tests ignores that
            tee.wait(10)
            launched.process.send_signal(signal.SIGINT)
            assert follow(story, STORY).finish == "length"
        assert launched.wait_ended() == 0


def test_a_non_blocking_pipe_gets_every_line(launch_null: Launch) -> None:
    """Node makes the pipes so that it shares with its children."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    os.set_blocking(writer, False)
    launched = launch_null("--json-output", output=writer)
    os.close(writer)
    launched.wait_ready()
    ask_in_vain(launched.address, 100)
    log = Reader(reader)
    wait_for(lambda: log.so_far().count('"refused"') == 100, "every line")
    launched.stop()
    lines = [json.loads(line) for line in log.all().splitlines()]
    assert sum(line["message"] == "refused" for line in lines) == 100


def test_why_it_ends_is_the_last_that_is_said(launch_null: Launch, tmp_path: Path) -> None:
    for arguments in ([], ["--json-output"]):
        launched, reader = unread(launch_null, "--model-id", str(tmp_path / "no-such"), *arguments)
        log = Reader(reader)
        assert launched.wait_ended() == 1
        last = log.all().splitlines()[-1]
        assert "no-such" in last and (last.startswith("error: ") or json.loads(last)["level"] == "ERROR"), (
            last
        )


def test_why_it_ends_needs_no_reader(launch_null: Launch, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"full\n" * 800)
    except BlockingIOError:
        os.set_blocking(writer, True)
    launched = launch_null("--model-id", str(tmp_path / "no-such"), output=writer)
    os.close(writer)
    assert launched.wait_ended() == 1
    os.close(reader)
