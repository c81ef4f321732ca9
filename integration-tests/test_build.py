"""What `make install` builds is what `cargo test` has built: one feature more or less in one dependency, and nearly all of them are
built twice.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def features(*arguments: str) -> set[str]:
    """Every dependency with its version and features."""
    command = [
        "cargo",
        "tree",
        "--locked",
        "--offline",
        "--prefix",
        "none",
        "--format",
        "{p} {f}",
        *arguments,
    ]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.removesuffix(" (*)") for line in lines if line and str(ROOT) not in line}


def test_what_is_installed_is_built_with_the_features_of_the_tests() -> None:
    tested = features("--workspace", "--edges", "normal,build,dev")
    installed = features("--package", "penstock", "--features", "as-in-tests", "--edges", "normal,build")
    more = installed - tested
    assert len(installed) > 100 and not more, (
        f"launcher/Cargo.toml's as-in-tests lacks what tests have: {more}"
    )


def test_what_a_host_has_built_is_no_part_of_an_image() -> None:
    """A library of the host's compiler is newer than its sources, and would be taken for built."""
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    built = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    missing = [
        line for line in built if line.strip("/") not in left_out and f"**/{line.strip('/')}" not in left_out
    ]
    assert not missing


def test_readme_asks_for_what_the_image_installs_to_build() -> None:
    (installed,) = re.findall(
        r"FROM rust.*?--no-install-recommends ([^\n\\]+)", (ROOT / "Dockerfile").read_text(), re.S
    )
    (asked,) = re.findall(r"`apt-get install ([^`]+)`", (ROOT / "README.md").read_text())
    assert set(asked.split()) | {"python3-venv"} == set(installed.split())


def test_make_says_what_it_needs_where_python_has_no_pip(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    made = subprocess.run(
        ["make", "--always-make", ".cache/uv/bin/uv", f"PYTHON={python}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode and "apt-get install python3-pip" in made.stderr and "Traceback" not in made.stderr
