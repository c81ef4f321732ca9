"""Whether our kernels compute on a GPU, and what is said where they cannot."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock_kernels.gpu import choice

triton = pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Of this process' environment."""
    for cached in (choice.why_not, choice.unwritable_cache):
        cached.cache_clear()
    yield
    for cached in (choice.why_not, choice.unwritable_cache):
        cached.cache_clear()


def test_kernels_are_kept_elsewhere_where_tritons_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that is root's, or read-only, cost all kernels and graphs. Here a file is in the way, which stops root as well."""
    from triton.runtime.cache import FileCacheManager

    (tmp_path / "data").write_text("")
    monkeypatch.setenv(choice.CACHE, str(tmp_path / "data" / ".triton"))
    with pytest.raises(OSError):
        FileCacheManager("key")
    told = choice.unwritable_cache()
    assert told is not None and str(tmp_path / "data" / ".triton") in told
    fresh = Path(os.environ[choice.CACHE])
    FileCacheManager("key").put("text", "file")
    assert (fresh / "key" / "file").read_text() == "text" and fresh.stat().st_mode & 0o077 == 0
    assert choice.unwritable_cache() == told, "it is said once it was seen"
    shutil.rmtree(fresh)


@pytest.mark.parametrize("named", [True, False])
def test_a_cache_that_can_be_written_stays_where_it_is(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.setenv(choice.CACHE, str(tmp_path / "cache"))
    else:
        monkeypatch.delenv(choice.CACHE, raising=False)
        monkeypatch.setenv(choice.HOME, str(tmp_path))
    assert choice.unwritable_cache() is None
    folder = tmp_path / "cache" if named else tmp_path / ".triton" / "cache"
    assert folder.is_dir() and not list(folder.iterdir())
    assert os.environ.get(choice.CACHE) == (str(folder) if named else None)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "/x"), "in its cache"),
        (RuntimeError("Failed to find C compiler"), "takes a C compiler"),
    ],
)
def test_what_cannot_be_built_is_said_with_its_cause(
    error: Exception, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        @property
        def utils(self) -> Any:
            raise error

    monkeypatch.delenv(choice.CACHE, raising=False)
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setenv(choice.HOME, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=Driver()))
    told = choice.why_not()
    assert told is not None and says in told and str(error) in told
    assert ("C compiler and Python's headers" in told) == isinstance(error, RuntimeError)
