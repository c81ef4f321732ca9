"""Workers on other hosts: started by hand, reached by mutual TLS, killed, frozen, vanished; and all that keeps one from being reached.

Another host is a network namespace (`other_host.py`). Where none can be made these tests are skipped with the reason, or fail where all have to run; what needs no
network of its own runs at the loopback.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import wire
from conftest import Launch
from launched import (
    BINARY,
    EXACT,
    NULL_STEP_US,
    NULL_WORKER,
    ON_TORCH,
    START_DEADLINE,
    Launched,
    free_port,
)
from load import Ask, ask, ask_all, ask_all_through, begin, complete, follow, generate, once
from other_host import Host, RemoteWorker, why_there_are_no_hosts
from processes import wait_for
from programs import installed, missing, needs

pytestmark = needs("openssl")

PORT = 9000
STORY = complete("Once upon a time", 40)


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._openssl(
            "req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={folder.name}",
            "-keyout", str(folder / "ca.key"), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str, hosts: str) -> tuple[Path, Path]:
        """A certificate for these hosts, as OpenSSL writes them, and its key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\n")
        self._openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        self._openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key"),
            "-CAcreateserial", "-days", "2", "-out", str(certificate), "-extfile", str(extensions),
        )  # fmt: skip
        return certificate, key

    def of_worker(self, hosts: str) -> tuple[str, ...]:
        certificate, key = self.sign("worker", hosts)
        return tuple(map(str, ("--tls-cert", certificate, "--tls-key", key, "--tls-ca", self.certificate)))

    def of_router(self) -> tuple[str, ...]:
        certificate, key = self.sign("router", "DNS:router")
        ca = self.certificate
        return tuple(
            map(str, ("--worker-tls-cert", certificate, "--worker-tls-key", key, "--worker-tls-ca", ca))
        )

    @staticmethod
    def _openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@dataclass
class Far:
    host: Host
    worker: RemoteWorker
    server: Launched


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Far]:
    """A server here, and its worker on another host."""
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        installed(program, package=package)
    if why := why_there_are_no_hosts():
        missing(why)
    folder = tmp_path_factory.mktemp("far")
    with Host() as host:
        address = f"tls:{host.address}:{PORT}"
        worker = RemoteWorker(
            folder / "worker", *EXACT, "--listen", f"tls:0.0.0.0:{PORT}",
            *authority.of_worker(f"IP:{host.address}"), prefix=host.prefix,
        )  # fmt: skip
        flags = ("--worker-address", address, *authority.of_router(), "--step-timeout", "2")
        with worker, Launched(folder / "server", *flags) as server:
            yield Far(host, worker, server.wait_ready())


def requests() -> list[Ask]:
    """So long that none is over before a fault at its beginning."""
    asks = [
        generate(f"story {number}: once upon a time", 600, do_sample=True, seed=number) for number in range(2)
    ]
    return asks + [complete(f"and then {number} of them", 600 + number) for number in range(2)]


def test_a_worker_on_another_host_answers_as_a_local_one(far: Far, exact: wire.Address) -> None:
    assert far.server.workers() == [], "nothing computes here"
    for one, other in zip(ask_all(far.server.address, requests()), ask_all(exact, requests()), strict=True):
        assert one.same_as(other)


def kill(far: Far) -> Callable[[], object]:
    """And the next one is halted, whether it has come to listen or not: so the loss is seen, however long the test stands still."""
    starts, lost = far.worker.starts(), far.worker.worker()
    lost.signal(signal.SIGKILL)
    (halted,) = wait_for(
        lambda: [worker for worker in far.worker.workers() if worker.pid != lost.pid][:1], "the next worker"
    )
    halted.signal(signal.SIGSTOP)

    def mend() -> None:
        halted.signal(signal.SIGCONT)
        far.worker.wait_listening(starts + 1)

    return mend


def freeze(far: Far) -> Callable[[], object]:
    worker = far.worker.worker()
    worker.signal(signal.SIGSTOP)
    return lambda: worker.signal(signal.SIGCONT)


def vanish(far: Far) -> Callable[[], object]:
    far.host.pull_the_cable()
    return far.host.plug_in


@pytest.mark.parametrize(
    "fault",
    [kill, *(pytest.param(other, marks=pytest.mark.tail) for other in (freeze, vanish))],
    ids=lambda fault: str(fault.__name__),
)
def test_a_worker_that_is_lost_and_comes_back_loses_no_token(
    fault: Callable[[Far], Callable[[], object]], far: Far, exact: wire.Address
) -> None:
    expected = ask_all(exact, requests())

    def restarts() -> float:
        return far.server.metrics().value("penstock_worker_restarts")

    before = restarts()

    def strike_and_mend() -> None:
        mend = fault(far)
        lost = wait_for(lambda: not_ready(far.server), "health to say that the worker is lost", 90)
        assert "worker 0" in lost, lost
        mend()

    found = ask_all_through(far.server, requests(), strike_and_mend, at=80)
    for request, one, other in zip(requests(), found, expected, strict=True):
        assert one.same_as(other), f"{request}: {one} instead of {other}"
    # What is read may have been computed before the worker was lost.
    wait_for(lambda: restarts() > before, "the worker to be back", 60)
    far.server.wait_told("is not ours to start")
    far.server.wait_ready()


def not_ready(server: Launched) -> str | None:
    reply = server.health()
    assert reply is not None, "the server itself must stay up"
    return str(reply.json()["error"]) if reply.status == 503 else None


def test_an_idle_worker_whose_host_vanishes_is_missed_and_found_again(far: Far) -> None:
    far.host.pull_the_cable()
    wait_for(lambda: not_ready(far.server), "health to say that the worker is lost", 60)
    refused = wire.post(far.server.address, "/generate", {"inputs": "x"})
    assert refused.status == 503 and "worker 0" in refused.json()["error"]
    far.host.plug_in()
    wait_for(lambda: not_ready(far.server) is None, "the worker to be found again", 60)
    assert ask(far.server.address, STORY).error is None


def ended(launched: Launched) -> str:
    """Why a server did not start."""
    assert launched.wait_ended(60) == 1, launched.log()[-4000:]
    return launched.stderr().strip().splitlines()[-1]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    """A worker at the loopback that speaks TLS: its port."""
    port = free_port()
    flags = ("--listen", f"tls:127.0.0.1:{port}", *authority.of_worker("IP:127.0.0.1"))
    with RemoteWorker(tmp_path_factory.mktemp("near"), *EXACT, *flags) as worker:
        worker.wait_listening()
        yield str(port)


def test_a_router_of_another_authority_is_refused_and_told_so(
    near: str, launch: Launch, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    why = ended(launch("--worker-address", f"tls:127.0.0.1:{near}", *stranger.of_router()))
    assert f"tls:127.0.0.1:{near} has another certificate than it should" in why and "UnknownIssuer" in why, (
        why
    )


def test_a_router_whose_certificate_the_worker_does_not_know_is_told_so(
    near: str, launch: Launch, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path / "stranger").sign("router", "DNS:router")
    mixed = (
        "--worker-tls-cert",
        certificate,
        "--worker-tls-key",
        key,
        "--worker-tls-ca",
        authority.certificate,
    )
    flags = ("--worker-address", f"tls:127.0.0.1:{near}", *map(str, mixed), "--load-timeout", "1")
    why = ended(launch(*flags))
    assert "perhaps it does not take this server's certificate" in why, why


def test_a_worker_whose_certificate_is_for_another_host_is_refused(
    near: str, launch: Launch, authority: Authority
) -> None:
    why = ended(launch("--worker-address", f"tls:localhost:{near}", *authority.of_router()))
    assert "another certificate" in why and "localhost" in why, why


def test_a_plain_router_at_a_tls_worker_is_told_what_it_may_be(near: str, launch: Launch) -> None:
    why = ended(launch("--worker-address", f"tcp:127.0.0.1:{near}", "--load-timeout", "1"))
    assert "perhaps it speaks TLS only" in why and "--load-timeout" in why, why


def test_a_tls_router_at_a_plain_worker_and_one_with_other_limits(
    launch: Launch, authority: Authority, tmp_path: Path
) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    # The worker comes later: it is waited for.
    server = launch("--worker-address", f"tcp:{address}", "--max-batch-size", "8")
    wait_for(lambda: "is out of reach" in server.log(), "the log to say what is in the way", 60)
    with RemoteWorker(tmp_path / "worker", *EXACT, "--listen", f"tcp:{address}") as worker:
        server.wait_ready()
        before = ask(server.address, STORY)
        assert before.error is None
        server.stop()
        assert worker.starts() == 1
        again = launch("--worker-address", f"tcp:{address}", "--max-batch-size", "8").wait_ready()
        assert ask(again.address, STORY).same_as(before) and worker.starts() == 1, "it is used as it is"
        again.stop()
        other = launch("--worker-address", f"tcp:{address}", "--max-batch-size", "4").wait_ready()
        assert ask(other.address, STORY).same_as(before)
        assert worker.wait_listening(2).starts() == 2, "it has started anew"
        other.stop()
        why = ended(
            launch("--worker-address", f"tls:{address}", *authority.of_router(), "--load-timeout", "1")
        )
        assert "does not speak TLS" in why, why


def test_a_record_is_executed_again_by_a_worker_behind_tls(
    near: str, launch: Launch, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "record"
    server = launch(*EXACT, "--record", str(file)).wait_ready()
    assert ask(server.address, STORY).error is None
    server.stop()

    def replay(*flags: str) -> tuple[int, str]:
        command = [str(BINARY), "replay", str(file), "--worker", f"tls:127.0.0.1:{near}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    code, told = replay(*authority.of_router())
    assert code == 0 and told.startswith("every result is the same"), told
    code, told = replay()
    assert code == 1 and "--worker tls:127.0.0.1" in told and "--worker-tls-cert" in told, told
    code, told = replay(*authority.of_router()[:2])
    assert code == 1 and "--worker-tls-ca go together" in told, told


def test_a_worker_of_another_version_ends_the_start(launch: Launch, tmp_path: Path) -> None:
    port = free_port()
    package = Path(str(__import__("penstock").__file__)).parent
    code = (
        "import penstock.proto.contract as contract; contract.CONTRACT ^= 1\n"
        "from penstock.worker import main; main()"
    )
    arguments = ("--model-dir", str(package / "tiny" / "model"), "--listen", f"tcp:127.0.0.1:{port}")
    with RemoteWorker(tmp_path / "worker", *arguments, program=(sys.executable, "-c", code)):
        why = ended(launch("--worker-address", f"tcp:127.0.0.1:{port}"))
        assert "of another version than this router" in why, why


@pytest.fixture
def null_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RemoteWorker, str]]:
    """A worker that computes nothing, and its address; with the flags of the test's `param`."""
    with tempfile.TemporaryDirectory() as folder:
        kind, *flags = request.param
        address = f"unix:{folder}/worker" if kind == "unix" else f"tcp:127.0.0.1:{free_port()}"
        env = {"PYTHONPATH": str(NULL_WORKER), "PENSTOCK_NULL_STEP_US": str(NULL_STEP_US)}
        with RemoteWorker(tmp_path / "worker", "--listen", address, *flags, env=env) as worker:
            yield worker.wait_listening(), address


LONG = complete("A long story", 900)


@pytest.mark.parametrize("null_worker", [("tcp",), ("unix",)], indirect=True, ids=lambda kind: kind[0])
def test_a_signal_to_all_hosts_drains(launch: Launch, null_worker: tuple[RemoteWorker, str]) -> None:
    """As Slurm sends it (`scancel`)."""
    worker, address = null_worker
    server = launch("--worker-address", address).wait_ready()
    undisturbed = ask(server.address, LONG)
    with begin(server.address, LONG) as story:
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "SIGTERM" in worker.log(), "the worker's host to hear it")
        server.process.send_signal(signal.SIGTERM)
        assert follow(story, LONG).same_as(undisturbed), server.log()
    assert server.wait_ended() == 0
    assert worker.process.wait(10) == 0 and worker.starts() == 1, worker.log()


@pytest.mark.parametrize(
    "null_worker",
    [("tcp",), ("tcp", "--shutdown-timeout", "0")],
    indirect=True,
    ids=["a second signal", "its time"],
)
def test_a_server_that_does_not_leave_keeps_a_worker_no_longer(
    launch: Launch, null_worker: tuple[RemoteWorker, str], request: pytest.FixtureRequest
) -> None:
    worker, address = null_worker
    launch("--worker-address", address).wait_ready()
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "SIGTERM" in worker.log(), "the worker's host to hear it")
    if "second" in request.node.name:
        assert worker.process.poll() is None and worker.workers(), worker.log()
        worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(10) == 0


@pytest.mark.parametrize("null_worker", [("tcp",)], indirect=True, ids=["tcp"])
def test_a_worker_that_no_server_uses_ends_at_once(
    launch: Launch, null_worker: tuple[RemoteWorker, str]
) -> None:
    worker, address = null_worker
    server = launch("--worker-address", address).wait_ready()
    assert ask(server.address, STORY).error is None
    server.stop()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(10) == 0


def rank_of_two(folder: Path, rank: int, port: int, meeting: int, *arguments: str) -> RemoteWorker:
    """One of two ranks, each of which `penstock worker` watches alone."""
    place = ("--master-addr", "127.0.0.1", "--master-port", str(meeting), "--listen", f"tcp:127.0.0.1:{port}")
    which = ("--num-shard", "2", "--rank", str(rank), "--worker-threads", "1")
    return RemoteWorker(
        folder / f"rank-{rank}", *ON_TORCH, *which, *place, *arguments, env={"GLOO_SOCKET_IFNAME": "lo"}
    )


def test_a_rank_whose_peer_comes_late_waits_for_it(tmp_path: Path) -> None:
    meeting, load_timeout = free_port(), 8
    with rank_of_two(tmp_path, 0, free_port(), meeting, "--load-timeout", str(load_timeout)) as first:
        process = first.worker()
        began = time.monotonic()
        where = f"waits for the other ranks at tcp://127.0.0.1:{meeting}/"
        wait_for(lambda: where in first.log(), "the line that it waits", START_DEADLINE)
        wait_for(
            lambda: time.monotonic() - began > 2 * load_timeout or "no progress" in first.log(),
            "twice its time to pass",
            3 * load_timeout,
        )
        with rank_of_two(tmp_path, 1, free_port(), meeting) as second:
            second.wait_listening()
            first.wait_listening()
            assert first.worker().pid == process.pid, first.log()


def test_two_ranks_meet_anew_when_one_is_lost(launch: Launch, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    meeting = free_port()
    ranks = [rank_of_two(tmp_path, rank, port, meeting) for rank, port in enumerate(ports)]
    with ranks[0], ranks[1]:
        addresses = ",".join(f"tcp:127.0.0.1:{port}" for port in ports)
        server = launch("--worker-address", addresses, "--step-timeout", "5").wait_ready()
        before = ask(server.address, STORY)
        lost = ranks[1].worker()
        assert ask(server.address, STORY, once(lambda: lost.signal(signal.SIGKILL))).same_as(before)
        # The text may be over before the loss is noticed.
        for rank in ranks:
            rank.wait_listening(2)
        server.wait_ready()
        assert ranks[0].starts() == 2 and ranks[1].starts() == 2
