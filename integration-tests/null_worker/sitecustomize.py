"""Makes `python -m penstock.worker` a null worker, where this folder is on PYTHONPATH.

Python imports a module of this name at every start (https://docs.python.org/3/library/site.html). Tests put the folder
into the environment of a server whose texts do not matter (`launched.py`), and the benchmark of the step's overhead
does. All but `penstock.startup` stays the worker's own.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class NullStartup:
    """Finds `null_startup.py` where `penstock.startup` is asked for."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every other module."""
        if name != "penstock.startup":
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name("null_startup.py"))


sys.meta_path.insert(0, NullStartup)
