"""What `make install` builds is what `cargo test` has built: one feature more or less in one dependency, and nearly all of them are
built twice.
"""

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
