"""Fetches one file's content into the hub's cache: goes on where an earlier process was interrupted, and lets one process fetch at a time.

Called for the weights, of which a download may last for hours. Must not import torch.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import HfFileMetadata, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers
from huggingface_hub.utils._runtime import is_xet_available

from penstock.hub.request import Request, TransferFailed, Unavailable, write
from penstock.hub.retries import is_passing, one_line
from penstock.loading.model_files import gigabytes

# What is there of a file that Penstock fetches, and a later process goes on with. Before it a name of the process's own, so that no two write
# to one file where locks bind nobody.
UNFINISHED = ".penstock.incomplete"
PROCESS = secrets.token_hex(4)
# Here a lock binds all who could write. On a network's file systems it may bind the processes of one machine (NFS with `local_lock`, Lustre
# with `localflock`), or nobody.
DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"}
# What nobody has written to for so long is nobody's there. It is written to with every 10 MiB.
QUIET_SECONDS = 120.0
TURN_SECONDS = 0.5


def fetch_resumable(request: Request, commit: str, name: str) -> None:
    """Puts one file's content into the cache, going on where an earlier process was interrupted.

    `huggingface_hub` resumes within one process only: a killed download starts its file again. Content that
    the hub keeps in chunks (xet) is left to the library, which is faster at it, unless it may not fetch chunks.
    """
    url = hf_hub_url(request.repo, name, revision=commit)
    metadata = get_hf_file_metadata(url)
    if metadata.etag is None or metadata.size is None:
        return
    if metadata.xet_file_data is not None and is_xet_available():  # as the library asks
        return
    blob = request.storage / "blobs" / metadata.etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    while not blob.exists():
        with turn(blob, name):
            if not blob.exists():
                fetch_content(name, url, metadata, blob)


@contextmanager
def turn(blob: Path, name: str) -> Iterator[None]:
    """Waits until this content is there, or nobody else fetches it: by a lock, and where that may not bind everybody, or its holder may be a
    host that is gone, by when something was last written.
    """
    lock = blob.with_name(f"{blob.name}.penstock.lock")
    is_on_disk = has_binding_locks(blob.parent)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        began, is_told = time.monotonic(), False
        while not blob.exists():
            is_held = not try_lock(descriptor)
            if is_on_disk:
                is_free = not is_held
            else:
                has_waited = time.monotonic() - began >= QUIET_SECONDS
                is_free = not is_written(blob, descriptor) and (has_waited or not is_held)
            if is_free:
                break
            if not is_told:
                is_told = True
                write(level="INFO", message=f"another process fetches {name}, or did a moment ago: waiting")
            time.sleep(TURN_SECONDS)
        yield
    finally:
        os.close(descriptor)
    if blob.exists():  # nobody has to wait any more
        lock.unlink(missing_ok=True)


def try_lock(descriptor: int) -> bool:
    """False: another has it. True also where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def is_written(blob: Path, descriptor: int) -> bool:
    """Whether another process has written to this content a moment ago. By the clock that gives files their times, which the file of
    `descriptor` is asked for: it may be another machine's.
    """
    os.utime(descriptor)
    now = os.fstat(descriptor).st_mtime
    for file in unfinished(blob):
        with suppress(FileNotFoundError):
            if file != own_file(blob) and now - file.stat().st_mtime < QUIET_SECONDS:
                return True
    return False


def fetch_content(name: str, url: str, metadata: HfFileMetadata, blob: Path) -> None:
    """Fetches what is missing of `blob`, which is there afterwards, unless another process has taken over what this one had."""
    assert metadata.etag is not None and metadata.size is not None
    partial = own_file(blob)
    for left in sorted(unfinished(blob), key=size_of, reverse=True):
        if not partial.exists():
            with suppress(FileNotFoundError):
                left.rename(partial)
    partial.touch()
    done = min(size_of(partial), metadata.size)
    if done:
        write(level="INFO", message=f"going on with {name} at {gigabytes(done)}")
    with partial.open("r+b") as sink:
        # It is not cut: who wrote it may not have ended, and would leave a hole.
        sink.seek(done)
        links = fetch_rest(name, url, metadata, sink)
    with suppress(FileNotFoundError):
        # The content of a large file is named by its SHA-256. Pieces of two answers are worth a look.
        in_pieces = done or links > 1
        if in_pieces and len(metadata.etag) == 64 and sha256(partial) != metadata.etag:
            partial.unlink()
            raise Unavailable(f"the download of {name} went wrong: start again")
        if blob.exists():  # others may be reading it, of whom another machine would lose what is replaced
            partial.unlink()
        else:
            partial.replace(blob)


def fetch_rest(name: str, url: str, metadata: HfFileMetadata, sink: BufferedRandom) -> int:
    """Fetches what `sink` lacks behind its position, and says how many links that took.

    A link to where the hub stores a file expires, often after an hour, and `http_get` keeps to the one that it was given. As long as each
    brings something, a link that is refused is answered by asking the hub for another.
    """
    links = 1
    while True:
        store = urlsplit(metadata.location).netloc
        is_the_hubs = store == urlsplit(url).netloc
        headers = build_hf_headers()
        if not is_the_hubs:
            headers.pop("authorization", None)  # the token is for the hub, not for who stores its files
        done = sink.tell()
        try:
            http_get(metadata.location, sink, resume_size=done, headers=headers, expected_size=metadata.size)
            return links
        except HfHubHTTPError as error:
            if is_the_hubs or is_passing(error):
                raise
            if sink.tell() <= done:
                host, status = store.rpartition("@")[2], error.response.status_code
                raise TransferFailed(f"{host}, which stores {name}, answers with status {status}") from error
        except ValueError as error:
            # Too large a file for the library, where the hub does not keep it in chunks.
            raise TransferFailed(f"{name}: {one_line(error)}") from error
        metadata = get_hf_file_metadata(url)
        links += 1


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_binding_locks(folder: Path) -> bool:
    """Whether a lock of a file in here binds everybody who sees it."""
    with suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        return file_system(folder.resolve(), mounts) in DISKS
    return False


def file_system(place: Path, mounts: str) -> str:
    """Its type, by what the kernel says of mounts (proc_pid_mountinfo(5)); the last mount of a folder is the one that is seen."""
    depth, found = 0, ""
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4]))
        if place.is_relative_to(point) and len(point.parts) >= depth:
            depth, found = len(point.parts), behind.split()[0]
    return found


def unfinished(blob: Path) -> list[Path]:
    """Where processes keep what `fetch_content` has of this content."""
    return list(blob.parent.glob(f"{glob.escape(blob.name)}*{UNFINISHED}"))


def own_file(blob: Path) -> Path:
    """That of this process."""
    return blob.with_name(f"{blob.name}.{PROCESS}{UNFINISHED}")


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # not there, or renamed meanwhile
        return 0
