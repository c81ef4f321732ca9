"""Packed weights that are kept between starts: the second start computes the same without the checkpoint, and what is wrong with a file
is one line and a model that is packed anew.
"""

import argparse
import errno
import fcntl
import gc
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE, row
from driver import Driver
from penstock import quantization, startup
from penstock.engine import preparation
from penstock.errors import UnusableModel
from penstock.loading import packed_file
from penstock.loading.checks import check_folder
from penstock.loading.memory import Room
from penstock.models import choice, packed_cache, recipes
from penstock.models.packed_cache import PackedCache
from penstock.parallel.group import TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from test_draft_model import tokenizer
from test_parity import LENGTH, PROMPT, VARIANTS, blocks_for

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []
pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "a model", checkpoints.config(num_hidden_layers=2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def start(
    model: Path, folder: Path, *, keeps_all: bool = True, quantize: str = "", head: bool = False
) -> Driver:
    return Driver(
        model,
        torch.bfloat16,
        max_sequence_tokens=LENGTH,
        quantize=quantize,
        quantize_head=head,
        packed_cache=PackedCache(folder, keeps_all),
    )


def kept(driver: Driver) -> None:
    """Once what it had packed is written."""
    cache = driver.engine.packed_cache
    assert cache is not None
    cache.keep()
    for thread in threading.enumerate():
        if thread.name == "packed cache":
            thread.join()


def logits(driver: Driver) -> Tensor:
    return driver.all_logits(
        [row(0, PROMPT, 0, blocks_for(LENGTH), start={}, sample=False, targets=[1] * LENGTH)]
    )


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def lines(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Level and message of what was said of packed weights since the last call."""
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [(line["level"], line["message"]) for line in said if "packed" in line["message"]]


def is_packed_anew(
    model: Path, folder: Path, says: str, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says why, the model computes what it did, and the next start finds it."""
    lines(capsys)
    driver = start(model, folder)
    (said,) = lines(capsys)
    assert said[0] == level and says in said[1] and said[1].endswith(": weights are packed anew"), said
    assert torch.equal(logits(driver), logits(start(model, folder / "another", keeps_all=False)))
    kept(driver)
    lines(capsys)
    start(model, folder)
    ((_, found),) = lines(capsys)
    assert found.startswith("packed weights are mapped from ")


@pytest.mark.parametrize("quantize", ["", "int8", "int4", "int4 head", "int4-g128-zp"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_second_start_computes_the_same_and_reads_no_checkpoint(
    name: str, quantize: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write(model, checkpoints.config(**VARIANTS[name]))
    how: dict[str, Any] = {"quantize": quantize.removesuffix(" head"), "head": quantize.endswith("head")}
    first = start(model, folder, **how)
    kept(first)
    expected = logits(first)
    monkeypatch.setattr(recipes, "load", pytest.fail)
    second = start(model, folder, **how)
    assert torch.equal(logits(second), expected)
    natives = first.engine.native, second.engine.native
    assert natives[0] is not None and natives[1] is not None
    assert str(natives[0].program) == str(natives[1].program)
    assert natives[0].parameters == natives[1].parameters > 0
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", quantization.BESIDE)
def test_another_file_beside_config_json_is_another_model(name: str, model: Path, folder: Path) -> None:
    """What it says of how weights are quantized changes how they are read."""

    def key(content: dict[str, Any] | None) -> str:
        (model / name).unlink(missing_ok=True)
        if content is not None:
            (model / name).write_text(json.dumps(content))
        entry = PackedCache(folder, True).entry(model, check_folder(model), False, "", False, SETS[0])
        assert entry is not None
        return entry.key

    of_gptq: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    says = [None, of_gptq, of_gptq | {"checkpoint_format": "gptq_v2"}, of_gptq | {"group_size": 64}]
    assert len({key(one) for one in says}) == len(says)
    assert key(of_gptq) == key(dict(reversed(of_gptq.items())))


def test_large_weights_are_kept_quantized_unless_all_are_asked_for(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_cache, "SMALL", 1000)
    kept(start(model, folder, keeps_all=False))
    assert not folder.exists()
    kept(start(model, folder, keeps_all=False, quantize="int8"))
    assert only_file(folder).name.startswith("a_model-int8-")
    monkeypatch.undo()
    kept(start(model, folder, keeps_all=False))
    assert len(list(folder.glob("a_model-bf16-*"))) == 1


def test_a_draft_model_is_kept_beside_the_model(model: Path, folder: Path, tmp_path: Path) -> None:
    smaller = checkpoints.write(tmp_path / "smaller", checkpoints.config(num_hidden_layers=1))
    for one in (model, smaller):
        tokenizer(one)
    cache = PackedCache(folder, True)
    kept(Driver(model, torch.bfloat16, draft=smaller, packed_cache=cache))
    assert [path.name.split("-")[0] for path in sorted(folder.iterdir())] == ["a_model", "smaller"]
    again = PackedCache(folder, True)
    Driver(model, torch.bfloat16, draft=smaller, packed_cache=again)
    assert again.mapped_bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_servers_that_start_at_once_write_one_whole_file(model: Path, folder: Path) -> None:
    drivers = [start(model, folder, quantize="int8") for _ in range(4)]
    for driver in drivers:
        assert driver.engine.packed_cache is not None
        driver.engine.packed_cache.keep()
    for driver in drivers:
        kept(driver)
    assert only_file(folder).suffix == packed_cache.SUFFIX
    assert torch.equal(logits(start(model, folder, quantize="int8")), logits(drivers[0]))


def test_what_a_server_that_was_ready_earlier_has_written_is_not_written_again(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be mapped by now, and the disk may have room for one."""
    first, second = (start(model, folder, quantize="int8") for _ in range(2))
    kept(first)
    written = only_file(folder).stat().st_ino
    lines(capsys)
    kept(second)
    assert only_file(folder).stat().st_ino == written and lines(capsys) == []


def test_a_file_that_somebody_writes_is_theirs_and_what_was_left_behind_is_removed(
    model: Path, folder: Path
) -> None:
    first = start(model, folder)
    kept(first)
    path = only_file(folder)
    path.unlink()
    of_others, left_behind = (
        folder / f"{name}{packed_file.PARTIAL}" for name in (f"{path.name}.x", "another.packed.y")
    )
    for partial in (of_others, left_behind):
        partial.write_bytes(b"half")
    with of_others.open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        kept(start(model, folder))
        assert list(folder.iterdir()) == [of_others]
    kept(start(model, folder))
    assert list(folder.iterdir()) == [path]


def test_a_file_that_is_cut_short_anywhere_is_packed_anew(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(start(model, folder))
    path = only_file(folder)
    whole = path.read_bytes()
    lengths = {0, 1, packed_file.HEAD.size - 1, packed_file.HEAD.size, packed_file.FIRST, len(whole) - 1}
    for length in sorted({*lengths, *range(0, len(whole), len(whole) // 40)}):
        path.write_bytes(whole[:length])
        lines(capsys)
        start(model, folder)
        (said,) = lines(capsys)
        assert said[0] == "WARN" and f"{path} is cut short: " in said[1], (length, said)
    is_packed_anew(model, folder, "is cut short", "WARN", capsys)
    path.write_bytes(whole + b"more")
    is_packed_anew(model, folder, "is damaged", "WARN", capsys)


def test_a_damaged_directory_or_another_format_is_packed_anew(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(start(model, folder))
    path = only_file(folder)
    whole = path.read_bytes()
    magic, number, begin, length, digest = packed_file.HEAD.unpack(whole[: packed_file.HEAD.size])
    for at, says, level in (
        (0, "is no file of packed weights", "WARN"),
        (16, f"is of another format ({number ^ 1}, not {number})", "INFO"),
        (begin + length // 2, "is damaged", "WARN"),
        (begin, "is damaged", "WARN"),
        (len(whole) - 1, "is damaged", "WARN"),
        (packed_file.HEAD.size - 1, "is damaged", "WARN"),
    ):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        is_packed_anew(model, folder, says, level, capsys)
    assert (magic, len(digest)) == (packed_file.MAGIC, 32)


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: directory["tensors"][0].__setitem__(2, 1 << 40),
        lambda directory: directory["tensors"][0].__setitem__(2, 4097),
        lambda directory: directory["tensors"][0].__setitem__(1, [1 << 50]),
        lambda directory: directory["tensors"][0].__setitem__(0, "F8"),
        lambda directory: directory["tensors"].pop(),
        lambda directory: directory["content"]["body"][0].__setitem__("wheels", 4),
        lambda directory: directory["content"].pop("head"),
        lambda directory: directory.pop("content"),
    ],
)
def test_what_a_directory_says_is_checked_even_where_its_digest_is_right(
    change: Any, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(start(model, folder))
    path = only_file(folder)
    whole = path.read_bytes()
    _, _, begin, _, _ = packed_file.HEAD.unpack(whole[: packed_file.HEAD.size])
    directory = json.loads(whole[begin:])
    change(directory)
    text = json.dumps(directory).encode()
    digest = hashlib.sha256(text).digest()
    head = packed_file.HEAD.pack(packed_file.MAGIC, packed_file.FORMAT, begin, len(text), digest)
    path.write_bytes(head + whole[len(head) : begin] + text)
    is_packed_anew(model, folder, "is damaged", "WARN", capsys)


def rewrite_in_place(model: Path) -> None:
    """Other weights, of the same size and time."""
    path = model / "model.safetensors"
    before = path.stat()
    checkpoints.write(
        model,
        checkpoints.config(num_hidden_layers=2),
        checkpoints.tensors(checkpoints.config(num_hidden_layers=2), seed=7),
    )
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def touch(model: Path) -> None:
    os.utime(model / "model.safetensors", (1, 1))


def change_config(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(checkpoints.config(num_hidden_layers=2, rope_theta=5000.0)))


@pytest.mark.parametrize("change", [rewrite_in_place, touch, change_config])
def test_a_changed_model_is_packed_anew(
    change: Any, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(start(model, folder))
    change(model)
    before = only_file(folder)
    is_packed_anew(model, folder, "is of another version of the model", "INFO", capsys)
    assert sum(path != before for path in folder.iterdir()) == 1


def test_another_version_of_penstock_or_instruction_set_has_a_file_of_its_own(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rolling update, or on a volume of machines with other processors, none takes the others' away."""

    def found() -> str | None:
        lines(capsys)
        driver = start(model, folder)
        said = [message for _, message in lines(capsys)]
        kept(driver)
        return said[0].removeprefix("packed weights are mapped from ") if said else None

    with monkeypatch.context() as patched:
        assert found() is None
        first = found()
        patched.setattr(packed_cache, "_code", lambda: "of tomorrow")
        assert found() is None
        second = found()
        patched.setenv(cpu_engine.VARIABLE, "generic")
        assert found() is None
        third = found()
    assert found() == first
    assert len({first, second, third}) == 3 == len(list(folder.iterdir()))


def age(path: Path) -> None:
    """As if no start had used it for more than seven days."""
    long_ago = time.time() - 7 * 86_400 - 60
    os.utime(path, (long_ago, long_ago))


def snapshot(hub: Path, commit: str, files: Path) -> Path:
    """A commit in the hub's cache, whose files are links to content."""
    folder = hub / "models--o--n" / "snapshots" / (commit * 40)
    folder.mkdir(parents=True)
    for file in files.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def test_a_commit_that_leaves_the_weights_as_they_were_is_mapped(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of a README, say: the hub's cache has another folder for it, with links to the same files."""
    kept(start(snapshot(tmp_path, "a", model), folder, quantize="int8"))
    assert only_file(folder).name.startswith("models--o--n-int8-")
    lines(capsys)
    start(snapshot(tmp_path, "b", model), folder, quantize="int8")
    ((_, said),) = lines(capsys)
    assert said.startswith("packed weights are mapped from ")


@pytest.mark.parametrize("full", [False, True])
def test_what_was_packed_of_an_earlier_commit_is_removed_once_nobody_uses_it(
    full: bool, model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot(tmp_path, "a", model)
    kept(start(first, folder))
    before = only_file(folder)
    config = checkpoints.config(num_hidden_layers=2)
    newer = checkpoints.write(tmp_path / "newer", config, checkpoints.tensors(config, seed=7))
    second = snapshot(tmp_path, "b", newer)
    gc.collect()
    if full:
        usage = shutil.disk_usage(folder)
        free = {True: 1 << 20, False: 1 << 40}
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[before.exists()]))
    else:
        kept(start(second, folder))
        assert before.exists(), "both commits may be served"
        (after,) = set(folder.iterdir()) - {before}
        after.unlink()
        age(before)
    kept(start(second, folder))
    assert only_file(folder) != before and first.exists()


def test_models_that_two_containers_have_at_one_path_have_a_file_each(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/model` is what most mount, and the volume is one."""
    config = checkpoints.config(num_hidden_layers=1)
    one, other = tmp_path / "one", checkpoints.write(tmp_path / "other", config)
    kept(start(model, folder))
    model.rename(one)
    other.rename(model)
    kept(start(model, folder))
    assert len(list(folder.iterdir())) == 2
    for mounted in (model, one):
        if mounted == one:
            model.rename(other)
            one.rename(model)
        lines(capsys)
        start(model, folder)
        ((_, said),) = lines(capsys)
        assert said.startswith("packed weights are mapped from "), said


def test_what_another_version_has_packed_is_removed_once_nobody_uses_it(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(start(model, folder))
    first = only_file(folder)
    measured = first.with_suffix(packed_cache.MEASURED)
    measured.touch()
    age(first)
    using: Driver | None = start(model, folder)
    assert first.stat().st_mtime > time.time() - 60, "a start has used it"
    age(first)
    monkeypatch.setattr(packed_cache, "_code", lambda: "of tomorrow")
    kept(start(model, folder))
    assert first.exists(), "somebody has it mapped"
    del using
    gc.collect()
    monkeypatch.setattr(packed_cache, "_code", lambda: "of the day after")
    kept(start(model, folder))
    assert not first.exists() and not measured.exists()
    assert len(list(folder.iterdir())) == 2, "yesterday's was used a moment ago"


def test_where_the_disk_is_full_unused_files_of_other_versions_go_at_once(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(start(model, folder))
    first = only_file(folder)
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=1 << 20 if first.exists() else 1 << 40)
    )
    monkeypatch.setattr(packed_cache, "_code", lambda: "of tomorrow")
    gc.collect()
    kept(start(model, folder))
    assert only_file(folder) != first


def test_locks_are_asked_for_as_nfs_gives_them(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an exclusive lock is one of bytes, which needs a descriptor that is open for writing (flock(2))."""
    flock = fcntl.flock

    def of_nfs(descriptor: int, operation: int) -> None:
        writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if operation & fcntl.LOCK_EX and not writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    first = start(model, folder)
    kept(first)
    path = only_file(folder)
    path.unlink()
    left_behind = folder / f"{path.name}.x{packed_file.PARTIAL}"
    left_behind.write_bytes(b"half")
    kept(start(model, folder))
    assert only_file(folder) == path


def test_the_code_that_packs_counts_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = packed_cache._code.__wrapped__()
    assert packed_cache._code.__wrapped__() == before
    monkeypatch.setattr(cpu_engine, "LIBRARY", Path(__file__))
    assert packed_cache._code.__wrapped__() != before


def test_only_ones_own_file_is_believed(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(start(model, folder))
    path = only_file(folder)
    sound = path.stat()
    user = os.geteuid()
    assert packed_file.why_not_own(sound, user) is None
    values = list(sound)
    values[stat.ST_UID] = 12345
    of_another = os.stat_result(values)
    assert packed_file.why_not_own(of_another, 12345) is None
    assert packed_file.why_not_own(of_another, 1) == "belongs to another user (12345)"
    values[stat.ST_UID] = 0
    assert packed_file.why_not_own(os.stat_result(values), 1) is None, "root can do what it likes anyway"

    path.chmod(0o660)
    is_packed_anew(model, folder, "can be written by others (mode 0660)", "WARN", capsys)
    elsewhere = path.rename(folder / "elsewhere")
    path.symlink_to(elsewhere)
    is_packed_anew(model, folder, "is a link", "WARN", capsys)
    path.unlink()
    os.mkfifo(path)
    is_packed_anew(model, folder, "is a FIFO, not a file", "WARN", capsys)

    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 4321)
        if user != 0:
            is_packed_anew(model, folder, f"belongs to another user ({user})", "WARN", capsys)
    if user == 0:
        os.chown(path, 4321, -1)
        is_packed_anew(model, folder, "belongs to another user (4321)", "WARN", capsys)


def test_a_folder_that_cannot_be_written_or_is_full_is_one_warning(
    model: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    kept(start(model, tmp_path / "file" / "packed"))
    (unreadable, said) = lines(capsys)
    assert unreadable[0] == "WARN" and "cannot be read: Not a directory" in unreadable[1]
    assert said[0] == "WARN" and "packed weights are not kept in" in said[1] and "Not a directory" in said[1]

    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
        kept(start(model, folder))
    (said,) = lines(capsys)
    assert said[0] == "WARN" and "are needed, and 1.0 MB are free" in said[1]

    def fails(descriptor: int, data: memoryview, at: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fails)
        kept(start(model, folder))
    (said,) = lines(capsys)
    assert said[0] == "WARN" and said[1].endswith("Input/output error")
    assert not list(folder.iterdir()), "nothing is left behind"


def test_mapped_weights_are_no_free_memory(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(start(model, folder))
    driver = start(model, folder)
    cache = driver.engine.packed_cache
    assert cache is not None and cache.mapped_bytes == only_file(folder).stat().st_size
    seen: list[int] = []

    def spare(room: Room, *_: Any, **__: Any) -> int:
        seen.append(room.free)
        raise ValueError

    monkeypatch.setattr(preparation, "spare", spare)
    monkeypatch.setattr(preparation, "device_room", lambda device: Room(1 << 40, 1 << 39))
    request = pb.PrepareRequest(
        max_slots=1, max_step_tokens=16, max_sequence_tokens=LENGTH, memory_fraction=1.0
    )
    with pytest.raises(ValueError):
        preparation.prepare(driver.engine, request)
    assert seen == [(1 << 39) - cache.mapped_bytes]
    monkeypatch.setattr(packed_cache, "cpu_room", lambda: Room(1 << 40, 1000))
    with pytest.raises(UnusableModel, match=r"its packed weights take .* of memory, and 0.0 MB are free"):
        start(model, folder)


def arguments(model: Path, **given: Any) -> argparse.Namespace:
    """Of a worker that serves on a CPU, and of nothing that is written to disk."""
    flags: dict[str, Any] = {
        "device": "cpu",
        "stages": 1,
        "rank": 0,
        "world_size": 1,
        "threads": 1,
        "kv_cache_dtype": "auto",
    }
    flags |= {"quantize": None, "quantize_head": False, "trust_remote_code": False, "deterministic": False}
    flags |= {"model_dir": model, "draft_model_dir": None, "model_impl": "auto"}
    return argparse.Namespace(**flags | given)


def test_a_start_from_packed_weights_refuses_what_one_from_the_checkpoint_does(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model whose entries stand for several tokens, in no other type than its own."""
    kept(start(model, folder))
    found = choice.find

    def compressed(*how: Any) -> Any:
        name, served = found(*how) or pytest.fail("nothing is kept")
        shape = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
        return name, SimpleNamespace(config=recipes.read_config(shape), served=served)

    monkeypatch.setattr(choice, "find", compressed)
    with pytest.raises(UnusableModel, match="--kv-cache-dtype int8: entries that stand for several tokens"):
        startup._without_torch(
            arguments(model, kv_cache_dtype="int8"),
            check_folder(model, False),
            "bfloat16",
            PackedCache(folder, True),
            [],
        )


def test_packed_weights_are_not_mapped_where_the_draft_model_needs_torch(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    """They are found once more with torch, and would count twice."""
    kept(start(model, folder))
    cache = PackedCache(folder, True)
    draft = checkpoints.write(tmp_path / "draft", checkpoints.config(num_hidden_layers=1, head_dim=1024))
    needs = startup._without_torch(
        arguments(model, draft_model_dir=draft), check_folder(model, False), "bfloat16", cache, []
    )
    assert isinstance(needs, str) and needs.startswith("draft models"), needs
    assert cache.mapped_bytes == 0


def test_packed_weights_of_all_ranks_on_a_machine_have_to_fit(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(start(model, folder))
    entry = PackedCache(folder, True).entry(model, check_folder(model), False, "", False, SETS[0])
    assert entry is not None
    free = only_file(folder).stat().st_size * 3 // 2
    monkeypatch.setattr(packed_cache, "cpu_room", lambda: Room(1 << 40, free))
    assert entry.find() is not None
    with pytest.raises(UnusableModel, match="are free for each of 2 processes"):
        entry.find(TensorGroup(0, 2, neighbours=2, free_bytes=free))


def test_files_of_models_that_are_gone_are_removed_once_nobody_uses_them(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another container, which sees the folder, may share the volume: neither a fresh file nor a mapped one is taken from it."""
    gone = checkpoints.write(tmp_path / "gone", checkpoints.config(num_hidden_layers=1))
    kept(start(gone, folder))
    its = only_file(folder)
    (folder / "notes.txt").touch()
    using: Driver | None = start(gone, folder)
    shutil.rmtree(gone)
    kept(start(model, folder))
    assert its.exists(), "a start has used it a moment ago"
    age(its)
    monkeypatch.setattr(packed_cache, "_code", lambda: "of tomorrow")
    kept(start(model, folder))
    assert its.exists(), "somebody has it mapped"
    del using
    gc.collect()
    monkeypatch.setattr(packed_cache, "_code", lambda: "of the day after")
    kept(start(model, folder))
    assert {path.name.split("-")[0] for path in folder.iterdir()} == {"a_model", "notes.txt"}


def test_what_a_commit_that_is_gone_has_packed_stays_for_those_that_use_it(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    first = snapshot(tmp_path, "a", model)
    kept(start(first, folder))
    its = only_file(folder)
    start(snapshot(tmp_path, "b", model), folder)
    shutil.rmtree(first)
    gc.collect()
    age(its)
    cache = PackedCache(folder, True)
    cache.remove_orphans()
    assert its.exists(), "the repository has a commit with these weights"
    shutil.rmtree(tmp_path / "models--o--n")
    cache.remove_orphans()
    assert not its.exists()


def test_the_usual_folder_is_beside_the_hubs_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert packed_cache.usual_folder() == Path("/data/hf/penstock/packed")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert packed_cache.usual_folder() == Path("/caches/huggingface/penstock/packed")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert packed_cache.usual_folder() == Path("~/.cache/huggingface/penstock/packed").expanduser()
