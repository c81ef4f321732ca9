"""The build backend of pyproject.toml: maturin's, after the CPU engine has been built. pip and uv call it (PEP 517, 660)."""

import os
import sys
from pathlib import Path
from typing import Any

import maturin

sys.path.insert(0, str(Path(__file__).parent))

import build_library

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable
build_sdist = maturin.build_sdist


def build_wheel(*arguments: Any, **settings: Any) -> Any:
    """See PEP 517. The wheel has the oldest manylinux tag that its binary keeps, which maturin checks."""
    build_library.main()
    os.environ.setdefault("MATURIN_PEP517_ARGS", "--compatibility pypi")
    return maturin.build_wheel(*arguments, **settings)


def build_editable(*arguments: Any, **settings: Any) -> Any:
    """See PEP 660."""
    build_library.main()
    return maturin.build_editable(*arguments, **settings)
