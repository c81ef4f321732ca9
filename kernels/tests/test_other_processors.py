"""Which instruction sets of the CPU engine a processor gets, and what they compute on ARM: the engine's own tests, by `other_processor.py`,
with a library that is compiled for ARM and emulated by QEMU. How fast that is says nothing.
"""

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import build_library
from build_library import SOURCES
from other_processor import COMMAND, ServedLibrary

HERE = Path(__file__).parent
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PLAIN = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}"]

# By QEMU's name of a processor its instruction sets.
PROCESSORS = {"max": "i8mm neon generic", "neoverse-n1": "neon generic", "cortex-a72": "generic"}


def missing(reason: str) -> NoReturn:
    """Skips, or fails where everything has to be there (`.ci/run`)."""
    if "PENSTOCK_TEST_EVERYTHING" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def test_a_processor_gets_the_instruction_sets_that_it_has(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        missing("there is no C++ compiler")
    sets = [*build_library.X86, *build_library.ARM]
    defined = [f"-DPENSTOCK_HAS_{name.upper()}" for name in sets]
    sources = [str(HERE / "chosen_sets.cpp"), str(SOURCES / "isa.cpp")]
    build_library.run([compiler, *PLAIN, *defined, *sources, "-o", str(tmp_path / "chosen")])
    ran = subprocess.run([tmp_path / "chosen"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """served_library.cpp for ARM."""
    for name, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(name) is None:
            missing(f"{name} is not installed (on Debian: apt-get install {package})")
    folder = tmp_path_factory.mktemp("arm")
    objects = build_library.compile_all([COMPILER], folder)
    made = folder / "served"
    build_library.run(
        [COMPILER, *PLAIN, "-static", "-pthread", str(HERE / "served_library.cpp"), *objects, "-o", str(made)]
    )
    return made


@pytest.mark.tail
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_engine_computes_on_arm_what_it_computes_here(program: Path, processor: str) -> None:
    command = [EMULATOR, "-cpu", processor, str(program)]
    with closing(ServedLibrary(command)) as library:
        assert library.penstock_cpu_instruction_sets().decode() == PROCESSORS[processor]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), *sys.path)),
        COMMAND: shlex.join(command),
        "PYTEST_ADDOPTS": "",
    }
    draws = HERE.parents[1] / "server" / "tests" / "test_draws.py"
    files = [str(path) for path in (*sorted(HERE.glob("test_cpu_engine*.py")), draws)]
    options = ["-q", "-p", "other_processor", "-p", "no:cacheprovider", "-k", "not environment"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
