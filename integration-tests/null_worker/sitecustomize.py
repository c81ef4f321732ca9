"""Makes `python -m penstock.worker` a null worker, where this folder is on PYTHONPATH and PENSTOCK_NULL_STEP_US says how long its steps are.

Python imports a module of this name at every start (https://docs.python.org/3/library/site.html). Tests put the folder
into the environment of a server whose texts do not matter (`launched.py`), and the benchmark of the step's overhead
does. All but `penstock.startup` stays the worker's own.

And any worker waits before it does anything for as long as the file exists that PENSTOCK_HELD_START names (`Launched.hold`): a test finds
it at its start, however long the test itself stands still.
"""

import importlib.util
import os
import sys
import time
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


held = os.environ.get("PENSTOCK_HELD_START")
# Not `sys.argv`, which is not set yet.
while held is not None and "penstock.worker" in sys.orig_argv and os.path.exists(held):
    time.sleep(0.01)
if "PENSTOCK_NULL_STEP_US" in os.environ:
    sys.meta_path.insert(0, NullStartup)
