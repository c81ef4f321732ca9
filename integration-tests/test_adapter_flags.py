"""`--lora-adapters` as the launcher reads it: what is wrong with the list is one line, before anything is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launched import Launched

Launch = Callable[..., Launched]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


REFUSED = {
    "two signs": (
        "a=b={folder}",
        "has more than one =: an adapter is owner/name, owner/name@revision or NAME=FOLDER",
    ),
    "two revisions": ("a={folder}@b@c", "has more than one @"),
    "no name": ("={folder}", "has no name in front of its ="),
    "an empty item": ("a={folder},", "names no adapter"),
    "a name twice": ("a={folder},a={folder}", 'two adapters have the name "a"'),
    "a folder that is not there": ("a=/no/such/folder", "names no folder that is there"),
    "a folder of something else": ("a=/tmp", "names a folder without adapter_config.json"),
    "a folder without a name": ("{folder}", "is no name of an adapter on the hub"),
    "the model's name": ("penstock-tiny={folder}", "penstock-tiny is the served model's name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_name(name: str, launch: Launch, adapter: Path) -> None:
    given, says = REFUSED[name]
    launched = launch("--lora-adapters", given.format(folder=adapter))
    assert launched.process.wait(60) == 1
    (line,) = [line for line in launched.log().splitlines() if "--lora-adapters" in line]
    assert says in line, line


def test_workers_on_other_hosts_are_told_themselves(launch: Launch, adapter: Path) -> None:
    launched = launch("--lora-adapters", f"a={adapter}", "--worker-address", "tcp:localhost:1")
    assert launched.process.wait(60) == 1
    assert "--lora-adapters is said to `penstock worker`" in launched.log()


def test_flags_of_vllm_are_told_what_it_is_here(launch: Launch) -> None:
    launched = launch("--lora-modules", "a=/b")
    assert launched.process.wait(60) == 2
    assert "adapters are named by --lora-adapters" in launched.log()
