"""A model on the hub without its weights: their headers, and holes for the rest, for the doctor to look at before anything large is fetched.

Called by `client` before a large download, and by the doctor in place of one. Must not import torch.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import SafetensorsParsingError

from penstock.hub.request import LOOKUP_SECONDS, PARALLEL_FILES, Begun, Request, Unavailable, write
from penstock.hub.retries import persistently


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
