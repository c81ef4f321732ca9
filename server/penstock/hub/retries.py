"""Requests to the hub that fail: which are made again and when, and what is said of them in one line.

Knows nothing of files. Must not import torch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from penstock.hub.request import TransferFailed, write

# How often a request is made where the hub is overloaded or not reached, and the pauses between, unless the hub names one. Its limits are
# for five minutes.
TRIES = 5
PAUSES = (1.0, 2.0, 4.0, 8.0)
LONGEST_PAUSE = 300.0

T = TypeVar("T")


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
