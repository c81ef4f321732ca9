"""Programs that tests use and that `make install` does not bring, and what else a machine may lack. Without one its tests are skipped, with
the reason; `.ci/run` and `make test-all` set PENSTOCK_TEST_EVERYTHING, and then that is a failure.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

EVERYTHING = "PENSTOCK_TEST_EVERYTHING" in os.environ


def missing(reason: str) -> NoReturn:
    if EVERYTHING:
        pytest.fail(reason)
    pytest.skip(reason)


def installed(*names: str, package: str) -> str:
    """Where the first of these programs that is here lies."""
    for name in names:
        if found := shutil.which(name):
            return found
    missing(f"{names[0]} is not installed (on Debian: apt-get install {package})")


def needs(program: str) -> pytest.MarkDecorator:
    """For tests that start it by its name, which fails by itself where it is missing."""
    gone = shutil.which(program) is None and not EVERYTHING
    return pytest.mark.skipif(gone, reason=f"{program} is not installed")
