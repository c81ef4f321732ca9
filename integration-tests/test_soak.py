"""Two minutes of `benchmarks/soak.py`: honest streams beside attacks and killed workers are complete and right, and
memory, descriptors and threads are at the end what they were. What takes time is judged by the long run only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import soak  # noqa: E402

pytestmark = pytest.mark.alone


@pytest.mark.tail
def test_two_minutes_of_good_and_hostile_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.run(2.0, quick=True) == 0, capsys.readouterr().out
