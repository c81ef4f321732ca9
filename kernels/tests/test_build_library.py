"""What the build of the CPU engine says where there is no compiler, or one that cannot build it: a line, and nothing is installed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import build_library


@pytest.mark.parametrize(
    ("compiler", "ends", "says"),
    [
        ("", 0, "penstock: no C++ compiler: the CPU engine is not built, and CPUs compute with torch"),
        ("/bin/false", 1, "penstock: /bin/false cannot build the CPU engine, and CPUs compute with torch"),
        (
            "no-such-c++ -v",
            1,
            "penstock: no-such-c++ cannot build the CPU engine, and CPUs compute with torch",
        ),
    ],
)
def test_without_a_compiler_that_works_a_line_says_so(
    compiler: str,
    ends: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_library, "LIBRARY", tmp_path / "libpenstock_cpu.so")
    assert build_library.main() == ends
    assert capsys.readouterr().err.strip().splitlines()[-1] == says
    assert not list(tmp_path.iterdir())
