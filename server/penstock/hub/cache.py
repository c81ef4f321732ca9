"""What the hub's cache on this machine has of a model: snapshots that are complete, what interrupted downloads have left, and room for more.

The layout is `huggingface_hub`'s. Fetches nothing. Must not import torch.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from penstock.errors import UnusableModel
from penstock.hub import gguf_files
from penstock.hub.content import UNFINISHED, has_binding_locks, size_of, unfinished
from penstock.hub.files import REQUIRED, TOKENIZER, older_tokenizer, weight_files
from penstock.hub.request import AdapterAlone, GgufAlone, Listing, NoRoom, Request, Unavailable, write
from penstock.loading.model_files import ADAPTER, ADAPTER_WEIGHTS, SINGLE, gigabytes, is_adapter_alone
from penstock.loading.model_files import choose as choose_weights

# What `huggingface_hub` writes to: the name of the content, and eight digits at random, so that nobody finds the file again.
UNFINISHED_BY_LIBRARY = re.compile(r"(.+)\.[0-9a-f]{8}\.incomplete")
# No file's name.
NOTHING = "-"
# What nobody has written to for so long is nobody's, where locks may not bind everybody (`content.DISKS`).
ABANDONED_SECONDS = 3600.0


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
    if not request.adapter and _was_adapter_alone(request):
        raise AdapterAlone(f"{request.repo} is an adapter, and no model")
    if not request.adapter and request.gguf is None:
        other = snapshot_of_revision(replace(request, gguf=""))
        if other is not None and gguf_files.are_alone([path.name for path in other.rglob("*")]):
            raise GgufAlone(f"{request.repo} has GGUF files, and no others")
    if named is None:
        raise Unavailable(f"{why}, and {request.repo} is not in the cache {request.cache}")
    raise Unavailable(f"{why}, and the cache {request.cache} lacks {missing} of {request.repo}")


def remember_alone(request: Request, commit: str) -> None:
    """That the hub has an adapter in this commit and no weights of a model. As `huggingface_hub` keeps what is not there."""
    absent = request.storage / ".no_exist" / commit / SINGLE
    with suppress(OSError):  # the cache may be full, or for reading only
        absent.parent.mkdir(parents=True, exist_ok=True)
        absent.touch()


def _was_adapter_alone(request: Request) -> bool:
    """Of what the cache has of the revision."""
    folder = snapshot_of_revision(replace(request, adapter=True))
    if folder is None or not (request.storage / ".no_exist" / folder.name / SINGLE).exists():
        return False
    return is_adapter_alone({path.name for path in folder.iterdir()})


def cached_instead(request: Request, failure: Unavailable) -> Path:
    """A complete snapshot of an earlier download, or else the failure to make a newer one."""
    try:
        return cached(request, str(failure))
    except Unavailable:
        raise failure from failure.__context__


def snapshot_of_revision(request: Request) -> Path | None:
    """What the cache has of the commit that the revision was when it was last fetched."""
    try:
        return Path(
            snapshot_download(
                request.repo,
                revision=request.revision,
                cache_dir=request.cache,
                local_files_only=True,
                allow_patterns=_sought(request),
            )
        )
    except LocalEntryNotFoundError:
        return None


def _sought(request: Request) -> list[str]:
    """Patterns of what there is of a snapshot at least: the library gives none that lacks what they match, by its list of the commit's files."""
    if request.gguf is not None:
        return [NOTHING]
    return [ADAPTER] if request.adapter else list(REQUIRED)


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
    if request.gguf is not None:
        files = {str(file.relative_to(folder)) for file in folder.rglob("*.gguf")}
        try:
            gguf_files.choose(files, request.gguf, request.repo)
        except Unavailable:
            return f"the GGUF file {request.gguf}".rstrip()
        return None
    if request.adapter:
        return next((name for name in (ADAPTER, ADAPTER_WEIGHTS) if not (folder / name).exists()), None)
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


def bytes_in(storage: Path) -> int:
    """Bytes of the repository's content on this disk, finished or not."""
    return sum(size_of(file) for file in storage.glob("blobs/*"))
