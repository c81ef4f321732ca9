"""What the images have for those who come from TGI's: read off the Dockerfile, and its script run. Builds nothing: that is `make test-image`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def stage(name: str) -> str:
    """The steps of a stage of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    (steps,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(steps)


def test_a_health_check_within_the_container_has_curl() -> None:
    (installed,) = re.findall(r"apt-get install ([^&]*)", stage("runtime"))
    assert "curl" in installed.split()
    for name in ("cpu", "cpu-torch", "cuda"):
        assert re.search(rf"^FROM runtime AS {name}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("owner/name", "owner/name"),
        ("owner/name --revision v1", "owner/name --revision v1"),
        ("--extension .safetensors owner/name --trust-remote-code", "owner/name --trust-remote-code"),
        ("owner/name --logger-level INFO --json-output --no-auto-convert --merge-lora", "owner/name"),
        ("owner/name --extension=.bin --revision=v1 --logger-level", "owner/name --revision=v1"),
    ],
)
def test_weights_are_downloaded_by_tgis_command(tmp_path: Path, given: str, passed: str) -> None:
    assert "install deploy/text-generation-server /opt/penstock/bin/" in stage("build")
    command = tmp_path / "text-generation-server"
    shutil.copy(ROOT / "deploy" / "text-generation-server", command)
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    interpreter.chmod(0o755)
    ended = subprocess.run([command, "download-weights", *given.split()], capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["-m", "penstock.download", *passed.split()], ended
    assert ended.returncode == 0


def test_a_folder_with_weights_needs_no_download(tmp_path: Path) -> None:
    (tmp_path / "a model").mkdir()
    (tmp_path / "a model" / "model-00001-of-00002.safetensors").touch()
    command = [str(ROOT / "deploy" / "text-generation-server"), "download-weights", "--json-output"]
    ended = subprocess.run([*command, str(tmp_path / "a model")], capture_output=True, text=True)
    assert ended.returncode == 0 and "nothing to download" in ended.stderr and not ended.stdout
    (tmp_path / "empty").mkdir()
    ended = subprocess.run([*command, str(tmp_path / "empty")], capture_output=True, text=True)
    assert ended.returncode != 0


def test_users_are_told_by_number() -> None:
    """Kubernetes' runAsNonRoot cannot verify a name; derived images, which the pages teach, are held to it as ours are."""
    places = [ROOT / "Dockerfile", *(ROOT / "docs").glob("*.md")]
    users = [
        user for place in places for user in re.findall(r"^\s*USER (\S+)", place.read_text(), re.MULTILINE)
    ]
    assert len(users) > 2 and all(re.fullmatch(r"root|\d+(:\d+)?", user) for user in users), users


def test_other_commands_of_tgis_are_refused_with_what_serves() -> None:
    for words in ([], ["serve", "owner/name"]):
        command = [str(ROOT / "deploy" / "text-generation-server"), *words]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 2 and "penstock" in ended.stderr and not ended.stdout
