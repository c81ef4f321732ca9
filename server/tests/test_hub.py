"""`python -m penstock.download` with the real `huggingface_hub` client against a hub on loopback."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import WeakFileLock

from hub_server import Fault, Hub, Repo, etag
from penstock.hub import cache, client, content
from penstock.hub.request import Request, Unavailable

CONFIG = b'{"model_type": "llama"}'
# `huggingface_hub` writes in pieces of 10 MiB; only whole pieces can be resumed.
PIECE = 10 << 20
WEIGHTS = bytes(range(256)) * 100_000
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "generation_config.json": b"{}",
    "chat_template.jinja": b"hello",
    "additional_chat_templates/tool.jinja": b"tools",
    "model.safetensors": WEIGHTS,
    "README.md": b"read me",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same again",
    "onnx/model.onnx": b"other",
}
NEEDED = {
    name for name in FILES if not name.endswith((".md", ".bin", ".onnx")) and "consolidated" not in name
}


@dataclass
class Ended:
    code: int
    lines: list[dict[str, Any]]
    stderr: str

    @property
    def folder(self) -> Path:
        assert self.code == 0, (self.lines, self.stderr)
        return Path(self.lines[-1]["snapshot"]["folder"])

    @property
    def failure(self) -> str:
        assert self.code == 1, (self.code, self.lines, self.stderr)
        failure = self.lines[-1]["failed"]
        assert isinstance(failure, str) and "\n" not in failure and "Traceback" not in self.stderr, failure
        return failure


@dataclass
class Machine:
    """A home directory of its own, so that no test sees this machine's cache or token."""

    home: Path
    hub: Hub

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.download", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "HOME": str(self.home), "HF_ENDPOINT": self.hub.url, **env},
        )

    def run(self, *arguments: str, **env: str) -> Ended:
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=120)
        return Ended(process.returncode, [json.loads(line) for line in out.splitlines()], err)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Hub({"owner/model": Repo(dict(FILES))}) as hub:
        yield Machine(tmp_path, hub)


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_a_download_takes_what_is_needed_and_nothing_else(machine: Machine) -> None:
    ended = machine.run("owner/model")
    assert names_in(ended.folder) == NEEDED
    assert (ended.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert ended.lines[-1]["snapshot"]["commit"] == "a" * 40
    fetched = machine.hub.bodies()
    assert not {"README.md", "pytorch_model.bin", "consolidated.safetensors", "model.onnx"} & set(fetched)


def test_what_is_there_is_not_fetched_again(machine: Machine) -> None:
    first = machine.run("owner/model").folder
    machine.hub.seen.clear()
    assert machine.run("owner/model").folder == first
    assert machine.hub.bodies() == []


def test_the_task_that_the_hub_names_is_handed_up(machine: Machine) -> None:
    """It comes with the listing: no other question is asked for it. Without the hub nobody knows it."""
    machine.hub.repos["owner/tagged"] = Repo(dict(FILES), pipeline_tag="text2text-generation")
    assert machine.run("owner/model").lines[-1]["snapshot"]["pipeline_tag"] is None
    asked = len(machine.hub.seen)
    machine.hub.seen.clear()
    assert machine.run("owner/tagged").lines[-1]["snapshot"]["pipeline_tag"] == "text2text-generation"
    assert len(machine.hub.seen) == asked
    offline = machine.run("owner/tagged", HF_HUB_OFFLINE="1")
    assert offline.lines[-1]["snapshot"]["pipeline_tag"] is None


def test_shards_are_those_that_the_index_names(machine: Machine) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    shards = {"model-00001-of-00002.safetensors": WEIGHTS, "model-00002-of-00002.safetensors": WEIGHTS[1:]}
    files = {
        "config.json": CONFIG,
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    machine.hub.repos["owner/sharded"] = Repo({**files, **shards, "model.fp16.safetensors": b"other"})
    folder = machine.run("owner/sharded").folder
    assert names_in(folder) == {*files, *shards}
    assert all((folder / name).read_bytes() == content for name, content in shards.items())


def test_a_broken_connection_is_resumed_where_it_broke(machine: Machine) -> None:
    machine.hub.cut_after, machine.hub.cuts = PIECE + 1000, 1
    folder = machine.run("owner/model").folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [seen.range for seen in machine.hub.seen if seen.method == "GET" and "/content/" in seen.path]
    assert ranges == [None, f"bytes={PIECE}-"]


@pytest.mark.parametrize("status", [400, 403, 410])
def test_a_link_that_has_expired_is_asked_for_again(machine: Machine, status: int) -> None:
    """Where the connection to the store breaks an hour into the download of a file."""
    machine.hub.cut_after, machine.hub.cuts = PIECE + 1000, 1
    machine.hub.faults = [Fault("GET", "/content/", status, passed=1)]
    folder = machine.run("owner/model").folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    asked = [seen for seen in machine.hub.seen if seen.path.endswith("/model.safetensors")]
    transfers = [seen.range for seen in asked if seen.method == "GET" and "/content/" in seen.path]
    assert transfers == [None, f"bytes={PIECE}-", f"bytes={PIECE}-"]


def test_a_store_that_refuses_every_link_is_named_and_not_the_token(machine: Machine) -> None:
    machine.hub.cut_after, machine.hub.cuts = PIECE + 1000, 1
    machine.hub.faults = [Fault("GET", "/content/", 403, passed=1, times=1000)]
    failure = machine.run("owner/model", HF_TOKEN="hf_sesame").failure
    store = machine.hub.content_url.removeprefix("http://")
    assert f"{store}, which stores model.safetensors, answers with status 403" in failure
    assert "token" not in failure and "the hub answers" not in failure
    transfers = [seen for seen in machine.hub.seen if seen.method == "GET" and "/content/" in seen.path]
    assert len(transfers) == 3, "a second link brought nothing"
    assert all(seen.authorization is None for seen in transfers)


def test_a_killed_download_goes_on_where_it_was(machine: Machine) -> None:
    machine.hub.cut_after, machine.hub.cuts, machine.hub.hold = PIECE + 1000, 1, threading.Event()
    process = machine.start("owner/model")
    assert machine.hub.holding.wait(60)
    partial = wait_for_partial(machine.home, PIECE - (1 << 20))
    process.kill()
    process.communicate()
    kept = partial.stat().st_size
    folder = machine.run("owner/model").folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    last = [seen for seen in machine.hub.seen if seen.method == "GET" and "/content/" in seen.path][-1]
    assert last.range == f"bytes={kept}-"
    assert not list(folder.parent.parent.glob("blobs/*.incomplete"))


def test_content_in_chunks_that_the_library_may_not_fetch_goes_on_where_it_was(machine: Machine) -> None:
    machine.hub.repos["owner/model"].xet = True
    machine.hub.cut_after, machine.hub.cuts, machine.hub.hold = PIECE + 1000, 1, threading.Event()
    process = machine.start("owner/model", HF_HUB_DISABLE_XET="1")
    assert machine.hub.holding.wait(60)
    partial = wait_for_partial(machine.home, PIECE - (1 << 20))
    process.kill()
    process.communicate()
    kept = partial.stat().st_size
    folder = machine.run("owner/model", HF_HUB_DISABLE_XET="1").folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    last = [seen for seen in machine.hub.seen if seen.method == "GET" and "/content/" in seen.path][-1]
    assert last.range == f"bytes={kept}-"


def wait_for_partial(home: Path, size: int) -> Path:
    """The unfinished file, once this much of it is on the disk (the writer buffers the rest)."""
    deadline = threading.Event()
    for _ in range(6000):
        for file in home.rglob("*.incomplete"):
            if file.stat().st_size >= size:
                return file
        deadline.wait(0.01)
    raise AssertionError("nothing was written")


def test_pieces_that_do_not_fit_are_noticed(machine: Machine) -> None:
    machine.hub.cut_after, machine.hub.cuts, machine.hub.hold = PIECE + 1000, 1, threading.Event()
    process = machine.start("owner/model")
    assert machine.hub.holding.wait(60)
    partial = wait_for_partial(machine.home, PIECE - (1 << 20))
    process.kill()
    process.communicate()
    with partial.open("r+b") as file:
        file.write(b"spoilt")
    assert "model.safetensors" in machine.run("owner/model").failure
    assert (machine.run("owner/model").folder / "model.safetensors").read_bytes() == WEIGHTS


@dataclass
class Server:
    """One of two, each a thread here, that fetch the same file into one cache."""

    hub: Hub
    request: Request

    def fetch(self) -> None:
        content.fetch_resumable(self.request, "a" * 40, "model.safetensors")

    def begin(self) -> tuple[Thread, Path]:
        """The hub's answer stops after a piece. It ends, and the rest is asked for, with `end`."""
        self.hub.cut_after, self.hub.cuts, self.hub.hold = PIECE + 1000, 1, threading.Event()
        first = Thread(self.fetch)
        assert self.hub.holding.wait(60)
        partial = wait_for_partial(self.request.cache, PIECE - (1 << 20))
        return first, partial

    def end(self, *threads: Thread) -> None:
        assert self.hub.hold is not None
        self.hub.hold.set()
        for thread in threads:
            thread.ended()
        (blob,) = (self.request.storage / "blobs").iterdir()
        assert blob.name == content.sha256(blob)

    def transfers(self) -> list[str | None]:
        return [seen.range for seen in self.hub.seen if seen.method == "GET" and "/content/" in seen.path]


class Thread(threading.Thread):
    """Whose failure is the test's, and which has files of its own as a process has."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True, name=os.urandom(4).hex())
        self._work = work
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as failure:
            self._failure = failure

    def ended(self) -> None:
        self.join(60)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def on_network(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A cache on a file system whose locks say nothing of other machines."""
    use_in_process(machine.hub, monkeypatch)
    monkeypatch.setattr(content, "has_binding_locks", lambda _: False)
    monkeypatch.setattr(content, "TURN_SECONDS", 0.01)

    def own_file(blob: Path) -> Path:
        return blob.with_name(f"{blob.name}.{threading.current_thread().name}{content.UNFINISHED}")

    monkeypatch.setattr(content, "own_file", own_file)
    return Server(machine.hub, Request("owner/model", None, tmp_path / "hub"))


def test_where_locks_bind_nobody_a_server_waits_for_the_one_that_fetches(
    on_network: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flock` succeeds for every node on Lustre and GPFS, and on NFS that is mounted with `local_lock`."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    first, _ = on_network.begin()
    second = Thread(on_network.fetch)
    second.join(0.3)
    assert second.is_alive() and on_network.transfers() == [None]
    on_network.end(first, second)
    assert on_network.transfers() == [None, f"bytes={PIECE}-"]


@pytest.mark.parametrize("is_first_to_end", [True, False])
def test_a_server_that_was_silent_for_long_and_lives_is_no_loss(
    is_first_to_end: bool, on_network: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is taken over. What it still writes there is the same, and no name of it is published."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    first, partial = on_network.begin()
    os.utime(partial, (1, 1))
    if is_first_to_end:  # of what the second has taken over, before it has all
        fetch_rest, taken, go_on = content.fetch_rest, threading.Event(), threading.Event()

        def waits(*given: Any) -> int:
            taken.set()
            assert go_on.wait(60)
            return fetch_rest(*given)

        monkeypatch.setattr(content, "fetch_rest", waits)
        second = Thread(on_network.fetch)
        assert taken.wait(60) and not partial.exists()
        assert on_network.hub.hold is not None
        on_network.hub.hold.set()
        first.join(3)
        assert first.is_alive(), "it waits for the other one"
        go_on.set()
    else:
        second = Thread(on_network.fetch)
        second.ended()
    on_network.end(first, second)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EWOULDBLOCK])
def test_a_lock_that_cannot_be_had_is_not_waited_for_for_ever(
    number: int, on_network: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are none, and a marker in its place is of a process that was killed; or it is of a host that is gone."""

    def refuses(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    monkeypatch.setattr(content, "QUIET_SECONDS", 0.5)
    blob = on_network.request.storage / "blobs" / etag(WEIGHTS)
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.penstock.lock").write_text("4711\nanother-host\n")
    left = blob.with_name(f"{blob.name}.0a1b2c3d.penstock.incomplete")
    left.write_bytes(WEIGHTS[:PIECE])
    on_network.hub.hold = threading.Event()
    on_network.end(Thread(on_network.fetch))
    assert on_network.transfers() == [f"bytes={PIECE}-"], "what the killed one had is gone on with"


def test_locks_bind_everybody_on_disks_of_the_machine_only() -> None:
    mounts = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:45 / /data rw,relatime shared:3 - nfs4 server:/export rw,vers=4.2,local_lock=none
41 27 254:1 / /data/own\\040disk rw,relatime - xfs /dev/vdb rw
42 27 0:46 / /scratch rw - ext4 /dev/vdc rw
43 42 0:47 / /scratch rw - lustre mgs@tcp:/fs rw,flock
"""
    for place, found in (
        ("/home", "ext4"),
        ("/data/hub", "nfs4"),
        ("/database", "ext4"),
        ("/data/own disk/hub", "xfs"),
        ("/scratch/hub", "lustre"),
    ):
        assert content.file_system(Path(place), mounts) == found
    assert content.file_system(Path("/data"), "") == ""
    assert "xfs" in content.DISKS and not {"nfs4", "lustre", ""} & content.DISKS


def test_a_revision_is_a_branch_or_a_commit(machine: Machine) -> None:
    machine.hub.repos["owner/model"].branches = ("main", "next")
    assert machine.run("owner/model", "--revision", "next").folder.name == "a" * 40
    assert machine.run("owner/model", "--revision", "a" * 40).folder.name == "a" * 40
    assert "no revision nowhere" in machine.run("owner/model", "--revision", "nowhere").failure


@pytest.mark.parametrize("asked_for", ["/models/owner/model", "/model.safetensors"])
def test_a_commit_during_a_download_is_for_the_next_one(machine: Machine, asked_for: str) -> None:
    old = machine.hub.repos["owner/model"]
    new = Repo({**FILES, "config.json": b"{}", "tokenizer_config.json": b"[]"}, "b" * 40, before=old)
    machine.hub.push = (asked_for, "owner/model", new)
    folder = machine.run("owner/model").folder
    assert folder.name == "a" * 40 and machine.hub.push is None
    assert all((folder / name).read_bytes() == FILES[name] for name in NEEDED)
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").folder == folder
    assert machine.run("owner/model").folder.name == "b" * 40
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").folder.name == "b" * 40


def test_where_the_newest_commit_did_not_come_the_one_before_is_served(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    index = json.dumps({"weight_map": {"a": "absent.safetensors"}}).encode()
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors.index.json": index}
    machine.hub.repos["owner/model"] = Repo(files, "b" * 40)
    assert "absent.safetensors" in machine.run("owner/model").failure
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").folder == folder


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "CAS service error : IO Error: No space left on device (os error 28)",
            "the disk is full: o/n does not",
        ),
        ("CAS Client Error: Request middleware error", "(CAS Client Error: Request middleware error), and"),
        ("I/O error: I/O error: Permission denied (os error 13)", "/home/xet: user"),
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, OSError])
def test_what_goes_wrong_in_chunks_is_said_in_a_line(
    said: str, told: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf_xet raises RuntimeError, or OSError without a number, whatever it is."""
    monkeypatch.setattr(constants, "HF_HOME", "/home")
    monkeypatch.delenv("HF_XET_CACHE", raising=False)

    def fails(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        raise LocalEntryNotFoundError("no") if local_files_only else kind(said)

    for module in (client, cache):
        monkeypatch.setattr(module, "snapshot_download", fails)
    request = Request("o/n", None, tmp_path)
    with pytest.raises(Unavailable) as failed:
        client.obtain(request, lambda request: client.snapshot(request, "a" * 40, ["config.json"]))
    assert told in str(failed.value)


def test_a_model_that_does_not_exist_is_named(machine: Machine) -> None:
    failure = machine.run("owner/nothing").failure
    assert "owner/nothing" in failure and "HF_TOKEN" in failure


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_gated_model_needs_a_token_which_only_the_hub_sees(machine: Machine, variable: str) -> None:
    machine.hub.repos["owner/model"].token = "hf_sesame"
    failure = machine.run("owner/model").failure
    assert "gated" in failure and "HF_TOKEN" in failure
    assert "hf_wrong" not in machine.run("owner/model", **{variable: "hf_wrong"}).failure
    machine.hub.seen.clear()
    ended = machine.run("owner/model", **{variable: "hf_sesame"})
    assert names_in(ended.folder) == NEEDED
    assert "hf_sesame" not in json.dumps(ended.lines) + ended.stderr
    assert all(seen.authorization is None for seen in machine.hub.seen if "/content/" in seen.path)


def test_offline_serves_the_cache_without_a_request(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    machine.hub.seen.clear()
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").folder == folder
    assert machine.hub.seen == []


def test_offline_without_a_complete_cache_says_what_is_missing(machine: Machine) -> None:
    assert "HF_HUB_OFFLINE" in machine.run("owner/model", HF_HUB_OFFLINE="1").failure
    (machine.run("owner/model").folder / "model.safetensors").unlink()
    failure = machine.run("owner/model", HF_HUB_OFFLINE="1").failure
    assert "model.safetensors" in failure and "HF_HUB_OFFLINE" in failure


def test_who_needs_no_weights_finds_the_rest_in_the_cache_and_asks_for_no_consent(machine: Machine) -> None:
    """A router whose workers are on other hosts. Nothing of pickled weights comes here."""
    machine.hub.repos["owner/model"] = Repo(
        {"config.json": CONFIG, "tokenizer.json": b"{}", "pytorch_model.bin": b"pickle"}
    )
    folder = machine.run("owner/model", "--without-weights").folder
    assert names_in(folder) == {"config.json", "tokenizer.json"}
    assert machine.run("owner/model", "--without-weights", HF_HUB_OFFLINE="1").folder == folder
    assert "pytorch_model.bin" in machine.run("owner/model").failure
    assert "lacks model.safetensors" in machine.run("owner/model", HF_HUB_OFFLINE="1").failure
    (folder / "tokenizer.json").unlink()
    assert (
        "lacks tokenizer.json" in machine.run("owner/model", "--without-weights", HF_HUB_OFFLINE="1").failure
    )


def test_a_router_does_not_take_the_last_complete_commit_from_workers_on_its_cache(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    files = {**FILES, "model.safetensors": b"new"}
    machine.hub.repos["owner/model"] = Repo(files, "b" * 40, branches=("main", "next"))
    for revision in ([], ["--revision", "next"]):
        assert machine.run("owner/model", "--without-weights", *revision).folder.name == "b" * 40
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").folder == folder
    assert machine.run("owner/model", "--without-weights", HF_HUB_OFFLINE="1").folder == folder
    assert machine.run("owner/model", "--revision", "next").folder.name == "b" * 40
    machine.hub.repos["owner/model"] = Repo(files, "c" * 40, branches=("main", "next"))
    assert machine.run("owner/model", "--without-weights", "--revision", "next").folder.name == "c" * 40
    assert machine.run("owner/model", "--revision", "next", HF_HUB_OFFLINE="1").folder.name == "b" * 40


@pytest.mark.parametrize("begun", [False, True])
def test_a_branch_that_another_program_moved_to_an_incomplete_commit_is_no_reason_not_to_serve_a_complete_one(
    begun: bool, machine: Machine
) -> None:
    """`AutoTokenizer.from_pretrained` on the same cache, or a download that was killed."""
    folder = machine.run("owner/model").folder
    storage = folder.parents[1]
    (storage / "refs" / "main").write_text("b" * 40)
    if begun:
        newer = storage / "snapshots" / ("b" * 40)
        newer.mkdir()
        for name in ("config.json", "tokenizer.json"):
            (newer / name).symlink_to((folder / name).resolve())
    ended = machine.run("owner/model", HF_HUB_OFFLINE="1")
    assert ended.folder == folder
    (warning,) = [line["message"] for line in ended.lines if line.get("level") == "WARN"]
    assert warning.endswith(f"snapshot {folder.name} of owner/model, the newest that is complete")
    # Another revision is another model.
    for revision in ("next", "b" * 40):
        assert machine.run("owner/model", "--revision", revision, HF_HUB_OFFLINE="1").code == 1
    (storage / "refs" / "next").write_text("a" * 40)
    assert machine.run("owner/model", HF_HUB_OFFLINE="1").code == 1


@pytest.mark.parametrize("down", ["unreachable", "broken"])
def test_a_hub_that_does_not_answer_is_no_reason_not_to_serve_the_cache(machine: Machine, down: str) -> None:
    folder = machine.run("owner/model").folder
    env = {}
    if down == "unreachable":
        env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    else:
        machine.hub.status = 500
    ended = machine.run("owner/model", **env)
    assert ended.folder == folder
    assert any(line.get("level") == "WARN" for line in ended.lines)
    assert "not in the cache" in machine.run("owner/other", **env).failure


@pytest.mark.parametrize("part", ["/resolve/", "/tree/"])
def test_a_hub_that_answers_the_first_request_only_is_no_reason_not_to_serve_the_cache(
    machine: Machine, part: str
) -> None:
    """A proxy or a mirror that lets the look-up through, and not what comes behind it."""
    folder = machine.run("owner/model").folder
    machine.hub.repos["owner/model"] = Repo({**FILES, "config.json": b"{}"}, "b" * 40)
    machine.hub.faults = [Fault(method, part, 403, times=1000) for method in ("HEAD", "GET")]
    ended = machine.run("owner/model")
    assert ended.folder == folder
    warnings = [line["message"] for line in ended.lines if line.get("level") == "WARN"]
    assert len(warnings) == 1 and "the hub answers with status 403" in warnings[0]
    failure = machine.run("owner/model", "--cache-dir", str(machine.home / "empty")).failure
    assert "(the hub answers with status 403), and owner/model is not in the cache" in failure


def test_a_file_that_did_not_come_is_told_where_the_library_says_nothing(machine: Machine) -> None:
    """Of a commit whose list of files nobody has kept, as TGI and older versions of the library leave one, and the hub does not list again."""
    folder = machine.run("owner/model").folder
    shutil.rmtree(folder.parents[1] / "trees", ignore_errors=True)
    (folder / "chat_template.jinja").unlink()
    machine.hub.faults = [Fault("GET", "/tree/", 403, times=1000)]
    ended = machine.run("owner/model")
    assert ended.folder == folder and not (folder / "chat_template.jinja").exists()
    (warning,) = [line["message"] for line in ended.lines if line.get("level") == "WARN"]
    assert "(chat_template.jinja did not come): using the cached snapshot" in warning
    (folder / "model.safetensors").unlink()
    assert "lacks model.safetensors" in machine.run("owner/model").failure
    machine.hub.faults.clear()
    assert names_in(machine.run("owner/model").folder) == NEEDED


def test_names_of_files_are_no_patterns(machine: Machine) -> None:
    name = "additional_chat_templates/tool[1].jinja"
    machine.hub.repos["owner/model"].files[name] = b"tools"
    assert name in names_in(machine.run("owner/model").folder)


def test_a_page_in_place_of_the_hubs_answers_is_no_reason_not_to_serve_the_cache(machine: Machine) -> None:
    """A captive portal, or an HF_ENDPOINT that is no hub."""
    folder = machine.run("owner/model").folder
    for page in (b"<html>please sign in</html>", b'{"status": "ok"}', b"[]"):
        machine.hub.page = page
        ended = machine.run("owner/model")
        assert ended.folder == folder
        said = f"{machine.hub.url.removeprefix('http://')} does not answer as a hub does"
        assert any(line.get("level") == "WARN" and said in line["message"] for line in ended.lines)
        failure = machine.run("owner/model", "--cache-dir", str(machine.home / "empty")).failure
        assert said in failure and "not in the cache" in failure


def test_a_file_too_large_for_plain_http_is_said_in_a_line(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`huggingface_hub` raises a ValueError of one above 50 GB, which a mirror does not keep in chunks."""
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", len(WEIGHTS) - 1)
    use_in_process(machine.hub, monkeypatch)
    request = Request("owner/model", None, tmp_path)

    def bring(request: Request) -> Path:
        content.fetch_resumable(request, "a" * 40, "model.safetensors")
        raise AssertionError("it came")

    with pytest.raises(Unavailable, match=r"failed \(model.safetensors: The file is too large"):
        client.obtain(request, bring)


def test_what_the_hub_refuses_for_a_moment_is_asked_for_again(machine: Machine) -> None:
    machine.hub.faults = [
        Fault("GET", "/api/models/", 503),
        Fault("HEAD", "/model.safetensors", 429, headers={"RateLimit": '"resolvers";r=0;t=2'}),
        Fault("GET", "/content/", 502, headers={"Retry-After": "0"}),
    ]
    ended = machine.run("owner/model")
    assert (ended.folder / "model.safetensors").read_bytes() == WEIGHTS
    told = [line["message"] for line in ended.lines if "asked again" in line.get("message", "")]
    assert told == [
        f"the hub answers with status {status}: it is asked again in {pause} s"
        for status, pause in ((503, 1), (429, 2), (502, 2))
    ]
    machine.hub.faults = [Fault("HEAD", "/model.safetensors", 403), Fault("HEAD", "/model.safetensors", 404)]
    for _ in range(2):  # what will not pass is asked for once
        assert not any(
            "asked again" in str(line)
            for line in machine.run("owner/model", "--cache-dir", str(machine.home / "b")).lines
        )


def test_a_start_with_a_cached_snapshot_does_not_wait_for_the_hub(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    machine.hub.seen.clear()
    machine.hub.status = 503
    assert machine.run("owner/model").folder == folder
    assert [seen.path for seen in machine.hub.seen if "/models/" in seen.path] == ["/api/models/owner/model"]


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "pytorch_model.bin"),
    ],
)
def test_an_unservable_repository_is_refused_before_anything_is_fetched(
    machine: Machine, removed: str, said: str
) -> None:
    del machine.hub.repos["owner/model"].files[removed]
    assert said in machine.run("owner/model").failure
    assert machine.hub.bodies() == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (("mmproj-model.gguf", "README.md"), "it has GGUF files"),
        (("README.md",), None),
    ],
)
def test_what_a_repository_without_a_config_json_is_is_said(
    machine: Machine, files: tuple[str, ...], says: str | None
) -> None:
    machine.hub.repos["owner/model"] = Repo(dict.fromkeys(files, b"{}"))
    failure = machine.run("owner/model").failure
    begins = "the model owner/model has no config.json"
    assert failure == begins if says is None else failure.startswith(f"{begins}; {says}")
    assert machine.hub.bodies() == []


@pytest.mark.parametrize("shards", [1, 2])
def test_pickled_weights_and_code_are_fetched_with_consent_only(machine: Machine, shards: int) -> None:
    if shards == 1:
        weights = {"pytorch_model.bin": b"pickle"}
    else:
        index = {"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}
        weights = {"pytorch_model.bin.index.json": json.dumps(index).encode()}
        weights |= {"pytorch_model-1.bin": b"one", "pytorch_model-2.bin": b"two"}
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", "modeling_own.py": b"code", **weights}
    machine.hub.repos["owner/model"] = Repo({**files, "training_args.bin": b"other", "tests/x.py": b"other"})
    failure = machine.run("owner/model").failure
    assert "only pickled ones" in failure and "--trust-remote-code" in failure
    assert machine.hub.bodies() == []
    ended = machine.run("owner/model", "--trust-remote-code")
    assert names_in(ended.folder) == set(files)
    assert machine.run("owner/model", "--trust-remote-code", HF_HUB_OFFLINE="1").folder == ended.folder
    # Where there are safetensors files, consent makes no difference to the weights.
    machine.hub.repos["owner/model"] = Repo({**FILES, "modeling_own.py": b"code"}, commit="d" * 40)
    assert names_in(machine.run("owner/model", "--trust-remote-code").folder) == {*NEEDED, "modeling_own.py"}
    assert "modeling_own.py" not in names_in(
        machine.run("owner/model", "--cache-dir", str(machine.home / "b")).folder
    )


def test_an_adapter_beside_a_model_is_named(machine: Machine) -> None:
    files = machine.hub.repos["owner/model"].files
    files["adapter_config.json"], files["adapter_model.safetensors"] = b"{}", b"adapter"
    ended = machine.run("owner/model")
    assert not any("adapter" in name for name in names_in(ended.folder))
    (warning,) = [line["message"] for line in ended.lines if line.get("level") == "WARN"]
    assert warning.startswith("owner/model: adapter_config.json is not read: ")


def test_quantized_weights_are_refused_before_they_are_fetched(machine: Machine) -> None:
    files = machine.hub.repos["owner/model"].files
    files["quantize_config.json"] = b'{"bits": 4, "is_marlin_format": true}'
    assert "the weights are quantized (marlin)" in machine.run("owner/model").failure
    assert "model.safetensors" not in machine.hub.bodies()


def test_without_a_tokenizer_json_the_older_files_are_fetched(machine: Machine) -> None:
    files = machine.hub.repos["owner/model"].files
    files["vocab.json"] = files["merges.txt"] = files["vocab.txt"] = b"older"
    assert not (machine.run("owner/model").folder / "vocab.json").exists()
    del files["tokenizer.json"]
    machine.hub.repos["owner/older"] = Repo(dict(files), commit="c" * 40)
    folder = machine.run("owner/older").folder
    assert (folder / "vocab.json").exists() and (folder / "merges.txt").exists()
    assert not (folder / "vocab.txt").exists()
    del files["vocab.txt"], files["vocab.json"]
    files["tekken.json"] = b"of Mistral"
    machine.hub.repos["owner/own"] = Repo(dict(files), commit="d" * 40)
    assert (machine.run("owner/own").folder / "tekken.json").exists()
    del files["tekken.json"]
    files["tiktoken.model"] = b"of Moonshot"
    machine.hub.repos["owner/kimi"] = Repo(dict(files), commit="e" * 40)
    assert (machine.run("owner/kimi").folder / "tiktoken.model").exists()
    del files["tiktoken.model"]
    files["qwen.tiktoken"] = b"of Qwen 1"
    machine.hub.repos["owner/qwen"] = Repo(dict(files), commit="f" * 40)
    failure = machine.run("owner/qwen").failure
    assert "; qwen.tiktoken is not read: " in failure and failure.endswith("add a tokenizer.json")


def test_an_index_that_names_an_absent_or_foreign_file_is_refused(machine: Machine) -> None:
    for shard, said in [
        ("absent.safetensors", "absent.safetensors"),
        ("../../escape.safetensors", "index.json"),
    ]:
        index = json.dumps({"weight_map": {"a": shard}}).encode()
        files = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors.index.json": index}
        machine.hub.repos["owner/model"] = Repo(files, commit=str(len(shard)) * 20)
        assert said in machine.run("owner/model").failure


def test_too_little_room_is_said_before_the_download(machine: Machine) -> None:
    machine.hub.repos["owner/model"].sizes["model.safetensors"] = 10**15
    failure = machine.run("owner/model").failure
    assert "disk" in failure and "1000000.0 GB" in failure
    assert "model.safetensors" not in machine.hub.bodies()


def test_what_is_no_part_of_a_download_makes_no_room_for_it(machine: Machine) -> None:
    """Neither what the library left of an earlier one, which it starts again, nor what there is of another commit's weights."""
    blobs = machine.run("owner/model").folder.parents[1] / "blobs"
    others = [blobs / f"{'0' * 64}.0a1b2c3d.incomplete", blobs / f"{'1' * 64}.penstock.incomplete"]
    for other in others:
        other.touch()
        os.truncate(other, 10**12)
    new = Repo({**FILES, "model.safetensors": b"new"}, "b" * 40, sizes={"model.safetensors": 10**15})
    machine.hub.repos["owner/model"] = new
    ended = machine.run("owner/model", "--revision", "b" * 40)
    assert "needs 1000000.0 GB more" in ended.failure
    new.sizes.clear()
    ended = machine.run("owner/model")
    assert (ended.folder / "model.safetensors").read_bytes() == b"new"
    assert any("downloading owner/model: 0.0 MB" in line.get("message", "") for line in ended.lines)


@pytest.mark.parametrize("names_content", [True, False])
def test_files_that_an_interrupted_download_finished_need_no_room(
    names_content: bool,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They have no links yet: those are made when all are there."""
    shards = {"model-00001-of-00002.safetensors": WEIGHTS, "model-00002-of-00002.safetensors": bytes(200_000)}
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    files = {
        "config.json": CONFIG,
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    machine.hub.repos["owner/sharded"] = Repo({**files, **shards}, names_content=names_content)
    machine.hub.faults = [Fault("GET", "/content/owner/sharded/model-00002", 403)]
    assert "403" in machine.run("owner/sharded", "--cache-dir", str(tmp_path / "hub")).failure
    machine.hub.seen.clear()

    use_in_process(machine.hub, monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=200_000))
    request = Request("owner/sharded", None, tmp_path / "hub")
    folder = client.complete(request, client.begin(request), lambda _: [])
    assert all((folder / name).read_bytes() == content for name, content in shards.items())
    assert machine.hub.bodies() == ["model-00002-of-00002.safetensors"]
    assert "downloading owner/sharded: 0.2 MB" in capsys.readouterr().out


def use_in_process(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT and an empty home do for a process that starts."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.mark.parametrize(
    ("on_disk", "age", "held", "stays"),
    [
        (True, 0, False, False),
        (True, 7200, True, True),
        (False, 0, False, True),
        (False, 7200, False, False),
        (False, 7200, True, True),
    ],
)
def test_what_the_library_left_is_removed_where_nobody_can_be_writing_to_it(
    on_disk: bool, age: int, held: bool, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "has_binding_locks", lambda _: on_disk)
    request = Request("owner/model", None, tmp_path)
    blobs, locks = request.storage / "blobs", tmp_path / ".locks" / "models--owner--model"
    blobs.mkdir(parents=True)
    locks.mkdir(parents=True)
    content = "0" * 64
    left = blobs / f"{content}.0a1b2c3d.incomplete"
    kept = [blobs / content, blobs / f"{content}.penstock.incomplete", blobs / f"{content}.incomplete"]
    for file in (left, *kept):
        file.write_bytes(b"part")
        os.utime(file, (time.time() - age,) * 2)
    with WeakFileLock(locks / f"{content if held else '1' * 64}.lock"):
        cache.remove_abandoned(request)
    assert left.exists() == stays
    assert all(file.exists() for file in kept)


def test_what_the_library_writes_to_has_the_name_and_the_lock_that_are_looked_for(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the version that is installed."""
    use_in_process(machine.hub, monkeypatch)
    monkeypatch.setattr(cache, "has_binding_locks", lambda _: True)
    request = Request("owner/model", None, tmp_path / "hub")
    written: list[Path] = []
    fetch = file_download.http_get

    def looked_at(url: str, temp_file: Any, **rest: Any) -> None:
        written.append(Path(temp_file.name))
        cache.remove_abandoned(request)
        assert written[-1].exists()
        fetch(url, temp_file, **rest)

    monkeypatch.setattr(file_download, "http_get", looked_at)
    client.snapshot(request, "a" * 40, ["config.json"])
    (left,) = written
    assert not left.exists()
    left.write_bytes(bytes(200_000))
    client.begin(request)
    assert not left.exists()
    assert "had left: 0.2 MB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "says"), [(errno.EACCES, f"user {os.geteuid()}"), (errno.EROFS, "nobody can write there")]
)
def test_a_cache_that_this_user_may_not_write_is_named_with_the_user(number: int, says: str) -> None:
    def bring(request: Request) -> Path:
        raise OSError(number, os.strerror(number), "/data/models--owner--model")

    with pytest.raises(Unavailable) as failure:
        client.obtain(Request("owner/model", None, Path("/data")), bring)
    line = str(failure.value)
    assert "/data/models--owner--model" in line and says in line and "--huggingface-hub-cache" in line


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_cache_that_cannot_be_written_is_served_as_it_is(
    number: int, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A volume for reading only, where somebody has pushed to the model since."""
    folder = machine.run("owner/model").folder

    def bring(request: Request) -> Path:
        raise OSError(number, os.strerror(number), str(request.storage / "snapshots" / ("b" * 40)))

    request = Request("owner/model", None, folder.parents[2])
    assert client.obtain(request, bring) == folder
    warning = json.loads(capsys.readouterr().out)
    assert warning["level"] == "WARN" and folder.name in warning["message"]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Unavailable, match=r"cannot be kept in|the disk is full") as failure:
        client.obtain(request, bring)
    assert "using the cached" not in str(failure.value)


def test_a_full_disk_is_no_reason_not_to_serve_the_snapshot_before(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    new = Repo({**FILES, "config.json": b"{}"}, "b" * 40, sizes={"model.safetensors": 10**15})
    new.files["model.safetensors"] += b"more"
    machine.hub.repos["owner/model"] = new
    ended = machine.run("owner/model")
    assert ended.folder == folder
    assert any(line.get("level") == "WARN" and "too full" in line["message"] for line in ended.lines)


def test_what_is_there_needs_no_room(machine: Machine) -> None:
    folder = machine.run("owner/model").folder
    sizes = machine.hub.repos["owner/model"].sizes
    sizes["tokenizer.json"] = sizes["model.safetensors"] = 10**15
    assert machine.run("owner/model").folder == folder
    (folder / "tokenizer.json").unlink()
    assert "1000000.0 GB" in machine.run("owner/model").failure


def test_the_cache_is_where_flag_or_environment_say(machine: Machine, tmp_path: Path) -> None:
    for arguments, env, place in [
        (["--cache-dir", str(tmp_path / "a")], {"HF_HUB_CACHE": str(tmp_path / "x")}, tmp_path / "a"),
        ([], {"HF_HOME": str(tmp_path / "b")}, tmp_path / "b" / "hub"),
        ([], {"HF_HUB_CACHE": str(tmp_path / "c"), "HF_HOME": str(tmp_path / "b")}, tmp_path / "c"),
        (
            [],
            {"HF_HUB_CACHE": str(tmp_path / "d"), "HUGGINGFACE_HUB_CACHE": str(tmp_path / "x")},
            tmp_path / "d",
        ),
    ]:
        assert machine.run("owner/model", *arguments, **env).folder.is_relative_to(place)
    assert not (tmp_path / "x").exists()


def test_models_of_older_images_and_of_tgi_are_found_in_one_volume(machine: Machine, tmp_path: Path) -> None:
    """TGI 3 has HF_HOME=/data as the image has, TGI 2 and the first images had the cache at /data itself."""
    volume = tmp_path / "data"
    machine.hub.repos |= {f"owner/{name}": Repo(dict(FILES)) for name in ("tgi3", "tgi2", "new")}
    places = {"tgi3": volume / "hub", "tgi2": volume, "new": volume / "hub"}
    for name in ("tgi3", "tgi2"):
        machine.run(f"owner/{name}", "--cache-dir", str(places[name]))
    for name, place in places.items():
        machine.hub.seen.clear()
        folder = machine.run(f"owner/{name}", HF_HOME=str(volume)).folder
        assert folder.parent.parent == place / f"models--owner--{name}"
        assert (machine.hub.bodies() == []) == (name != "new")
        assert machine.run(f"owner/{name}", HF_HOME=str(volume), HF_HUB_OFFLINE="1").folder == folder
    machine.hub.repos["owner/tgi2"] = Repo({**FILES, "config.json": b"{}"}, "b" * 40)
    assert (
        machine.run("owner/tgi2", HF_HOME=str(volume)).folder.parent.parent == volume / "models--owner--tgi2"
    )


def test_what_is_staged_goes_where_downloads_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hf_xet's own folder is below HF_HOME, which may be another user's where a cache was named."""
    home = tmp_path / "home"
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setenv("HF_XET_CACHE", "")
    for ours in (home, home / "hub"):
        client.keep_xet_in(ours)
        assert os.environ["HF_XET_CACHE"] == ""
    client.keep_xet_in(tmp_path / "named")
    assert os.environ["HF_XET_CACHE"] == str(tmp_path / "named" / "penstock-xet")
    client.keep_xet_in(tmp_path / "another")
    assert os.environ["HF_XET_CACHE"] == str(tmp_path / "named" / "penstock-xet"), "it was given"


def test_the_variable_that_the_launcher_sets_ends_hf_xets_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python::module` of the launcher. A version that reads another one is not to be pinned unseen."""
    hf_xet = pytest.importorskip("hf_xet")
    for name in ("DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "HF_XET_TELEMETRY_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    assert hf_xet.XetConfig().get("telemetry.enabled") is False


def test_progress_is_a_bar_only_when_asked_for(machine: Machine, tmp_path: Path) -> None:
    ended = machine.run("owner/model", "--cache-dir", str(tmp_path / "a"))
    assert ended.stderr == ""
    assert any("downloading owner/model" in line.get("message", "") for line in ended.lines)
    assert "100%" in machine.run("owner/model", "--cache-dir", str(tmp_path / "b"), "--progress-bar").stderr


ADAPTER_CONFIG = b'{"peft_type": "LORA", "r": 4}'
ADAPTER_FILES = {
    "adapter_config.json": ADAPTER_CONFIG,
    "adapter_model.safetensors": WEIGHTS,
    "adapter_model.bin": b"pickle",
    "README.md": b"read me",
    "tokenizer.json": b"{}",
    "training_args.bin": b"other",
    "checkpoint-10/adapter_model.safetensors": b"earlier",
}


def with_adapter(machine: Machine, **more: bytes) -> dict[str, bytes]:
    """The files of an adapter on the hub, owner/adapter."""
    files = ADAPTER_FILES | more
    machine.hub.repos["owner/adapter"] = Repo(files)
    return files


def test_an_adapter_is_its_config_and_its_weights(machine: Machine) -> None:
    with_adapter(machine)
    ended = machine.run("owner/adapter", "--adapter", "--for-this-machine")
    assert names_in(ended.folder) == {"adapter_config.json", "adapter_model.safetensors"}
    assert (ended.folder / "adapter_model.safetensors").read_bytes() == WEIGHTS
    assert ended.lines[-1]["snapshot"] == {
        "folder": str(ended.folder),
        "commit": "a" * 40,
        "pipeline_tag": None,
    }
    assert sorted(machine.hub.bodies()) == ["adapter_config.json", "adapter_model.safetensors"]
    machine.hub.seen.clear()
    assert machine.run("owner/adapter", "--adapter").folder == ended.folder
    assert machine.hub.bodies() == []
    machine.hub.seen.clear()
    assert machine.run("owner/adapter", "--adapter", HF_HUB_OFFLINE="1").folder == ended.folder
    assert machine.hub.seen == []


def test_an_adapter_has_revisions_and_goes_on_where_a_connection_broke(machine: Machine) -> None:
    with_adapter(machine)
    machine.hub.repos["owner/adapter"].branches = ("main", "v2")
    machine.hub.cut_after, machine.hub.cuts = PIECE + 1000, 1
    folder = machine.run("owner/adapter", "--adapter", "--revision", "v2").folder
    assert (folder / "adapter_model.safetensors").read_bytes() == WEIGHTS
    ranges = [seen.range for seen in machine.hub.seen if seen.method == "GET" and "/content/" in seen.path]
    assert ranges == [None, f"bytes={PIECE}-"]
    offline = {"HF_HUB_OFFLINE": "1"}
    assert machine.run("owner/adapter", "--adapter", "--revision", "v2", **offline).folder == folder
    missing = machine.run("owner/adapter", "--adapter", "--revision", "v3").failure
    assert missing == "the adapter owner/adapter has no revision v3"


def test_a_hub_that_is_away_is_no_reason_not_to_use_a_cached_adapter(machine: Machine) -> None:
    with_adapter(machine)
    folder = machine.run("owner/adapter", "--adapter").folder
    machine.hub.status = 500
    ended = machine.run("owner/adapter", "--adapter")
    assert ended.folder == folder and any(line.get("level") == "WARN" for line in ended.lines)
    (folder / "adapter_model.safetensors").unlink()
    failure = machine.run("owner/adapter", "--adapter", HF_HUB_OFFLINE="1").failure
    assert "lacks adapter_model.safetensors of owner/adapter" in failure


def test_a_gated_adapter_needs_a_token(machine: Machine) -> None:
    with_adapter(machine)
    machine.hub.repos["owner/adapter"].token = "hf_sesame"
    assert "the adapter owner/adapter is gated" in machine.run("owner/adapter", "--adapter").failure
    folder = machine.run("owner/adapter", "--adapter", HF_TOKEN="hf_sesame").folder
    assert (folder / "adapter_config.json").read_bytes() == ADAPTER_CONFIG


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (FILES, "owner/adapter is no adapter: it has no adapter_config.json"),
        (
            {"adapter_config.json": ADAPTER_CONFIG, "adapter_model.bin": b"pickle"},
            "the adapter owner/adapter has only pickled weights (adapter_model.bin), which are not read: save",
        ),
        (
            {"adapter_config.json": ADAPTER_CONFIG},
            "the adapter owner/adapter has no adapter_model.safetensors",
        ),
    ],
)
def test_a_repository_that_is_no_adapter_is_refused_before_anything_is_fetched(
    machine: Machine, files: dict[str, bytes], says: str
) -> None:
    machine.hub.repos["owner/adapter"] = Repo(dict(files))
    assert machine.run("owner/adapter", "--adapter").failure.startswith(says)
    assert machine.hub.bodies() == []


def test_an_adapter_that_is_not_served_is_refused_before_its_weights_are_fetched(machine: Machine) -> None:
    with_adapter(machine, **{"adapter_config.json": b'{"peft_type": "LORA", "use_dora": true}'})
    failure = machine.run("owner/adapter", "--adapter").failure
    assert failure.startswith(
        "the adapter owner/adapter cannot be served: adapter_config.json: use_dora is true"
    )
    assert machine.hub.bodies() == ["adapter_config.json"]


def test_an_adapter_that_does_not_exist_is_named(machine: Machine) -> None:
    failure = machine.run("owner/none", "--adapter").failure
    assert failure.startswith("there is no adapter owner/none on the hub")


def test_a_model_and_the_adapter_in_its_repository_are_fetched_one_beside_the_other(machine: Machine) -> None:
    machine.hub.repos["owner/both"] = Repo(FILES | ADAPTER_FILES)
    folder = machine.run("owner/both", "--adapter").folder
    assert "owner/both is not in the cache" in machine.run("owner/both", HF_HUB_OFFLINE="1").failure
    assert machine.run("owner/both").folder == folder
    for flags in ([], ["--adapter"]):
        assert machine.run("owner/both", *flags, HF_HUB_OFFLINE="1").folder == folder


@pytest.mark.parametrize("more", [{}, {"config.json": CONFIG}])
def test_an_adapter_in_place_of_a_model_is_brought_with_its_tokenizer(
    machine: Machine, more: dict[str, bytes]
) -> None:
    """It is merged into its base model, which the launcher fetches then."""
    of_tokenizer = dict.fromkeys(("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"), b"{}")
    with_adapter(machine, **of_tokenizer, **more)
    ended = machine.run("owner/adapter", "--for-this-machine")
    assert ended.code == 0, ended.lines
    found = ended.lines[-1]["adapter"]
    folder = Path(found["folder"])
    assert found == {"folder": str(folder), "commit": folder.name}
    assert names_in(folder) == {"adapter_config.json", "adapter_model.safetensors", *of_tokenizer}
    for why in ("offline", "away"):
        if why == "away":
            machine.hub.faults = [Fault("GET", "", 503, times=1000)]
        offline = {"HF_HUB_OFFLINE": "1"} if why == "offline" else {}
        assert machine.run("owner/adapter", **offline).lines[-1]["adapter"] == found


def test_what_is_read_only_where_it_is_merged_is_refused_beside_a_model(machine: Machine) -> None:
    dora = json.dumps(json.loads(ADAPTER_CONFIG) | {"use_dora": True}).encode()
    with_adapter(machine, **{"adapter_config.json": dora})
    assert "use_dora is true" in machine.run("owner/adapter", "--adapter").failure
    assert "adapter" in machine.run("owner/adapter").lines[-1]
