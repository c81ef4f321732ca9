"""Every kernel for GPUs compiles to machine code, and fits into what a block of each generation of GPUs has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILED = Path(__file__).with_name("compiled.py")


@pytest.mark.tail
@pytest.mark.parametrize("architecture", [80, 89, 90, 120])
def test_kernels_compile_and_fit(architecture: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", str(COMPILED), str(architecture)]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.count("shared memory") > 50
