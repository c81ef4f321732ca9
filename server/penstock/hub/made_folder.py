"""A model's folder that is made of something else (an adapter and its base model, a GGUF file), kept in a cache. Must not import torch."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.hub.tokenizer import check_private


def obtain(cache: Path | None, kind: str, name: str, write: Callable[[Path], None]) -> tuple[Path, bool]:
    """The folder of this name, and whether it was there already. `write` fills an empty one; it comes to its name whole or not at all, also when two servers start
    at once. `kind`: what such folders are, in the cache's own name. `name` says of what it is made, to the last byte. Raises OSError, and what `write` raises.
    """
    failure: OSError | None = None
    places = (place_in(cache, kind), Path(tempfile.gettempdir()) / f"penstock-{kind}-{os.getuid()}")
    for place in places:
        if _is_ours(place / name):
            return place / name, True
    for place in places:
        try:
            return _make(place, name, write), False
        except OSError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def place_in(cache: Path | None, kind: str) -> Path:
    """Beside what the hub's cache holds, or where the user said."""
    if cache is None:
        from huggingface_hub import constants

        return Path(constants.HF_HOME).expanduser() / "penstock" / kind
    return cache.expanduser().absolute() / f"penstock-{kind}"


def _make(place: Path, name: str, write: Callable[[Path], None]) -> Path:
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(place)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=place))
    try:
        write(partial)
        partial.chmod(0o755)
        try:
            partial.rename(place / name)
        except OSError:
            # Another start was first.
            if not _is_ours(place / name):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place / name


def _is_ours(folder: Path) -> bool:
    try:
        check_private(folder.parent)
        found = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and found.st_uid == os.getuid()
