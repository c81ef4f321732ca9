"""Brings a model or an adapter from the hub to this machine.

Called by `penstock.download` and by the doctor. `files` says what is fetched, `cache` what is there already, and `content` fetches weights;
the protocol is `huggingface_hub`'s. Says how it goes in JSON lines on standard output. Must not import torch.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.hub import gguf_files
from penstock.hub.cache import (
    cached,
    cached_instead,
    check_room,
    has_weights_of_revision,
    remember,
    remember_alone,
    remove_abandoned,
)
from penstock.hub.content import fetch_resumable
from penstock.hub.files import (
    CHAT_TEMPLATE,
    TOKENIZER,
    check_adapter,
    check_small,
    choose,
    is_code,
    is_small,
    of_tokenizer,
    older_tokenizer,
    weight_files,
)
from penstock.hub.outline import check_outline
from penstock.hub.progress import progress
from penstock.hub.request import (
    LOOKUP_SECONDS,
    PARALLEL_FILES,
    Begun,
    Listing,
    NoRoom,
    Request,
    TransferFailed,
    Unavailable,
    write,
)
from penstock.hub.retries import answers_of_the_hub, is_network_failure, one_line, persistently, said_by
from penstock.loading.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    PICKLE,
    SINGLE,
    read_config,
    read_json,
    unread_adapter,
)

# What the system says of a disk without room, and of one that is not to be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

# Downloads of this many bytes or more are examined by the doctor first, which takes some seconds.
LARGE = 256 << 20


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
        raise Unavailable(f"{request.called} is gated: {way_out}") from error
    except RevisionNotFoundError as error:
        raise Unavailable(f"{request.called} has no revision {request.revision or 'main'}") from error
    except RepositoryNotFoundError as error:
        way_out = "the token in use cannot see it" if get_token() else "if it is private, set HF_TOKEN"
        raise Unavailable(
            f"there is no {request.called.removeprefix('the ')} on the hub; {way_out}"
        ) from error
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
            raise Unavailable(f"{request.called} cannot be served: {error}") from error
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
        has_outline = not begun.pickled and request.gguf is None
        if examine is not None and total >= LARGE and has_outline:
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
    if request.adapter:
        return _begin_adapter(request, listing)
    if request.gguf is not None:
        return _begin_gguf(request, listing)
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


def _begin_gguf(request: Request, listing: Listing) -> Begun:
    files = gguf_files.choose(listing.sizes, request.gguf or "", request.called)
    every = gguf_files.models(listing.sizes)
    if not request.gguf and len(every) > 1:
        tags = ", ".join(sorted({gguf_files.tag_of(model) for model in every}))
        write(
            level="INFO",
            message=f"of {request.repo} {files[0]} is served; {request.repo}:TAG names another: {tags}",
        )
    remove_abandoned(request)
    beside = [name for name in (TOKENIZER, CHAT_TEMPLATE) if name in listing.sizes]
    check_room(request, listing, beside)
    folder = request.storage / "snapshots" / listing.commit
    return Begun(listing, snapshot(request, listing.commit, beside) if beside else folder, files, False)


def _begin_adapter(request: Request, listing: Listing) -> Begun:
    from penstock.adapters import config

    check_adapter(listing.sizes, request)
    names = [ADAPTER, *(of_tokenizer(listing.sizes) if request.merged else ())]
    remove_abandoned(request)
    check_room(request, listing, names)
    folder = snapshot(request, listing.commit, names)
    if request.merged:
        remember_alone(request, listing.commit)
    config.parse(read_json(folder, ADAPTER) or {}, is_merged=request.merged)
    return Begun(listing, folder, [ADAPTER_WEIGHTS], False)


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
