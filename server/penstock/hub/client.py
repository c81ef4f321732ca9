"""Brings a model from the hub to this machine.

Called by `penstock.download` and by the doctor. Knows which files Penstock needs and where the hub's cache keeps
them; the protocol is `huggingface_hub`'s. Says how it goes in JSON lines on standard output. Must not import torch.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import glob
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedRandom
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from filelock import FileLock
from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    ModelInfo,
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers, disable_progress_bars
from huggingface_hub.utils._runtime import is_xet_available
from tqdm import tqdm

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.hub.tokenizer import SOURCES, why_none
from penstock.loading.model_files import (
    CONFIG,
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    SINGLE,
    gigabytes,
    read_config,
    read_index,
    unread_adapter,
    why_no_config,
)
from penstock.loading.model_files import choose as choose_weights

REQUIRED = (CONFIG,)
TOKENIZER = "tokenizer.json"
# Patterns of fnmatch. Everything else in a repository (pickled weights, other frameworks, pictures) stays there.
OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    *quantization.BESIDE,
)

# What the system says of a disk without room, and of one that is not to be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

# What is there of a file that Penstock fetches, and a later process goes on with. Before it a name of the process's own, so that no two write
# to one file where locks bind nobody.
UNFINISHED = ".penstock.incomplete"
PROCESS = secrets.token_hex(4)
# What `huggingface_hub` writes to: the name of the content, and eight digits at random, so that nobody finds the file again.
UNFINISHED_BY_LIBRARY = re.compile(r"(.+)\.[0-9a-f]{8}\.incomplete")
# Here a lock binds all who could write. On a network's file systems it may bind the processes of one machine (NFS with `local_lock`, Lustre
# with `localflock`), or nobody. What nobody has written to for so long is nobody's there: of the library's, and of ours, which is written to
# with every 10 MiB.
DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"}
ABANDONED_SECONDS = 3600.0
QUIET_SECONDS = 120.0
TURN_SECONDS = 0.5

PARALLEL_FILES = 8
# Downloads of this many bytes or more are examined by the doctor first, which takes some seconds.
LARGE = 256 << 20
PROGRESS_SECONDS = 10.0
LOOKUP_SECONDS = 20.0
# How often a request is made where the hub is overloaded or not reached, and the pauses between, unless the hub names one. Its limits are
# for five minutes.
TRIES = 5
PAUSES = (1.0, 2.0, 4.0, 8.0)
LONGEST_PAUSE = 300.0

T = TypeVar("T")


class Unavailable(Exception):
    """The model cannot be had; the text is one line for the user."""


class NoRoom(Unavailable):
    """The disk has none for what is to be fetched."""


class TransferFailed(Exception):
    """Something has answered, and not with what was asked for."""


@dataclass(frozen=True)
class Request:
    repo: str
    revision: str | None
    cache: Path
    bar: bool = False
    trusted: bool = False  # the user has agreed to pickled weights and to the repository's code
    weights: bool = True  # this machine reads them; else other hosts do, and only the rest is wanted

    @property
    def storage(self) -> Path:
        """Where the cache keeps this repository."""
        return self.cache / repo_folder_name(repo_id=self.repo, repo_type="model")


@dataclass(frozen=True)
class Listing:
    """What the hub has: a commit, its files with their sizes in bytes and what the cache calls their content, where the hub says
    that, and the task that it names for the model, if it does.
    """

    commit: str
    sizes: dict[str, int]
    blobs: dict[str, str]
    pipeline_tag: str | None = None


@dataclass(frozen=True)
class Begun:
    """A snapshot with all but the weights."""

    listing: Listing
    folder: Path
    weights: list[str]
    pickled: bool

    @property
    def left(self) -> list[str]:
        """Weight files that are not there yet."""
        return [name for name in self.weights if not (self.folder / name).exists()]


def write(**line: Any) -> None:
    print(json.dumps(line) + "\n", end="", flush=True)  # in one piece: several threads write


def cache_folder(named: Path | None, repo: str) -> Path:
    """Where downloads of `repo` are kept.

    Where neither flag nor environment name a folder it is `hub` in HF_HOME. A model that lies in HF_HOME itself is used and kept
    there: it is where images of TGI 2 and the first ones of Penstock put what is now in `hub`.
    """
    if named is not None:
        return named.expanduser().absolute()
    usual, home = Path(constants.HF_HUB_CACHE).absolute(), Path(constants.HF_HOME).absolute()
    storage = f"models--{repo.replace('/', '--')}"  # as `repo_folder_name`, which takes no name that is wrong

    def has(folder: Path) -> bool:
        return (folder / storage / "snapshots").is_dir()

    return home if usual == home / "hub" and has(home) and not has(usual) else usual


def keep_xet_in(cache: Path) -> None:
    """hf_xet stages what it fetches in HF_HOME, wherever downloads go. Where another folder was named for them, HF_HOME may be one that this
    user cannot write, and what is staged belongs there.
    """
    home = Path(constants.HF_HOME).absolute()
    if not os.environ.get("HF_XET_CACHE") and cache not in (home, home / "hub"):
        os.environ["HF_XET_CACHE"] = str(cache / "penstock-xet")


def _xet_folder() -> Path:
    named = os.environ.get("HF_XET_CACHE")
    return Path(named) if named else Path(constants.HF_HOME) / "xet"


def keep_libraries_quiet() -> None:
    """What they have to say is no line of anybody's protocol."""
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def obtain(request: Request, bring: Callable[[Request], Path]) -> Path:
    """The folder that `bring` makes, by `begin` and `complete`. Raises Unavailable.

    Where the hub does not answer, or does not send a file, or where what it sends cannot be kept, it is the snapshot that is in the cache.
    """
    try:
        return bring(request)
    except GatedRepoError as error:
        way_out = (
            "the token in use has no access to it"
            if get_token()
            else "ask for access on its page, and set HF_TOKEN to a token of yours"
        )
        raise Unavailable(f"the model {request.repo} is gated: {way_out}") from error
    except RevisionNotFoundError as error:
        raise Unavailable(f"the model {request.repo} has no revision {request.revision or 'main'}") from error
    except RepositoryNotFoundError as error:
        way_out = "the token in use cannot see it" if get_token() else "if it is private, set HF_TOKEN"
        raise Unavailable(f"there is no model {request.repo} on the hub; {way_out}") from error
    except HFValidationError as error:
        raise Unavailable(
            f"there is no folder {request.repo}, and it is no name of a model on the hub (owner/name)"
        ) from error
    except OfflineModeIsEnabled:
        return cached(request, "HF_HUB_OFFLINE is set")
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise Unavailable(
                f"the hub refuses the token in use for {request.repo} (status {status})"
            ) from error
        return cached(request, said_by(error))
    except TransferFailed as error:
        return cached(request, f"the download of {request.repo} failed ({error})")
    except NoRoom as error:
        return cached_instead(request, error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            full = NoRoom(f"the disk is full: {request.repo} does not fit into {request.cache}")
            return cached_instead(request, full)
        if is_network_failure(error):
            return cached(request, said_by(error))
        if isinstance(error, UnusableModel):
            raise Unavailable(f"the model {request.repo} cannot be served: {error}") from error
        if isinstance(error, OSError) and error.errno in FORBIDDEN:
            return cached_instead(request, Unavailable(forbidden(request, error)))
        if isinstance(error, OSError):
            raise Unavailable(f"the download of {request.repo} failed: {one_line(error)}") from error
        raise


def forbidden(request: Request, error: OSError) -> str:
    """What keeps this user from keeping the download, and the way out."""
    place = error.filename if isinstance(error.filename, str) else request.cache
    if error.errno == errno.EROFS:
        why = "nobody can write there"
    else:
        why = f"user {os.geteuid()}, who runs this, may not write there"
    return f"the download of {request.repo} cannot be kept in {place}: {why}; --huggingface-hub-cache names another folder"


def complete(request: Request, begun: Begun, examine: Callable[[Path], list[str]] | None) -> Path:
    """The folder of a complete snapshot. `examine` says what speaks against serving a folder, and is asked before
    something large is fetched; None: whether it can be served here is not asked.
    """
    commit, left = begun.listing.commit, begun.left
    if left:
        check_room(request, begun.listing, left)
        total = sum(begun.listing.sizes[name] for name in left)
        if examine is not None and total >= LARGE and not begun.pickled:
            check_outline(request, begun, examine)
        with progress(request, begun.listing, left):
            with ThreadPoolExecutor(PARALLEL_FILES) as pool:
                list(
                    pool.map(lambda name: persistently(lambda: fetch_resumable(request, commit, name)), left)
                )
            snapshot(request, commit, begun.weights)
    if request.weights or not has_weights_of_revision(request):
        remember(request, commit)
    return begun.folder


def begin(request: Request) -> Begun:
    """Everything but the weights, once nothing speaks against the repository so far."""
    listing = look_up(request)
    check_small(listing.sizes, request)
    leads, pickled = choose(listing.sizes, request) if request.weights else (SINGLE, False)
    adapter = unread_adapter(listing.sizes)  # it is not fetched, so that the worker does not see it
    if request.weights and adapter is not None:
        write(level="WARN", message=f"{request.repo}: {adapter}")
    names = [name for name in listing.sizes if is_small(name) or (request.trusted and is_code(name))]
    if leads not in (SINGLE, PICKLE, *names):
        names.append(leads)
    if TOKENIZER not in listing.sizes:
        names += older_tokenizer(listing.sizes)
    remove_abandoned(request)
    check_room(request, listing, names)
    folder = snapshot(request, listing.commit, names)
    quantization.refuse(read_config(folder), folder)
    if not request.weights:
        return Begun(listing, folder, [], False)
    weights = weight_files(folder, leads)
    absent = [name for name in weights if name not in listing.sizes]
    if absent:
        raise Unavailable(f"{request.repo} has no {absent[0]}, which its {leads} names")
    return Begun(listing, folder, weights, pickled)


def check_outline(request: Request, begun: Begun, examine: Callable[[Path], list[str]]) -> None:
    """Raises Unavailable when the model would not be served: it need not be fetched then."""
    write(level="INFO", message=f"looking at the headers of {request.repo}'s weights")
    with tempfile.TemporaryDirectory() as into:
        outline(request, begun, Path(into))
        problems = examine(Path(into))
    if problems:
        raise Unavailable(f"the model {request.repo} would not be served: {'; '.join(problems)}")


def outline(request: Request, begun: Begun, into: Path) -> None:
    """Makes `into` look like the snapshot, with files of weights that have their headers, and holes for the rest.

    Takes some kilobytes of the network and of the disk for each file. Of pickled weights nothing is known
    without them.
    """
    hub = HfApi()

    def fetch(name: str) -> None:
        try:
            known = persistently(
                lambda: hub.parse_safetensors_file_metadata(
                    request.repo, name, revision=begun.listing.commit, timeout=LOOKUP_SECONDS
                )
            )
        except SafetensorsParsingError as error:
            raise Unavailable(
                f"{name} of {request.repo}: not a sound safetensors file: its header cannot be read"
            ) from error
        header = json.dumps(
            {
                tensor: {
                    "dtype": info.dtype,
                    "shape": info.shape,
                    "data_offsets": list(info.data_offsets),
                }
                for tensor, info in known.tensors.items()
            }
        ).encode()
        end = max((info.data_offsets[1] for info in known.tensors.values()), default=0)
        if 8 + end > begun.listing.sizes[name]:
            size = begun.listing.sizes[name]
            raise Unavailable(f"{name} of {request.repo} is cut short: {size} bytes of {8 + end} or more")
        with (into / name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + end)

    for file in begun.folder.rglob("*"):
        if file.is_file():
            link = into / file.relative_to(begun.folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
    if not begun.pickled:
        with ThreadPoolExecutor(PARALLEL_FILES) as pool:
            list(pool.map(fetch, begun.left))


def look_up(request: Request) -> Listing:
    def ask() -> ModelInfo:
        return HfApi().model_info(
            request.repo, revision=request.revision, files_metadata=True, timeout=LOOKUP_SECONDS
        )

    # With a snapshot to serve instead, a start does not wait for a hub that is away.
    revision = request.revision or constants.DEFAULT_REVISION
    is_cached = any((request.storage / kept / revision).exists() for kept in ("refs", "snapshots"))
    with answers_of_the_hub():
        info = persistently(ask, 1 if is_cached else 2)
    if info.sha is None:
        raise Unavailable(f"the hub names no commit of {request.repo}")
    files = info.siblings or []
    sizes = {file.rfilename: file.size or 0 for file in files}
    named = {file.rfilename: file.blob_id if file.lfs is None else file.lfs.sha256 for file in files}
    blobs = {name: blob for name, blob in named.items() if blob is not None}
    return Listing(info.sha, sizes, blobs, info.pipeline_tag)


def check_small(names: Collection[str], request: Request) -> None:
    """Refuses a repository that lacks what every model needs beside its weights."""
    for name in REQUIRED:
        if name not in names:
            raise Unavailable(f"the model {request.repo} has no {name}{why_no_config(names)}")
    if TOKENIZER not in names and not older_tokenizer(names):
        raise Unavailable(
            f"the model {request.repo} has no {TOKENIZER}, nor the files that one can be made of{why_none(names)}"
        )


def choose(names: Collection[str], request: Request) -> tuple[str, bool]:
    """What leads to the weights, and whether they are pickled. Refuses a repository that has none that are served."""
    try:
        return choose_weights(names, request.trusted)
    except UnusableModel as error:
        raise Unavailable(f"the model {request.repo} has {error}") from error


def is_small(name: str) -> bool:
    return name in (*REQUIRED, TOKENIZER, INDEX) or any(
        fnmatch.fnmatchcase(name, pattern) for pattern in OPTIONAL
    )


def is_code(name: str) -> bool:
    return name.endswith(".py") and "/" not in name


def older_tokenizer(names: Collection[str]) -> list[str]:
    """The files that `penstock.hub.tokenizer` can make a tokenizer.json of; none when something is missing."""
    return next((list(files) for files in SOURCES if all(name in names for name in files)), [])


def weight_files(folder: Path, leads: str) -> list[str]:
    """The files that hold the weights, of which `leads` is the only one or the index."""
    if leads in (SINGLE, PICKLE):
        return [leads]
    try:
        shards = read_index(folder / leads, ".bin" if leads == PICKLE_INDEX else ".safetensors")
    except UnusableModel as error:
        raise Unavailable(f"the model does not say which files hold its weights: {error}") from error
    return sorted(set(shards.values()))


def snapshot(request: Request, commit: str, names: list[str]) -> Path:
    """Fetches what is not yet there and links it into the commit's folder. A branch may move on meanwhile."""
    try:
        with answers_of_the_hub():
            folder = Path(
                snapshot_download(
                    request.repo,
                    revision=commit,
                    cache_dir=request.cache,
                    allow_patterns=[glob.escape(name) for name in names],
                    max_workers=PARALLEL_FILES,
                )
            )
    except (
        LocalEntryNotFoundError
    ) as error:  # the library's, for whatever keeps a file of this commit from coming
        raise TransferFailed(said_by(error.__cause__ or error)) from error
    except (RuntimeError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        # hf_xet's, which says in words what the system said.
        said = re.search(r"\(os error (\d+)\)", str(error))
        number = int(said[1]) if said else 0
        if number in NO_ROOM:
            raise OSError(number, one_line(error)) from error
        if number in FORBIDDEN:
            place = f"{request.cache} or {_xet_folder()}"
            raise OSError(number, one_line(error), place) from error
        raise TransferFailed(one_line(error)) from error
    # Where the hub does not list the commit's files again, and no earlier download has kept the list, the library gives the folder as it is.
    missing = next((name for name in names if not (folder / name).exists()), None)
    if missing is not None:
        raise TransferFailed(f"{missing} did not come")
    return folder


def remember(request: Request, commit: str) -> None:
    """What the revision is where the hub does not answer: a commit of which everything is there that some server on this cache needs. As
    `huggingface_hub` keeps it.
    """
    revision = request.revision or constants.DEFAULT_REVISION
    ref = request.storage / "refs" / revision
    written = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
    with suppress(OSError):  # the cache may be full, or for reading only
        if revision != commit and not (ref.exists() and ref.read_text() == commit):
            ref.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(commit)
            written.replace(ref)


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


def cached(request: Request, why: str) -> Path:
    """A complete snapshot of an earlier download, when the hub does not answer: of the commit that the revision was then, or else of
    another. What other programs fetch of a model moves the branch before its files are there, some of which they never want.
    """
    named = snapshot_of_revision(request)
    missing = None if named is None else lacking(request, named)
    is_whole = named is not None and missing is None
    folder = named if is_whole else newest_whole(request)
    if folder is not None:
        which = "" if is_whole else ", the newest that is complete"
        write(
            level="WARN", message=f"{why}: using the cached snapshot {folder.name} of {request.repo}{which}"
        )
        return folder
    if named is None:
        raise Unavailable(f"{why}, and {request.repo} is not in the cache {request.cache}")
    raise Unavailable(f"{why}, and the cache {request.cache} lacks {missing} of {request.repo}")


def snapshot_of_revision(request: Request) -> Path | None:
    """What the cache has of the commit that the revision was when it was last fetched."""
    try:
        return Path(
            snapshot_download(
                request.repo,
                revision=request.revision,
                cache_dir=request.cache,
                local_files_only=True,
                allow_patterns=list(REQUIRED),
            )
        )
    except LocalEntryNotFoundError:
        return None


def newest_whole(request: Request) -> Path | None:
    """Of the commits in the cache, for who asks for the usual revision; none that is another revision's."""
    usual = constants.DEFAULT_REVISION
    if request.revision not in (None, usual):
        return None
    refs = request.storage / "refs"
    others = {ref.read_text() for ref in refs.rglob("*") if ref.is_file() and ref != refs / usual}
    snapshots = [path for path in request.storage.glob("snapshots/*/") if path.name not in others]
    whole = (path for path in snapshots if lacking(request, path) is None)
    return max(whole, key=lambda path: path.stat().st_mtime, default=None)


def lacking(request: Request, folder: Path) -> str | None:
    """The first file without which a snapshot is not served; None: it is complete."""
    names = {path.name for path in folder.iterdir()}
    weights: list[str] = []
    if request.weights:
        leads = SINGLE
        try:
            leads = choose_weights(names, request.trusted)[0]
            weights = weight_files(folder, leads)
        except UnusableModel:
            weights = [SINGLE]
        except Unavailable:  # it does not say what it leads to
            return f"a sound {leads}"
    tokenizer = older_tokenizer(names) or [TOKENIZER]
    return next((name for name in (*REQUIRED, *tokenizer, *weights) if not (folder / name).exists()), None)


def has_weights_of_revision(request: Request) -> bool:
    """Whether the cache has all of what the revision was when it was last fetched, of which other servers may read the weights."""
    folder = snapshot_of_revision(request)
    return folder is not None and lacking(replace(request, weights=True), folder) is None


def cached_instead(request: Request, failure: Unavailable) -> Path:
    """A complete snapshot of an earlier download, or else the failure to make a newer one."""
    try:
        return cached(request, str(failure))
    except Unavailable:
        raise failure from failure.__context__


def remove_abandoned(request: Request) -> None:
    """Removes what downloads of `huggingface_hub` left when their process was killed. Who writes to a file holds the lock of its content."""
    removed = 0
    has_locks = has_binding_locks(request.storage)
    for file in request.storage.glob("blobs/*.incomplete"):
        named = UNFINISHED_BY_LIBRARY.fullmatch(file.name)
        if named is None:
            continue
        lock = request.cache / ".locks" / request.storage.name / f"{named[1]}.lock"
        with suppress(OSError, NotImplementedError):  # it is held, there are no locks, or this user may not
            known = file.stat()
            if not has_locks and time.time() - known.st_mtime < ABANDONED_SECONDS:
                continue
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=0, mode=0o664):  # the mode that the library gives it
                file.unlink()
            removed += known.st_size
    if removed:
        message = f"removed what interrupted downloads of {request.repo} had left: {gigabytes(removed)}"
        write(level="INFO", message=message)


def check_room(request: Request, listing: Listing, names: list[str]) -> None:
    """Raises NoRoom where the disk has no room for those of the files that the snapshot lacks."""
    folder = request.storage / "snapshots" / listing.commit
    lacking = [name for name in names if not (folder / name).exists()]
    needed = sum(listing.sizes[name] for name in lacking) - bytes_there(request, listing, lacking)
    place = next(folder for folder in (request.cache, *request.cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise NoRoom(
            f"the disk is too full: {request.repo} needs {gigabytes(needed)} more in {request.cache}, "
            f"and {gigabytes(free)} are free"
        )


def bytes_there(request: Request, listing: Listing, names: list[str]) -> int:
    """Bytes of these files that an interrupted download has left: of finished ones, which get their links when all are, and of unfinished ones."""
    blobs = request.storage / "blobs"
    total = 0
    for name in names:
        if name in listing.blobs:
            blob = blobs / listing.blobs[name]
            there = size_of(blob) or max(map(size_of, unfinished(blob)), default=0)
            total += min(there, listing.sizes[name])
    unnamed = sum(listing.sizes[name] for name in names if name not in listing.blobs)
    if unnamed:  # what no snapshot has a link to may be theirs
        linked = {link.resolve() for link in request.storage.glob("snapshots/*/**/*")}
        loose = [blob for blob in blobs.glob("*") if blob.resolve() not in linked]
        ours = [blob for blob in loose if blob.name.endswith(UNFINISHED) or blob.suffix != ".incomplete"]
        total += min(sum(map(size_of, ours)), unnamed)
    return total


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


def bytes_in(storage: Path) -> int:
    """Bytes of the repository's content on this disk, finished or not."""
    return sum(size_of(file) for file in storage.glob("blobs/*"))


@contextmanager
def progress(request: Request, listing: Listing, names: list[str]) -> Iterator[None]:
    """Shows how a download of these files goes: a bar, or a line now and then.

    Read off the disk, since the library's own counters differ with the way it takes.
    """
    total = sum(listing.sizes[name] for name in names)
    start = bytes_in(request.storage)
    began = time.monotonic()
    ended = threading.Event()
    before = bytes_there(request, listing, names)
    write(level="INFO", message=f"downloading {request.repo}: {gigabytes(total - before)}")

    def show_bar() -> None:
        with tqdm(total=total, initial=before, unit="B", unit_scale=True, desc=request.repo) as bar:
            while not ended.wait(0.25):
                bar.update(min(total, bytes_in(request.storage) - start + before) - bar.n)
            bar.update(total - bar.n)

    def log_now_and_then() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            done = bytes_in(request.storage) - start
            rate = done / (time.monotonic() - began) / 1e6
            part = min(1.0, (before + done) / max(total, 1))
            message = f"downloading {request.repo}: {part:.0%} of {gigabytes(total)}, {rate:.0f} MB/s"
            write(level="INFO", message=message)

    shown = threading.Thread(target=show_bar if request.bar else log_now_and_then, daemon=True)
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


@contextmanager
def answers_of_the_hub() -> Iterator[None]:
    """Requests whose answers are JSON: one that is something else, of a proxy, a captive portal or what HF_ENDPOINT names, is a TransferFailed."""
    try:
        yield
    except (HFValidationError, HfHubHTTPError):  # of which some are ValueErrors, too
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        host = urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]
        raise TransferFailed(f"{host} does not answer as a hub does: {one_line(error)}") from error


def persistently(ask: Callable[[], T], tries: int = TRIES) -> T:
    """What `ask` gives, which is called again where the hub is overloaded or not reached for a moment."""
    for pause in PAUSES[: tries - 1]:
        try:
            return ask()
        except Exception as error:
            if not is_passing(error):
                raise
            pause = max(pause, pause_asked_for(error))
            write(level="INFO", message=f"{said_by(error)}: it is asked again in {pause:.0f} s")
            time.sleep(pause)
    return ask()


def is_passing(error: BaseException) -> bool:
    """Whether the same request may be answered a moment later."""
    if isinstance(error, HfHubHTTPError):
        status: int = error.response.status_code
        return status in (408, 429) or status >= 500
    return is_network_failure(error) and not isinstance(error, OfflineModeIsEnabled)


def pause_asked_for(error: BaseException) -> float:
    """Seconds that the hub asks for, by `Retry-After` or by when its limit's window ends; 0: it does not say."""
    if not isinstance(error, HfHubHTTPError):
        return 0
    headers = error.response.headers
    said = re.fullmatch(r"\s*(\d+)\s*", headers.get("Retry-After", ""))
    if said is None and error.response.status_code == 429:
        said = re.search(r";\s*t\s*=\s*(\d+)", headers.get("RateLimit", ""))
    return min(float(said[1]), LONGEST_PAUSE) if said is not None else 0


def said_by(error: BaseException) -> str:
    """What went wrong with a request, in one line."""
    if isinstance(error, HfHubHTTPError):
        return f"the hub answers with status {error.response.status_code}"
    if is_network_failure(error):
        return f"the hub cannot be reached ({type(error).__name__})"
    return one_line(error)


def is_network_failure(error: BaseException) -> bool:
    """By the name of a base class: which HTTP library raises differs with `huggingface_hub`'s version."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "TimeoutError"})


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
