"""How a download goes, on a bar or in lines of the log. Reads it off the disk. Must not import torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from penstock.hub.cache import bytes_in, bytes_there
from penstock.hub.request import Listing, Request, write
from penstock.loading.model_files import gigabytes

PROGRESS_SECONDS = 10.0


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
